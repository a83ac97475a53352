//! What every test here uses: hosts made of PHP processes, a relay that misbehaves on demand, and the checker.

pub mod accounts;
pub mod checker;
pub mod cluster;
pub mod control;
pub mod host;
pub mod load;
pub mod ports;
pub mod relay;

use std::time::{Duration, Instant};

/// The number in an environment variable, or the default.
pub fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// The seed of this run, printed so that a failure can be repeated with `EPHPM_KV_SEED`.
pub fn seed() -> u64 {
    let seed = number("EPHPM_KV_SEED", now_ns() % 1_000_000);
    println!("seed: EPHPM_KV_SEED={seed}");
    seed
}

/// `CLOCK_MONOTONIC` in nanoseconds: what PHP's `hrtime(true)` reads.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Polls until `probe` gives a value; panics with the last reason after `limit`.
pub fn poll<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match probe() {
            Ok(value) => return value,
            Err(reason) if Instant::now() >= deadline => panic!("{what}: not within {limit:?}: {reason}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
