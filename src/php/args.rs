//! Arguments by PHP's own rules, weak and strict.
//!
//! Arguments that have exactly the declared type are read in place. Everything else goes through
//! `zend_parse_parameters`, which converts or throws as it does for PHP's own functions.

use std::ffi::CStr;
use std::ptr;

use ext_php_rs::ffi::{HashTable, IS_ARRAY, IS_DOUBLE, IS_LONG, IS_STRING, zend_string};
use ext_php_rs::types::Zval;
use ext_php_rs::zend::ExecuteData;

use super::ffi;
use super::ttl::{self, Number, Wrong};
use crate::record::{KEY_LEN_MAX, Key};

/// An argument was wrong and an exception is on its way: return to PHP.
pub struct Thrown;

/// What parsing gives.
pub type Parsed<T> = Result<T, Thrown>;

/// The arguments of the running call.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    first: *mut Zval,
    count: usize,
    call: std::marker::PhantomData<&'a ExecuteData>,
}

/// zvals that a call's frame takes before its arguments (`ZEND_CALL_FRAME_SLOT`).
const FRAME_SLOTS: usize = size_of::<ExecuteData>().div_ceil(size_of::<Zval>());

impl<'a> Args<'a> {
    /// The arguments of the call that `frame` belongs to.
    pub fn of(frame: &'a mut ExecuteData) -> Self {
        // SAFETY: all members of the union are the same 32 bits.
        let count = unsafe { frame.This.u2.num_args } as usize;
        // SAFETY: the engine puts the arguments right behind the frame, in whole zvals.
        let first = unsafe { ptr::from_mut(frame).cast::<Zval>().add(FRAME_SLOTS) };
        Self { first, count, call: std::marker::PhantomData }
    }

    /// The argument at `index` if it was given and is exactly of `kind`.
    #[inline]
    fn exact(&self, index: usize, kind: u32) -> Option<&'a Zval> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `index` is below the number of arguments, and the frame outlives the call.
        let value = unsafe { &*self.first.add(index) };
        // SAFETY: all members of the union are views of the same type word.
        let found = unsafe { value.u1.v.type_ };
        (u32::from(found) == kind).then_some(value)
    }

    #[inline]
    fn bytes(&self, index: usize) -> Option<&'a [u8]> {
        // SAFETY: the value is a string, so its pointer is one, kept alive by the frame.
        self.exact(index, IS_STRING).map(|value| unsafe { bytes_of(value.value.str_) })
    }

    #[inline]
    fn int(&self, index: usize) -> Option<i64> {
        // SAFETY: the value is an int.
        self.exact(index, IS_LONG).map(|value| unsafe { value.value.lval })
    }

    #[inline]
    fn number(&self, index: usize) -> Option<Number> {
        // SAFETY: the value is a float.
        let float = || self.exact(index, IS_DOUBLE).map(|value| unsafe { value.value.dval });
        self.int(index).map(Number::Int).or_else(|| float().map(Number::Float))
    }

    /// No arguments.
    pub fn none(&self) -> Parsed<()> {
        if self.count == 0 {
            return Ok(());
        }
        // SAFETY: called from within a function call, as it must be.
        unsafe { ffi::zend_wrong_parameters_none_error() };
        Err(Thrown)
    }

    /// `string $key`
    #[inline]
    pub fn key(&self) -> Parsed<&'a [u8]> {
        let key = match self.bytes(0) {
            Some(key) if self.count == 1 => key,
            _ => {
                let mut key = ptr::null_mut::<zend_string>();
                // SAFETY: "S" takes the address of a string pointer.
                self.done(unsafe { ffi::zend_parse_parameters(self.given(), c"S".as_ptr(), &raw mut key) })?;
                // SAFETY: parsed, hence a string that the frame keeps alive.
                unsafe { bytes_of(key) }
            }
        };
        check_key(key)
    }

    /// `string $key, int $by = 1`
    #[inline]
    pub fn key_and_optional_int(&self) -> Parsed<(&'a [u8], i64)> {
        let (key, int) = match (self.count, self.bytes(0), self.int(1)) {
            (1, Some(key), None) => (key, 1),
            (2, Some(key), Some(int)) => (key, int),
            _ => self.key_and_int_slow(c"S|l")?,
        };
        Ok((check_key(key)?, int))
    }

    /// `string $key, int $by`
    #[inline]
    pub fn key_and_int(&self) -> Parsed<(&'a [u8], i64)> {
        let (key, int) = match (self.count, self.bytes(0), self.int(1)) {
            (2, Some(key), Some(int)) => (key, int),
            _ => self.key_and_int_slow(c"Sl")?,
        };
        Ok((check_key(key)?, int))
    }

    #[cold]
    fn key_and_int_slow(&self, spec: &CStr) -> Parsed<(&'a [u8], i64)> {
        let mut key = ptr::null_mut::<zend_string>();
        let mut int: ffi::Long = 1;
        // SAFETY: "S" takes the address of a string pointer, "l" that of an integer.
        self.done(unsafe { ffi::zend_parse_parameters(self.given(), spec.as_ptr(), &raw mut key, &raw mut int) })?;
        // SAFETY: parsed, hence a string that the frame keeps alive.
        Ok((unsafe { bytes_of(key) }, int))
    }

    /// `string $key, int $by, int|float $ttl`, the TTL positive, in milliseconds.
    #[inline]
    pub fn key_int_and_ttl(&self) -> Parsed<(&'a [u8], i64, u64)> {
        let (key, int, ttl) = match (self.count, self.bytes(0), self.int(1), self.number(2)) {
            (3, Some(key), Some(int), Some(ttl)) => (key, int, ttl),
            _ => {
                let mut key = ptr::null_mut::<zend_string>();
                let mut int: ffi::Long = 0;
                let mut ttl = ptr::null_mut::<Zval>();
                // SAFETY: "S" takes the address of a string pointer, "l" of an integer, "n" of a zval pointer.
                self.done(unsafe {
                    let spec = c"Sln".as_ptr();
                    ffi::zend_parse_parameters(self.given(), spec, &raw mut key, &raw mut int, &raw mut ttl)
                })?;
                // SAFETY: parsed, hence a string and a number that the frame keeps alive.
                unsafe { (bytes_of(key), int, number_of(ttl)) }
            }
        };
        let key = check_key(key)?;
        Ok((key, int, ttl::milliseconds_positive(ttl).map_err(|wrong| value_error(3, wrong))?))
    }

    /// `string $key, int|float $ttl`, the TTL in milliseconds, 0 as `None`.
    pub fn key_and_ttl(&self) -> Parsed<(&'a [u8], Option<u64>)> {
        let (key, ttl) = match (self.count, self.bytes(0), self.number(1)) {
            (2, Some(key), Some(ttl)) => (key, ttl),
            _ => {
                let mut key = ptr::null_mut::<zend_string>();
                let mut ttl = ptr::null_mut::<Zval>();
                // SAFETY: "S" takes the address of a string pointer, "n" of a zval pointer.
                self.done(unsafe {
                    ffi::zend_parse_parameters(self.given(), c"Sn".as_ptr(), &raw mut key, &raw mut ttl)
                })?;
                // SAFETY: parsed, hence a string and a number that the frame keeps alive.
                unsafe { (bytes_of(key), number_of(ttl)) }
            }
        };
        let key = check_key(key)?;
        Ok((key, ttl::milliseconds_or_none(ttl).map_err(|wrong| value_error(2, wrong))?))
    }

    /// `string $key, string $value, int|float $ttl = 0`, the value within its limit, the TTL in milliseconds, 0 as
    /// `None`.
    #[inline]
    pub fn key_value_and_ttl(&self) -> Parsed<(&'a [u8], &'a [u8], Option<u64>)> {
        let (key, value, ttl) = match (self.count, self.bytes(0), self.bytes(1), self.number(2)) {
            (2, Some(key), Some(value), None) => (key, value, Number::Int(0)),
            (3, Some(key), Some(value), Some(ttl)) => (key, value, ttl),
            _ => {
                let mut key = ptr::null_mut::<zend_string>();
                let mut value = ptr::null_mut::<zend_string>();
                let mut ttl = ptr::null_mut::<Zval>();
                // SAFETY: "S" takes the address of a string pointer, "n" of a zval pointer.
                self.done(unsafe {
                    let spec = c"SS|n".as_ptr();
                    ffi::zend_parse_parameters(self.given(), spec, &raw mut key, &raw mut value, &raw mut ttl)
                })?;
                // SAFETY: parsed, hence strings and a number (or none given) that the frame keeps alive.
                unsafe { (bytes_of(key), bytes_of(value), if ttl.is_null() { Number::Int(0) } else { number_of(ttl) }) }
            }
        };
        let key = check_key(key)?;
        check_value(2, value)?;
        Ok((key, value, ttl::milliseconds_or_none(ttl).map_err(|wrong| value_error(3, wrong))?))
    }

    /// `string $key, string $value`, the value within its limit.
    pub fn key_and_value(&self) -> Parsed<(&'a [u8], &'a [u8])> {
        let (key, value) = match (self.count, self.bytes(0), self.bytes(1)) {
            (2, Some(key), Some(value)) => (key, value),
            _ => {
                let mut key = ptr::null_mut::<zend_string>();
                let mut value = ptr::null_mut::<zend_string>();
                // SAFETY: "S" takes the address of a string pointer.
                self.done(unsafe {
                    ffi::zend_parse_parameters(self.given(), c"SS".as_ptr(), &raw mut key, &raw mut value)
                })?;
                // SAFETY: parsed, hence strings that the frame keeps alive.
                unsafe { (bytes_of(key), bytes_of(value)) }
            }
        };
        let key = check_key(key)?;
        check_value(2, value)?;
        Ok((key, value))
    }

    /// `string $key, ?string $expected, ?string $new, int|float $ttl = 0`, the values within their limit, the TTL in
    /// milliseconds, 0 as `None`.
    #[allow(clippy::type_complexity, reason = "four arguments are four things")]
    pub fn key_two_values_and_ttl(&self) -> Parsed<(&'a [u8], Option<&'a [u8]>, Option<&'a [u8]>, Option<u64>)> {
        let mut key = ptr::null_mut::<zend_string>();
        let mut expected = ptr::null_mut::<zend_string>();
        let mut new = ptr::null_mut::<zend_string>();
        let mut ttl = ptr::null_mut::<Zval>();
        // SAFETY: "S" takes the address of a string pointer, "S!" too (NULL for null), "n" that of a zval pointer.
        self.done(unsafe {
            let spec = c"SS!S!|n".as_ptr();
            let (key, ttl) = (&raw mut key, &raw mut ttl);
            ffi::zend_parse_parameters(self.given(), spec, key, &raw mut expected, &raw mut new, ttl)
        })?;
        // SAFETY: parsed, hence null or a string that the frame keeps alive.
        let optional = |string: *mut zend_string| (!string.is_null()).then(|| unsafe { bytes_of(string) });
        // SAFETY: parsed, hence a string and a number (or none given) that the frame keeps alive.
        let (key, ttl) = unsafe { (bytes_of(key), if ttl.is_null() { Number::Int(0) } else { number_of(ttl) }) };
        let (key, expected, new) = (check_key(key)?, optional(expected), optional(new));
        for (argument, value) in [(2, expected), (3, new)] {
            check_value(argument, value.unwrap_or_default())?;
        }
        Ok((key, expected, new, ttl::milliseconds_or_none(ttl).map_err(|wrong| value_error(4, wrong))?))
    }

    /// `array $deltas, int|float|null $ttl = null`, the TTL positive, in milliseconds.
    pub fn table_and_optional_ttl(&self) -> Parsed<(*mut HashTable, Option<u64>)> {
        let (table, ttl) = match (self.count, self.exact(0, IS_ARRAY)) {
            // SAFETY: the value is an array.
            (1, Some(table)) => (unsafe { table.value.arr }, None),
            _ => {
                let mut table = ptr::null_mut::<HashTable>();
                let mut ttl = ptr::null_mut::<Zval>();
                // SAFETY: "h" takes the address of a table pointer, "n!" of a zval pointer, NULL for null.
                self.done(unsafe {
                    ffi::zend_parse_parameters(self.given(), c"h|n!".as_ptr(), &raw mut table, &raw mut ttl)
                })?;
                // SAFETY: parsed, hence a number that the frame keeps alive, or none.
                (table, if ttl.is_null() { None } else { Some(unsafe { number_of(ttl) }) })
            }
        };
        let ttl = ttl.map(ttl::milliseconds_positive).transpose().map_err(|wrong| value_error(2, wrong))?;
        Ok((table, ttl))
    }

    fn given(&self) -> u32 {
        self.count as u32
    }

    fn done(&self, code: std::ffi::c_int) -> Parsed<()> {
        if code == ffi::SUCCESS { Ok(()) } else { Err(Thrown) }
    }
}

/// The bytes of a string.
///
/// # Safety
/// `string` is a live `zend_string` and stays one for `'a`.
#[inline]
pub unsafe fn bytes_of<'a>(string: *const zend_string) -> &'a [u8] {
    // SAFETY: the caller vouches for the string; its bytes follow its header.
    unsafe { std::slice::from_raw_parts((&raw const (*string).val).cast::<u8>(), (*string).len) }
}

/// # Safety
/// `value` is an int or a float.
unsafe fn number_of(value: *const Zval) -> Number {
    // SAFETY: the caller vouches for the value; the type word says which member of the union holds it.
    unsafe {
        match u32::from((*value).u1.v.type_) {
            IS_DOUBLE => Number::Float((*value).value.dval),
            _ => Number::Int((*value).value.lval),
        }
    }
}

/// What is wrong with a key: nothing, or what its argument is told.
pub fn key_fault(key: &[u8]) -> Option<Wrong> {
    match key.len() {
        0 => Some(Wrong(c"must not be empty")),
        1..=KEY_LEN_MAX => None,
        _ => Some(Wrong(c"must be at most 1024 bytes long")),
    }
}

#[inline]
fn check_key(key: &[u8]) -> Parsed<&[u8]> {
    match key_fault(key) {
        None => Ok(key),
        Some(wrong) => Err(value_error(1, wrong)),
    }
}

#[inline]
fn check_value(argument: u32, value: &[u8]) -> Parsed<()> {
    let limit = super::ini::value_max();
    if value.len() <= limit {
        return Ok(());
    }
    // SAFETY: called from within a function call; the format takes one size_t.
    unsafe { ffi::zend_argument_value_error(argument, c"must be at most %zu bytes long".as_ptr(), limit) };
    Err(Thrown)
}

#[cold]
fn value_error(argument: u32, Wrong(message): Wrong) -> Thrown {
    // SAFETY: called from within a function call; the format has no conversions.
    unsafe { ffi::zend_argument_value_error(argument, message.as_ptr()) };
    Thrown
}

/// `key` in the namespace of this pool.
#[inline]
pub fn in_namespace(key: &[u8]) -> Key<'_> {
    Key { namespace: super::ini::namespace(), name: key }
}
