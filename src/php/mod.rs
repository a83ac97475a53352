//! The PHP surface: functions, settings, information, and the hooks of the module's life.
//!
//! Nothing here decides what a count is; that is the layers' below, all of it behind [`Host`]. What this layer owes
//! them is that no lock, guard or allocation of Rust's is held across a call into Zend, which may `longjmp` away, and
//! that no panic leaves through a C frame.

mod args;
mod ffi;
mod functions;
mod info;
mod ini;
mod multi;
mod table;
mod text;
mod ttl;

use std::ffi::{CStr, CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use ext_php_rs::PHP_ZTS;
use ext_php_rs::builders::ModuleBuilder;
use ext_php_rs::ffi::{E_WARNING, ext_php_rs_sapi_module, php_error_docref};
use ext_php_rs::zend::{ModuleEntry, StaticModuleEntry};

use crate::bridge::{Host, Sapi};

/// The host that MINIT made; every MINIT makes a new one, since a SAPI may restart modules within one process.
static HOST: AtomicPtr<Host> = AtomicPtr::new(ptr::null_mut());

/// The host of this process; one that refuses everything before MINIT.
#[inline]
fn host() -> &'static Host {
    static NONE: OnceLock<Host> = OnceLock::new();
    // SAFETY: what is stored there is never freed: a thread of the server may still be in a call when it is replaced.
    match unsafe { HOST.load(Ordering::Acquire).as_ref() } {
        Some(host) => host,
        None => NONE.get_or_init(|| Host::disabled("the module has not started".into())),
    }
}

/// What PHP looks up when it loads the module.
#[unsafe(no_mangle)]
pub extern "C" fn get_module() -> *mut ModuleEntry {
    static MODULE: StaticModuleEntry = StaticModuleEntry::new();
    MODULE.get_or_init(|| {
        let builder = ModuleBuilder::new("ephpm_kv", info::VERSION)
            .startup_function(startup)
            .shutdown_function(shutdown)
            .request_startup_function(request_startup)
            .request_shutdown_function(request_shutdown)
            .info_function(module_info);
        let (mut entry, _, mut owned) = builder.try_into().expect("a module without functions always builds");
        // The builder knows no union types, so the functions come from a table of our own.
        (owned.functions, owned.arg_info) = table::build();
        entry.functions = owned.functions.as_ptr();
        (entry, owned)
    })
}

/// A hook's body; a panic ends the hook, not the process.
fn guarded(body: impl FnOnce()) -> c_int {
    // The panic's message has been printed by its hook, and PHP goes on without us.
    let _ = catch_unwind(AssertUnwindSafe(body));
    ffi::SUCCESS
}

unsafe extern "C" fn startup(_type: c_int, module_number: c_int) -> c_int {
    guarded(|| {
        let config = ini::register_and_read(module_number);
        if let Some(refusal) = &config.refusal {
            warn_at_startup(&format!("no cluster is started, this host counts alone: {refusal}"));
        }
        let host = if config.enabled {
            let sapi = Sapi::new(sapi_name(), PHP_ZTS);
            Host::open(config, sapi, &mut warn_at_startup).unwrap_or_else(|error| {
                warn_at_startup(&format!("the extension is disabled: {error}"));
                Host::disabled(error.to_string())
            })
        } else {
            Host::disabled("ephpm_kv.enabled is 0".into())
        };
        HOST.store(Box::leak(Box::new(host)), Ordering::Release);
    })
}

unsafe extern "C" fn shutdown(module_type: c_int, module_number: c_int) -> c_int {
    let code = guarded(|| host().shutdown());
    // SAFETY: PHP passes the number and type of this module.
    unsafe { ffi::zend_unregister_ini_entries_ex(module_number, module_type) };
    code
}

unsafe extern "C" fn request_startup(_type: c_int, _module_number: c_int) -> c_int {
    // SAFETY: only reads a flag.
    let preloads = unsafe { ffi::php_during_module_startup() };
    // `php-fpm -i` prints its information in a request that nobody has made.
    let is_asked = sapi_name() == "fpm-fcgi" && !ini::in_request();
    guarded(|| host().request_start(!preloads && !is_asked))
}

unsafe extern "C" fn request_shutdown(_type: c_int, _module_number: c_int) -> c_int {
    guarded(|| host().request_end())
}

unsafe extern "C" fn module_info(module: *mut ModuleEntry) {
    guarded(|| info::print(&host().info(), module));
}

/// An `E_WARNING` of "PHP Startup".
fn warn_at_startup(text: &str) {
    let Ok(text) = CString::new(text.replace('\0', "\\0")) else { return };
    // SAFETY: PHP is starting this module; the format takes one C string.
    unsafe { php_error_docref(ptr::null(), E_WARNING as c_int, c"%s".as_ptr(), text.as_ptr()) };
}

fn sapi_name() -> &'static str {
    // SAFETY: the SAPI's module exists as long as the process, its name is static text.
    let name = unsafe { (*ext_php_rs_sapi_module()).name };
    if name.is_null() {
        return "";
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("")
}
