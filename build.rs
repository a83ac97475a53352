//! Link arguments of the module.

fn main() {
    // The node's thread outlives dlclose() at PHP's exit: without this, 15 of 40 exits crashed.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
