//! PHP's other servers, and scripts on the command line, as the hosts of real clusters on loopback.
//!
//! They need Apache with mod_php and the module built with `--features testing`: `make test-module`. Sizes are for a
//! small machine; `EPHPM_KV_TEST_SECONDS` and `EPHPM_KV_RELOADS` make them larger. What needs root says so and ends.

#[allow(dead_code, reason = "the tests of tests/fpm use the rest of it")]
#[path = "../fpm/support/mod.rs"]
mod hosts;
#[allow(dead_code, reason = "the tests of tests/cluster use the rest of it")]
#[path = "../cluster/support/mod.rs"]
mod shared;

mod apache;
mod attach;
mod cli_server;
mod forks;
mod refused;
mod scripts;
mod socket_file;
mod support;
