//! The functions of the extension, but for `ephpm_kv_incr_multi`.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ext_php_rs::ffi::{E_WARNING, php_error_docref, zend_throw_error};
use ext_php_rs::types::{ZendStr, Zval};
use ext_php_rs::zend::ExecuteData;

use super::args::{Args, Parsed, in_namespace};
use super::text::{Shown, Text};
use super::{host, info, ini};
use crate::error::Refusal;
use crate::store::{Ttl, Value};

/// How PHP calls a function.
pub type Handler = unsafe extern "C" fn(frame: *mut ExecuteData, result: *mut Zval);

/// Runs the body of a function. The result is null until the body says otherwise; a panic becomes a PHP `Error`.
#[inline]
pub fn run(frame: *mut ExecuteData, result: *mut Zval, body: impl FnOnce(Args<'_>, &mut Zval) -> Parsed<()>) {
    // SAFETY: PHP passes a live frame and a place for the result, and nobody else touches them during the call.
    let (frame, result) = unsafe { (&mut *frame, &mut *result) };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // Thrown has nothing to say: the exception is already in place.
        let _ = body(Args::of(frame), result);
    }));
    if outcome.is_err() {
        // Gone before the call into Zend.
        drop(outcome);
        // SAFETY: called from within a function call; a null class is Error; the format has no conversions.
        unsafe { zend_throw_error(std::ptr::null_mut(), c"ephpm_kv: internal error".as_ptr()) };
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($args:ident, $result:ident) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Only PHP calls it.
        pub unsafe extern "C" fn $name(frame: *mut ExecuteData, result: *mut Zval) {
            run(frame, result, |$args, $result| {
                $body
                Ok(())
            });
        }
    )*};
}

functions! {
    /// `ephpm_kv_incr(string $key, int $by = 1): int|false`
    fn incr(args, result) {
        let (key, by) = args.key_and_optional_int()?;
        count(result, key, by, None);
    }

    /// `ephpm_kv_decr(string $key, int $by = 1): int|false`
    fn decr(args, result) {
        let (key, by) = args.key_and_optional_int()?;
        match by.checked_neg() {
            Some(by) => count(result, key, by, None),
            None => refuse(result, key, if host().info().state == "disabled" { Refusal::Disabled } else { Refusal::Overflow }),
        }
    }

    /// `ephpm_kv_incr_by(string $key, int $by): int|false`
    fn incr_by(args, result) {
        let (key, by) = args.key_and_int()?;
        count(result, key, by, None);
    }

    /// `ephpm_kv_incr_ttl(string $key, int $by, int|float $ttl): int|false`
    fn incr_ttl(args, result) {
        let (key, by, ttl_ms) = args.key_int_and_ttl()?;
        count(result, key, by, Some(ttl_ms));
    }

    /// `ephpm_kv_get(string $key): ?string`
    fn get(args, result) {
        let key = args.key()?;
        let got = host().get(in_namespace(key), |value| match value {
            Value::Int(number) => Some(Got::Int(number)),
            Value::Bytes(bytes) => Some(Got::Bytes(keep(bytes))),
            Value::Elsewhere(_) => None,
        });
        match got.map(Option::flatten) {
            Ok(None) => {}
            Ok(Some(Got::Int(number))) => {
                let text = Text::<24>::new(format_args!("{number}"));
                result.set_zend_string(ZendStr::new(text.as_bytes(), false));
            }
            Ok(Some(Got::Bytes(kept))) => {
                // SAFETY: nothing has used the scratch buffer since.
                result.set_zend_string(ZendStr::new(unsafe { kept.bytes() }, false));
                release_scratch();
            }
            Err(refusal) => warn(key, refusal),
        }
    }

    /// `ephpm_kv_set(string $key, string $value, int|float $ttl = 0): bool`
    fn set(args, result) {
        let (key, value, ttl_ms) = args.key_value_and_ttl()?;
        match host().set(in_namespace(key), value, ttl_ms) {
            Ok(()) => result.set_bool(true),
            Err(refusal) => refuse(result, key, refusal),
        }
    }

    /// `ephpm_kv_setnx(string $key, string $value, int|float $ttl = 0): bool`
    fn setnx(args, result) {
        let (key, value, ttl_ms) = args.key_value_and_ttl()?;
        decide(result, key, host().set_nx(in_namespace(key), value, ttl_ms));
    }

    /// `ephpm_kv_append(string $key, string $value): int|false`
    fn append(args, result) {
        let (key, value) = args.key_and_value()?;
        match host().append(in_namespace(key), value) {
            Ok(len) => result.set_long(len as i64),
            Err(refusal) => refuse(result, key, refusal),
        }
    }

    /// `ephpm_kv_cas(string $key, ?string $expected, ?string $new, int|float $ttl = 0): bool`
    fn cas(args, result) {
        let (key, expected, new, ttl_ms) = args.key_two_values_and_ttl()?;
        decide(result, key, host().cas(in_namespace(key), expected, new, ttl_ms));
    }

    /// `ephpm_kv_del(string $key): int`
    fn del(args, result) {
        let key = args.key()?;
        let deleted = host().del(in_namespace(key));
        result.set_long(i64::from(deleted == Ok(true)));
        if let Err(refusal) = deleted {
            warn(key, refusal);
        }
    }

    /// `ephpm_kv_expire(string $key, int|float $ttl): bool`
    fn expire(args, result) {
        let (key, ttl_ms) = args.key_and_ttl()?;
        match host().expire(in_namespace(key), ttl_ms) {
            Ok(found) => result.set_bool(found),
            Err(refusal) => refuse(result, key, refusal),
        }
    }

    /// `ephpm_kv_exists(string $key): bool`
    fn exists(args, result) {
        let key = args.key()?;
        match host().exists(in_namespace(key)) {
            Ok(found) => result.set_bool(found),
            Err(refusal) => refuse(result, key, refusal),
        }
    }

    /// `ephpm_kv_ttl(string $key): int`
    fn ttl(args, result) {
        let key = args.key()?;
        remaining(result, key, |ms| ms.div_ceil(1000));
    }

    /// `ephpm_kv_pttl(string $key): int`
    fn pttl(args, result) {
        let key = args.key()?;
        remaining(result, key, |ms| ms);
    }

    /// `ephpm_kv_flush_all(): bool`
    fn flush_all(args, result) {
        args.none()?;
        match host().flush_all(ini::namespace()) {
            Ok(everywhere) => result.set_bool(everywhere),
            Err(refusal) => {
                result.set_bool(false);
                warn_all(refusal);
            }
        }
    }

    /// `ephpm_kv_degraded(): bool`
    fn degraded(args, result) {
        args.none()?;
        result.set_bool(host().degraded());
    }

    /// `ephpm_kv_owner(string $key): string`
    fn owner(args, result) {
        let key = args.key()?;
        host().touch();
        parked(host().owner(in_namespace(key)), |owner| result.set_zend_string(ZendStr::new(owner, false)));
    }

    /// `ephpm_kv_info(): array`
    fn info_array(args, result) {
        args.none()?;
        host().touch();
        parked(host().info(), |info| {
            if let Ok(array) = info::as_array(info) {
                result.set_hashtable(array);
            }
        });
    }

    /// `ephpm_kv_metrics(): string`
    fn metrics(args, result) {
        args.none()?;
        parked(host().metrics(), |text| result.set_zend_string(ZendStr::new(text, false)));
    }
}

#[cfg(feature = "testing")]
functions! {
    /// `ephpm_kv_test_window(): array`, only in test builds: stamp and origin of the window that this thread's last
    /// increment counted in, as strings since they are unsigned.
    fn test_window(args, result) {
        args.none()?;
        let (stamp, origin) = host().last_window();
        let mut array = ext_php_rs::types::ZendHashTable::with_capacity(2);
        for number in [stamp, origin] {
            let mut text = Zval::new();
            text.set_zend_string(ZendStr::new(Text::<24>::new(format_args!("{number}")).as_bytes(), false));
            // A push into a list with room cannot fail.
            let _ = array.push(text);
        }
        result.set_hashtable(array);
    }
}

#[inline]
fn count(result: &mut Zval, key: &[u8], by: i64, ttl_ms: Option<u64>) {
    match host().incr(in_namespace(key), by, ttl_ms) {
        Ok(value) => result.set_long(value),
        Err(refusal) => refuse(result, key, refusal),
    }
}

/// Whether it was done. Without an owner it was not, which is an ordinary answer: nobody is warned.
fn decide(result: &mut Zval, key: &[u8], decided: Result<bool, Refusal>) {
    match decided {
        Ok(done) => result.set_bool(done),
        Err(Refusal::NoOwner) => result.set_bool(false),
        Err(refusal) => refuse(result, key, refusal),
    }
}

fn remaining(result: &mut Zval, key: &[u8], unit: fn(u64) -> u64) {
    let answer = host().ttl(in_namespace(key));
    result.set_long(match answer {
        Ok(Ttl::NoDeadline) => -1,
        // A key that is still there has time left, though it may be less than a millisecond.
        Ok(Ttl::Ms(ms)) => unit(ms.max(1)) as i64,
        Ok(Ttl::NoKey) | Err(_) => -2,
    });
    if let Err(refusal) = answer {
        warn(key, refusal);
    }
}

/// Returns false and warns.
#[cold]
fn refuse(result: &mut Zval, key: &[u8], refusal: Refusal) {
    result.set_bool(false);
    warn(key, refusal);
}

/// Warns that an operation on `key` was refused. A disabled extension says so once, at the start, and then keeps
/// quiet: a page must not break where an operator has switched it off.
#[cold]
pub fn warn(key: &[u8], refusal: Refusal) {
    if refusal != Refusal::Disabled {
        emit(&Text::<512>::new(format_args!("key \"{}\": {refusal}", Shown(key))));
    }
}

#[cold]
fn warn_all(refusal: Refusal) {
    if refusal != Refusal::Disabled {
        emit(&Text::<512>::new(format_args!("{refusal}")));
    }
}

/// May run a script's error handler.
fn emit(text: &Text<512>) {
    // SAFETY: called from within a function call; the format takes one C string.
    unsafe { php_error_docref(std::ptr::null(), E_WARNING as i32, c"%s".as_ptr(), text.as_ptr()) };
}

enum Got {
    Int(i64),
    Bytes(Kept),
}

thread_local! {
    /// Where a value waits between the store, which lends it, and PHP, whose allocation may `longjmp` away: the buffer
    /// belongs to the thread, so nothing is lost then and no lock is held.
    static SCRATCH: UnsafeCell<Vec<u8>> = const { UnsafeCell::new(Vec::new()) };

    /// As `SCRATCH`, for whole Rust values.
    static PARKED: UnsafeCell<Option<Box<dyn std::any::Any>>> = const { UnsafeCell::new(None) };
}

/// A scratch buffer larger than this is given back after use.
const SCRATCH_KEPT: usize = 64 << 10;

/// Bytes in the thread's scratch buffer.
struct Kept {
    start: *const u8,
    len: usize,
}

impl Kept {
    /// # Safety
    /// The scratch buffer has not been used since.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller vouches that the buffer still holds them.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

fn keep(bytes: &[u8]) -> Kept {
    SCRATCH.with(|scratch| {
        // SAFETY: only `keep` and `release_scratch` use the buffer, each for the length of its own body.
        let scratch = unsafe { &mut *scratch.get() };
        scratch.clear();
        scratch.extend_from_slice(bytes);
        Kept { start: scratch.as_ptr(), len: scratch.len() }
    })
}

fn release_scratch() {
    SCRATCH.with(|scratch| {
        // SAFETY: as in `keep`.
        let scratch = unsafe { &mut *scratch.get() };
        if scratch.capacity() > SCRATCH_KEPT {
            *scratch = Vec::new();
        }
    });
}

/// Lends `value` to `body`, which may allocate in Zend but runs no script. A `longjmp` out of it leaves the value with
/// the thread, which frees it at the next use.
fn parked<T: 'static>(value: T, body: impl FnOnce(&T)) {
    let boxed: Box<T> = Box::new(value);
    let lent: *const T = &raw const *boxed;
    PARKED.with(|slot| {
        // SAFETY: nothing else holds a reference into the slot: `body` runs no script, hence not this function.
        unsafe { *slot.get() = Some(boxed) };
    });
    // SAFETY: the box stays in the slot until below.
    body(unsafe { &*lent });
    PARKED.with(|slot| {
        // SAFETY: as above.
        unsafe { *slot.get() = None };
    });
}
