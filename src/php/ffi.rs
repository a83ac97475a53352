//! What ext-php-rs does not bind of the Zend API, as it is in PHP 8.2 to 8.4.

use std::ffi::{c_char, c_int};

use ext_php_rs::ffi::{HashTable, zend_long, zend_module_entry, zend_string, zend_ulong, zval};

/// `ZEND_INI_STAGE_STARTUP`
pub const INI_STAGE_STARTUP: c_int = 1 << 0;
/// `ZEND_INI_STAGE_SHUTDOWN`
pub const INI_STAGE_SHUTDOWN: c_int = 1 << 1;
/// `ZEND_INI_STAGE_ACTIVATE`: before a request, also where fpm applies a pool's settings.
pub const INI_STAGE_ACTIVATE: c_int = 1 << 2;
/// `ZEND_INI_STAGE_DEACTIVATE`
pub const INI_STAGE_DEACTIVATE: c_int = 1 << 3;
/// `ZEND_INI_DISPLAY_ORIG`: the displayer is asked for the value before a change.
pub const INI_DISPLAY_ORIG: c_int = 1;
/// `SUCCESS`
pub const SUCCESS: c_int = 0;
/// `FAILURE`
pub const FAILURE: c_int = -1;
/// `HASH_KEY_IS_STRING`
pub const HASH_KEY_IS_STRING: c_int = 1;
/// `HASH_KEY_IS_LONG`
pub const HASH_KEY_IS_LONG: c_int = 2;

unsafe extern "C" {
    /// Parses the arguments of the running function by PHP's rules; throws and returns FAILURE where they are wrong.
    pub fn zend_parse_parameters(num_args: u32, type_spec: *const c_char, ...) -> c_int;
    /// Throws about arguments given to a function that takes none.
    pub fn zend_wrong_parameters_none_error();
    /// Throws a `ValueError` about argument `arg_num` of the running function.
    pub fn zend_argument_value_error(arg_num: u32, format: *const c_char, ...);
    /// Throws a `TypeError` about argument `arg_num` of the running function.
    pub fn zend_argument_type_error(arg_num: u32, format: *const c_char, ...);
    /// The PHP name of a value's type.
    pub fn zend_zval_type_name(value: *const zval) -> *const c_char;
    /// Allocates room for `size` elements in a fresh table; says how it is laid out.
    pub fn zend_hash_real_init_mixed(table: *mut HashTable);
    /// The key at `position`: which kind, and the key itself in one of the two places.
    pub fn zend_hash_get_current_key_ex(
        table: *const HashTable,
        string: *mut *mut zend_string,
        number: *mut zend_ulong,
        position: *const u32,
    ) -> c_int;
    /// Text of an ini entry, NULL when it has none.
    pub fn zend_ini_string_ex(name: *const c_char, len: usize, orig: c_int, exists: *mut bool) -> *mut c_char;
    /// Whether PHP itself is still starting: a request that begins now is opcache's, which preloads.
    pub fn php_during_module_startup() -> bool;
    /// Removes a module's ini entries.
    pub fn zend_unregister_ini_entries_ex(module_number: c_int, module_type: c_int);
    /// Prints a module's ini entries as phpinfo does.
    pub fn display_ini_entries(module: *mut zend_module_entry);
}

/// `zend_long` of the platform, so that varargs get the size that PHP expects.
pub type Long = zend_long;
