//! `ephpm_kv_incr_multi`: many increments in one call.

use std::ptr;

use ext_php_rs::boxed::ZBox;
use ext_php_rs::ffi::{
    _zend_new_array, HashTable, ext_php_rs_executor_globals, zend_array_count, zend_hash_get_current_data_ex,
    zend_hash_index_update, zend_hash_move_forward_ex, zend_hash_update, zend_string,
};
use ext_php_rs::types::Zval;
use ext_php_rs::zend::ExecuteData;

use super::args::{Parsed, Thrown, bytes_of, in_namespace, key_fault};
use super::text::{Shown, Text};
use super::{ffi, functions, host};

/// `ephpm_kv_incr_multi(array $deltas, int|float|null $ttl = null): array`
///
/// # Safety
/// Only PHP calls it.
pub unsafe extern "C" fn incr_multi(frame: *mut ExecuteData, result: *mut Zval) {
    functions::run(frame, result, |args, result| {
        let (deltas, ttl_ms) = args.table_and_optional_ttl()?;
        // Everything is looked at before anything changes.
        each(deltas, |item| item.check().map(|_| ()))?;
        let counts = new_table(deltas);
        // SAFETY: a fresh table that nobody else knows; from here on the result owns it.
        result.set_hashtable(unsafe { ZBox::from_raw(counts) });
        each(deltas, |item| {
            // Checked again: an element may be a reference, and a warning below may have run a script's handler.
            let delta = item.check()?;
            let mut value = Zval::new();
            let counted = item.with_name(|name| {
                host().incr(in_namespace(name), delta, ttl_ms).map_err(|refusal| functions::warn(name, refusal))
            });
            match counted {
                Ok(count) => value.set_long(count),
                Err(()) => value.set_bool(false),
            }
            item.store(counts, &mut value);
            if exception_pending() { Err(Thrown) } else { Ok(()) }
        })
    });
}

/// One element of the array of deltas.
struct Item<'a> {
    /// The key, or null where it is the number.
    string: *mut zend_string,
    number: u64,
    delta: &'a Zval,
}

impl Item<'_> {
    /// Lends the key as bytes; a number in decimal.
    fn with_name<R>(&self, body: impl FnOnce(&[u8]) -> R) -> R {
        if self.string.is_null() {
            return body(Text::<24>::new(format_args!("{}", self.number as i64)).as_bytes());
        }
        // SAFETY: a key of the array, which the call's frame keeps alive.
        body(unsafe { bytes_of(self.string) })
    }

    /// The delta, where key and delta are fit for use.
    fn check(&self) -> Parsed<i64> {
        if let Some(fault) = self.with_name(key_fault) {
            // SAFETY: called from within a function call; the format takes one C string.
            unsafe { ffi::zend_argument_value_error(1, c"keys %s".as_ptr(), fault.0.as_ptr()) };
            return Err(Thrown);
        }
        let delta = self.delta.dereference();
        delta.long().ok_or_else(|| {
            let key = self.with_name(|name| Text::<512>::new(format_args!("{}", Shown(name))));
            // SAFETY: called from within a function call; the format takes two C strings.
            unsafe {
                let kind = ffi::zend_zval_type_name(delta);
                let format = c"must contain only values of type int, %s given for key \"%s\"";
                ffi::zend_argument_type_error(1, format.as_ptr(), kind, key.as_ptr());
            }
            Thrown
        })
    }

    /// Puts `value` under this item's key.
    fn store(&self, table: *mut HashTable, value: &mut Zval) {
        // SAFETY: `table` has room, and the key is alive; the table takes its own reference to it.
        unsafe {
            if self.string.is_null() {
                zend_hash_index_update(table, self.number, value);
            } else {
                zend_hash_update(table, self.string, value);
            }
        }
    }
}

/// Calls `body` with every element until it fails.
fn each(table: *mut HashTable, mut body: impl FnMut(Item<'_>) -> Parsed<()>) -> Parsed<()> {
    let mut position = 0u32;
    loop {
        let mut string = ptr::null_mut();
        let mut number = 0;
        // SAFETY: the table is the argument, which the call's frame keeps alive and nobody can change; `position` is
        // only moved by Zend.
        let element = unsafe {
            let kind = ffi::zend_hash_get_current_key_ex(table, &mut string, &mut number, &position);
            if kind != ffi::HASH_KEY_IS_STRING && kind != ffi::HASH_KEY_IS_LONG {
                return Ok(());
            }
            if kind == ffi::HASH_KEY_IS_LONG {
                string = ptr::null_mut();
            }
            zend_hash_get_current_data_ex(table, &mut position).as_ref()
        };
        let Some(delta) = element else { return Ok(()) };
        body(Item { string, number, delta })?;
        // SAFETY: as above.
        unsafe { zend_hash_move_forward_ex(table, &mut position) };
    }
}

/// A table with room for as many elements as `model` has: no allocation can fail once counting has begun.
fn new_table(model: *mut HashTable) -> *mut HashTable {
    // SAFETY: `model` is alive; the new table is initialised once, while it is empty.
    unsafe {
        let table = _zend_new_array(zend_array_count(model));
        ffi::zend_hash_real_init_mixed(table);
        table
    }
}

fn exception_pending() -> bool {
    // SAFETY: the globals of this thread exist while PHP calls us.
    unsafe { !(*ext_php_rs_executor_globals()).exception.is_null() }
}
