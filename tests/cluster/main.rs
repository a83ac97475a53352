//! Real PHP processes as the hosts of real clusters, on loopback.
//!
//! They need the module built with `--features testing`: `make test-module`. Sizes are for a small machine;
//! `EPHPM_KV_TEST_CALLS` and `EPHPM_KV_TEST_SECONDS` make them larger, `EPHPM_KV_SEED` repeats a run.

mod absence;
mod bad_network_input;
mod bad_peer;
mod checker_rejects;
mod clocks;
mod create_with_deadline;
mod disagreeing_views;
mod drift;
mod folding;
mod fork_and_exit;
mod joins;
mod locks;
mod many_nodes;
mod members;
mod one_count;
mod owner_killed;
mod planted_faults;
mod processes;
mod remote_calls;

mod rolling_upgrade;
mod settings;
mod soak;
mod support;
mod timeout_safety;
mod values;
