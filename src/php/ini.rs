//! php.ini: registering the entries, checking what is written there, and reading it once.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use ext_php_rs::ffi::{ext_php_rs_sapi_globals, php_printf, zend_ini_entry, zend_string};
use ext_php_rs::flags::IniEntryPermission;
use ext_php_rs::zend::IniEntryDef;

use super::args::bytes_of;
use super::ffi;
use crate::config::settings::{self, Setting};
use crate::config::{Config, address, parse};

/// The entry that may be set per fpm pool.
const NAMESPACE: &str = "ephpm_kv.namespace";

/// Entries by their index in [`settings::all`], with an end mark. Never changed once made.
struct Definitions(Vec<IniEntryDef>);

// SAFETY: the pointers inside lead to text that is never freed and to nothing that changes.
unsafe impl Send for Definitions {}
// SAFETY: as above.
unsafe impl Sync for Definitions {}

/// Registers all entries and reads them. A value that is not allowed has been warned about when this returns.
pub fn register_and_read(module_number: c_int) -> Config {
    static DEFINITIONS: OnceLock<Definitions> = OnceLock::new();
    REGISTERING.store(true, Ordering::Relaxed);
    IniEntryDef::register(&DEFINITIONS.get_or_init(define).0, module_number);
    REGISTERING.store(false, Ordering::Relaxed);
    let config = settings::read(text_of, &address::System);
    set_namespace(config.namespace.as_bytes());
    VALUE_MAX.store(config.value_max as usize, Ordering::Relaxed);
    config
}

/// Whether PHP is being given the entries. A thread-safe PHP checks their values once more for each thread that it
/// starts, when all has been said.
static REGISTERING: AtomicBool = AtomicBool::new(false);

static VALUE_MAX: AtomicUsize = AtomicUsize::new(0);

/// Longest value in bytes.
#[inline]
pub fn value_max() -> usize {
    VALUE_MAX.load(Ordering::Relaxed)
}

fn define() -> Definitions {
    let mut entries: Vec<IniEntryDef> = settings::all()
        .enumerate()
        .map(|(index, setting)| {
            let mut entry =
                IniEntryDef::new(forever(setting.name), forever(setting.default), IniEntryPermission::System);
            entry.on_modify = Some(on_modify);
            entry.mh_arg1 = ptr::without_provenance_mut(index);
            entry.displayer = setting.hidden.then_some(display_hidden as _);
            entry
        })
        .collect();
    entries.push(IniEntryDef::end());
    Definitions(entries)
}

/// PHP keeps pointers to names and defaults for the life of the process.
fn forever(text: &str) -> &'static CStr {
    let owned = CString::new(text).expect("names and defaults of settings hold no NUL");
    Box::leak(owned.into_boxed_c_str())
}

fn text_of(name: &str) -> Option<String> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a C string of the given length; the result is NULL or text that PHP owns and we copy.
    unsafe {
        let text = ffi::zend_ini_string_ex(name.as_ptr(), name.count_bytes(), 0, ptr::null_mut());
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

/// Called by PHP before an entry takes a value. Refusing at start-up leaves the default.
unsafe extern "C" fn on_modify(
    _entry: *mut zend_ini_entry,
    value: *mut zend_string,
    index: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    stage: c_int,
) -> c_int {
    let Some(setting) = settings::all().nth(index.addr()) else { return ffi::FAILURE };
    // SAFETY: PHP passes NULL or a live string, which stays alive for this call.
    let value: &[u8] = if value.is_null() { b"" } else { unsafe { bytes_of(value) } };
    match stage {
        ffi::INI_STAGE_STARTUP => check_at_startup(setting, value),
        ffi::INI_STAGE_SHUTDOWN | ffi::INI_STAGE_DEACTIVATE => ffi::SUCCESS,
        ffi::INI_STAGE_ACTIVATE if setting.name == NAMESPACE && !in_request() => {
            let Ok(text) = std::str::from_utf8(value) else { return ffi::FAILURE };
            if parse::namespace(text).is_none() {
                return ffi::FAILURE;
            }
            set_namespace(value);
            ffi::SUCCESS
        }
        // Everything else was read once, when the module started: a later change would only look as if it worked.
        _ => ffi::FAILURE,
    }
}

fn check_at_startup(setting: &Setting, value: &[u8]) -> c_int {
    let text = String::from_utf8_lossy(value);
    if setting.allows(&text) {
        return ffi::SUCCESS;
    }
    if REGISTERING.load(Ordering::Relaxed) {
        super::warn_at_startup(&setting.complaint(&text));
    }
    // A bad secret stays in place, so that reading it refuses the cluster instead of starting it unsealed.
    if setting.hidden { ffi::SUCCESS } else { ffi::FAILURE }
}

/// Whether a request is being served. fpm applies a pool's settings before the first one, and what a FastCGI request
/// brings along (PHP_VALUE, PHP_ADMIN_VALUE) through the very same calls, but with the request in hand.
pub fn in_request() -> bool {
    // SAFETY: PHP's globals of this thread exist while PHP calls us.
    let context = unsafe { (*ext_php_rs_sapi_globals()).server_context };
    // Some SAPIs put 1 there for "no request, but do not complain".
    context.addr() > 1
}

static CURRENT_NAMESPACE: AtomicPtr<Box<[u8]>> = AtomicPtr::new(ptr::null_mut());

/// The prefix of all keys of this process.
#[inline]
pub fn namespace() -> &'static [u8] {
    let current = CURRENT_NAMESPACE.load(Ordering::Acquire);
    if current.is_null() {
        return b"";
    }
    // SAFETY: what is stored there is never freed or changed.
    unsafe { &*current }
}

/// Leaks the text: it changes at most once after the start, and readers hold no lock.
fn set_namespace(value: &[u8]) {
    if namespace() != value {
        let kept: &'static mut Box<[u8]> = Box::leak(Box::new(value.into()));
        CURRENT_NAMESPACE.store(kept, Ordering::Release);
    }
}

unsafe extern "C" fn display_hidden(entry: *mut zend_ini_entry, kind: c_int) {
    // SAFETY: PHP passes a live entry, whose values are NULL or live strings.
    let shown = unsafe {
        let value = match kind {
            ffi::INI_DISPLAY_ORIG if (*entry).modified != 0 => (*entry).orig_value,
            _ => (*entry).value,
        };
        if value.is_null() || bytes_of(value).is_empty() { c"no value" } else { c"(hidden)" }
    };
    // SAFETY: the format takes one C string.
    unsafe { php_printf(c"%s".as_ptr(), shown.as_ptr()) };
}
