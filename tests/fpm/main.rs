//! Real php-fpm masters as the hosts of real clusters, on loopback.
//!
//! They need php-fpm (`PHP_FPM`, default `php-fpm8.2`) and the module built with `--features testing`:
//! `make test-module`. Sizes are for a small machine; `EPHPM_KV_TEST_SECONDS`, `EPHPM_KV_KILLS`, `EPHPM_KV_RELOADS` and
//! `EPHPM_KV_STOPS` make them larger, `EPHPM_KV_SEED` repeats a run. Containers and pools of several users need root:
//! without it those tests say so and end.

#[allow(dead_code, reason = "the tests of tests/cluster use the rest of it")]
#[path = "../cluster/support/mod.rs"]
mod shared;

mod bad_surroundings;
mod closed_settings;
mod cron;
mod daemons;
mod examples;
mod kill_storm;
mod late_increments;
mod one_count;
mod orderly_end;
mod preload;
mod recycled_workers;
mod reload;
mod starts_nothing;
mod stop_and_start;
mod stuck_workers;
mod support;
mod users;
