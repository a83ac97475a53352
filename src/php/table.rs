//! The table of functions with their argument info, exactly as the stub declares them.

use std::ffi::CStr;
use std::ptr;

use ext_php_rs::args::ArgInfo;
use ext_php_rs::ffi::{IS_ARRAY, IS_DOUBLE, IS_FALSE, IS_LONG, IS_NULL, IS_STRING, MAY_BE_BOOL, zend_type};
use ext_php_rs::zend::FunctionEntry;

use super::functions::{self as f, Handler};
use super::multi;

/// A type, as the set of its members.
type Mask = u32;

const NULL: Mask = 1 << IS_NULL;
const FALSE: Mask = 1 << IS_FALSE;
const INT: Mask = 1 << IS_LONG;
const FLOAT: Mask = 1 << IS_DOUBLE;
const STRING: Mask = 1 << IS_STRING;
const ARRAY: Mask = 1 << IS_ARRAY;
const BOOL: Mask = MAY_BE_BOOL;

struct Parameter(&'static CStr, Mask, Option<&'static CStr>);

struct Function {
    name: &'static CStr,
    handler: Handler,
    parameters: &'static [Parameter],
    returns: Mask,
}

const KEY: Parameter = Parameter(c"key", STRING, None);
const BY: Parameter = Parameter(c"by", INT, None);
const BY_ONE: Parameter = Parameter(c"by", INT, Some(c"1"));
const TTL: Parameter = Parameter(c"ttl", INT | FLOAT, None);
const TTL_NONE: Parameter = Parameter(c"ttl", INT | FLOAT, Some(c"0"));
const VALUE: Parameter = Parameter(c"value", STRING, None);
const EXPECTED: Parameter = Parameter(c"expected", STRING | NULL, None);
const NEW: Parameter = Parameter(c"new", STRING | NULL, None);
const DELTAS: Parameter = Parameter(c"deltas", ARRAY, None);
const TTL_OR_NULL: Parameter = Parameter(c"ttl", INT | FLOAT | NULL, Some(c"null"));

macro_rules! table {
    ($($name:literal, $handler:path, [$($parameter:expr),*], $returns:expr;)*) => {
        [$(Function { name: $name, handler: $handler, parameters: &[$($parameter),*], returns: $returns }),*]
    };
}

static FUNCTIONS: [Function; 20] = table! {
    c"ephpm_kv_incr", f::incr, [KEY, BY_ONE], INT | FALSE;
    c"ephpm_kv_incr_ttl", f::incr_ttl, [KEY, BY, TTL], INT | FALSE;
    c"ephpm_kv_del", f::del, [KEY], INT;
    c"ephpm_kv_expire", f::expire, [KEY, TTL], BOOL;
    c"ephpm_kv_decr", f::decr, [KEY, BY_ONE], INT | FALSE;
    c"ephpm_kv_incr_by", f::incr_by, [KEY, BY], INT | FALSE;
    c"ephpm_kv_incr_multi", multi::incr_multi, [DELTAS, TTL_OR_NULL], ARRAY;
    c"ephpm_kv_get", f::get, [KEY], STRING | NULL;
    c"ephpm_kv_set", f::set, [KEY, VALUE, TTL_NONE], BOOL;
    c"ephpm_kv_setnx", f::setnx, [KEY, VALUE, TTL_NONE], BOOL;
    c"ephpm_kv_append", f::append, [KEY, VALUE], INT | FALSE;
    c"ephpm_kv_cas", f::cas, [KEY, EXPECTED, NEW, TTL_NONE], BOOL;
    c"ephpm_kv_exists", f::exists, [KEY], BOOL;
    c"ephpm_kv_ttl", f::ttl, [KEY], INT;
    c"ephpm_kv_pttl", f::pttl, [KEY], INT;
    c"ephpm_kv_flush_all", f::flush_all, [], BOOL;
    c"ephpm_kv_degraded", f::degraded, [], BOOL;
    c"ephpm_kv_owner", f::owner, [KEY], STRING;
    c"ephpm_kv_info", f::info_array, [], ARRAY;
    c"ephpm_kv_metrics", f::metrics, [], STRING;
};

#[cfg(feature = "testing")]
static TESTING: [Function; 1] = table! {
    c"ephpm_kv_test_window", f::test_window, [], ARRAY;
};
#[cfg(not(feature = "testing"))]
static TESTING: [Function; 0] = [];

/// Argument info of one function: itself and its return type first, then each parameter.
pub type ArgInfos = Box<[ArgInfo]>;

/// All functions with the argument info that their entries point into, and an end mark.
pub fn build() -> (Box<[FunctionEntry]>, Box<[ArgInfos]>) {
    let (mut entries, mut infos) = (Vec::new(), Vec::new());
    for function in FUNCTIONS.iter().chain(&TESTING) {
        let info = arg_info(function);
        let mut entry = FunctionEntry::end();
        entry.fname = function.name.as_ptr();
        entry.handler = Some(function.handler);
        entry.arg_info = info.as_ptr();
        entry.num_args = function.parameters.len() as u32;
        entries.push(entry);
        infos.push(info);
    }
    entries.push(FunctionEntry::end());
    (entries.into(), infos.into())
}

fn arg_info(function: &Function) -> ArgInfos {
    let required = function.parameters.iter().filter(|parameter| parameter.2.is_none()).count();
    let head = ArgInfo {
        // The first element's name is the number of required parameters (zend_internal_function_info).
        name: ptr::without_provenance(required),
        type_: of(function.returns),
        default_value: ptr::null(),
    };
    let parameters = function.parameters.iter().map(|Parameter(name, mask, default)| ArgInfo {
        name: name.as_ptr(),
        type_: of(*mask),
        default_value: default.map_or(ptr::null(), CStr::as_ptr),
    });
    std::iter::once(head).chain(parameters).collect()
}

fn of(mask: Mask) -> zend_type {
    zend_type { ptr: ptr::null_mut(), type_mask: mask }
}
