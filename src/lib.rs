//! Counters and key-value for PHP that are right on a whole cluster, inside PHP.
//!
//! Layers, each importing only what stands below it (`tests/layers.rs` holds the code to this):
//! `php` > `bridge` > `node` > `router`, `handoff` > `replicator` > `peers` > `cluster`, `dataplane` >
//! `segment`, `store`, `placement`, `wire` > `record`, `error`, `clock`, `quiet`, `config`, `metrics`.

pub mod bridge;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod dataplane;
pub mod error;
pub mod handoff;
pub mod metrics;
pub mod node;
pub mod peers;
pub mod php;
pub mod placement;
pub mod plant;
pub mod quiet;
pub mod record;
pub mod replicator;
pub mod router;
pub mod segment;
pub mod store;
pub mod wire;
