//! Counters in the segment, over all processes of the host, and their Prometheus text.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// An operation, as `ephpm_kv_ops_total` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum OpKind {
    /// All increments and decrements.
    Incr,
    /// get, exists, ttl, pttl.
    Get,
    /// set
    Set,
    /// del, flush_all
    Del,
    /// expire
    Expire,
    /// setnx
    SetNx,
    /// append
    Append,
    /// cas
    Cas,
}

const OPS: [&str; 8] = ["incr", "get", "set", "del", "expire", "setnx", "append", "cas"];

/// How an operation was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Path {
    /// In the PHP thread, speaking for the cluster (or with no cluster configured).
    Local,
    /// By the owner, over the data plane.
    Remote,
    /// Locally, because the owner was not to be had or the answer may not be the cluster's.
    Degraded,
}

const PATHS: [&str; 3] = ["local", "remote", "degraded"];

/// Why increments were lost, as `ephpm_kv_lost_total` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lost {
    /// A share whose window was deleted or had expired at the owner.
    WindowEnded,
    /// An unresolved call that nobody could answer for.
    Unresolved,
    /// A share, copy or reply that found no room.
    MemoryFull,
}

const LOST: [&str; 3] = ["window_ended", "unresolved", "memory_full"];

/// Upper bounds in microseconds of `ephpm_kv_remote_seconds`.
const BUCKETS_US: [u64; 14] = [10, 20, 30, 50, 75, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 25_000, 50_000];

/// Processes spread over this many copies of the hot counters, so that two workers do not fight for a cache line.
const STRIPES: usize = 16;

#[repr(C, align(64))]
struct Stripe {
    ops: [[AtomicU64; PATHS.len()]; OPS.len()],
}

/// The counters. All zero is the initial state, so a fresh (zeroed) mapping is a valid block.
#[repr(C)]
pub struct Metrics {
    stripes: [Stripe; STRIPES],
    remote_buckets: [AtomicU64; BUCKETS_US.len() + 1],
    remote_us_sum: AtomicU64,
    lost: [AtomicU64; LOST.len()],
    /// `ephpm_kv_shares_merged_total`
    pub shares_merged: AtomicU64,
    /// `ephpm_kv_memory_full_total`
    pub memory_full: AtomicU64,
    /// `ephpm_kv_evictions_total`
    pub evictions: AtomicU64,
    /// `ephpm_kv_repairs_total`
    pub repairs: AtomicU64,
    /// `ephpm_kv_lock_recoveries_total`
    pub lock_recoveries: AtomicU64,
    /// `ephpm_kv_values_lost_total`
    pub values_lost: AtomicU64,
}

/// What is read at the moment of rendering rather than counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    /// Live entries in the store.
    pub entries: u64,
    /// Bytes of the segment in use.
    pub memory_bytes: u64,
    /// Live members in the view.
    pub members: u64,
    /// Shares that no owner has acknowledged.
    pub shares_pending: u64,
    /// Sum of increments whose fate is being asked after.
    pub unresolved: u64,
    /// Age of the oldest change that not every peer has acknowledged.
    pub replication_lag_ms: u64,
    /// Whether this host has every key of the cluster.
    pub complete: bool,
}

impl Metrics {
    /// Counts one operation. `stripe` is any number that differs between processes and threads.
    #[inline]
    pub fn count(&self, stripe: usize, op: OpKind, path: Path) {
        self.stripes[stripe % STRIPES].ops[op as usize][path as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Operations of this kind answered this way, so far.
    pub fn ops(&self, op: OpKind, path: Path) -> u64 {
        self.stripes.iter().map(|stripe| stripe.ops[op as usize][path as usize].load(Ordering::Relaxed)).sum()
    }

    /// Degraded operations of every kind, so far.
    pub fn degraded(&self) -> u64 {
        let degraded = |stripe: &Stripe| {
            stripe.ops.iter().map(|op| op[Path::Degraded as usize].load(Ordering::Relaxed)).sum::<u64>()
        };
        self.stripes.iter().map(degraded).sum()
    }

    /// Records how long a remote operation took.
    pub fn remote(&self, elapsed_us: u64) {
        let bucket = BUCKETS_US.iter().position(|bound| elapsed_us <= *bound).unwrap_or(BUCKETS_US.len());
        self.remote_buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.remote_us_sum.fetch_add(elapsed_us, Ordering::Relaxed);
    }

    /// Counts increments that are lost for a known reason.
    pub fn lose(&self, reason: Lost, count: u64) {
        self.lost[reason as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Lost for this reason, so far.
    pub fn lost(&self, reason: Lost) -> u64 {
        self.lost[reason as usize].load(Ordering::Relaxed)
    }

    /// The Prometheus text exposition (version 0.0.4).
    pub fn render(&self, gauges: Gauges) -> String {
        let mut out = String::with_capacity(4096);
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        header(&mut out, "ephpm_kv_ops_total", "counter", "Operations by how they were answered.");
        for (op, name) in OPS.iter().enumerate() {
            for (path, label) in PATHS.iter().enumerate() {
                let sum: u64 = self.stripes.iter().map(|stripe| load(&stripe.ops[op][path])).sum();
                let _ = writeln!(out, "ephpm_kv_ops_total{{op=\"{name}\",path=\"{label}\"}} {sum}");
            }
        }
        header(&mut out, "ephpm_kv_remote_seconds", "histogram", "Time of operations answered by another host.");
        let mut cumulative = 0;
        for (bound, cell) in BUCKETS_US.iter().zip(&self.remote_buckets) {
            cumulative += load(cell);
            let seconds = *bound as f64 / 1e6;
            let _ = writeln!(out, "ephpm_kv_remote_seconds_bucket{{le=\"{seconds}\"}} {cumulative}");
        }
        cumulative += load(&self.remote_buckets[BUCKETS_US.len()]);
        let _ = writeln!(out, "ephpm_kv_remote_seconds_bucket{{le=\"+Inf\"}} {cumulative}");
        let _ = writeln!(out, "ephpm_kv_remote_seconds_sum {}", load(&self.remote_us_sum) as f64 / 1e6);
        let _ = writeln!(out, "ephpm_kv_remote_seconds_count {cumulative}");
        header(&mut out, "ephpm_kv_lost_total", "counter", "Increments that are in no count, by reason.");
        for (cell, reason) in self.lost.iter().zip(LOST) {
            let _ = writeln!(out, "ephpm_kv_lost_total{{reason=\"{reason}\"}} {}", load(cell));
        }
        let seconds = gauges.replication_lag_ms as f64 / 1e3;
        let plain: [(&str, &str, String, &str); 14] = [
            (
                "ephpm_kv_degraded_total",
                "counter",
                self.degraded().to_string(),
                "Operations answered without the owner.",
            ),
            (
                "ephpm_kv_shares_pending",
                "gauge",
                gauges.shares_pending.to_string(),
                "Shares no owner has acknowledged.",
            ),
            (
                "ephpm_kv_unresolved",
                "gauge",
                gauges.unresolved.to_string(),
                "Sum of increments whose fate is being asked after.",
            ),
            (
                "ephpm_kv_shares_merged_total",
                "counter",
                load(&self.shares_merged).to_string(),
                "Shares merged into a count.",
            ),
            ("ephpm_kv_entries", "gauge", gauges.entries.to_string(), "Live entries in the host segment."),
            ("ephpm_kv_memory_bytes", "gauge", gauges.memory_bytes.to_string(), "Bytes of the host segment in use."),
            (
                "ephpm_kv_memory_full_total",
                "counter",
                load(&self.memory_full).to_string(),
                "Writes refused for want of memory.",
            ),
            ("ephpm_kv_evictions_total", "counter", load(&self.evictions).to_string(), "Values evicted to make room."),
            ("ephpm_kv_members", "gauge", gauges.members.to_string(), "Live members in the view, this one included."),
            (
                "ephpm_kv_replication_lag_seconds",
                "gauge",
                seconds.to_string(),
                "Age of the oldest change a peer lacks.",
            ),
            (
                "ephpm_kv_repairs_total",
                "counter",
                load(&self.repairs).to_string(),
                "Copies that differed from their owner's and were put right.",
            ),
            (
                "ephpm_kv_lock_recoveries_total",
                "counter",
                load(&self.lock_recoveries).to_string(),
                "Locks taken over from a dead process.",
            ),
            (
                "ephpm_kv_values_lost_total",
                "counter",
                load(&self.values_lost).to_string(),
                "Large values whose bytes no reachable member had.",
            ),
            (
                "ephpm_kv_complete",
                "gauge",
                u8::from(gauges.complete).to_string(),
                "1 while this host has every key, so that reads are local.",
            ),
        ];
        for (name, kind, value, help) in plain {
            header(&mut out, name, kind, help);
            let _ = writeln!(out, "{name} {value}");
        }
        out
    }
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_metric_once_with_its_value() {
        // SAFETY: every field is an atomic integer, for which all-zero is valid.
        let metrics: Box<Metrics> = unsafe { Box::new_zeroed().assume_init() };
        metrics.count(3, OpKind::Incr, Path::Remote);
        metrics.count(19, OpKind::Incr, Path::Remote);
        metrics.remote(15);
        metrics.remote(1_000_000);
        metrics.lose(Lost::Unresolved, 2);
        let text = metrics.render(Gauges { members: 3, replication_lag_ms: 12, ..Gauges::default() });
        assert!(text.contains("ephpm_kv_ops_total{op=\"incr\",path=\"remote\"} 2\n"));
        assert!(text.contains("ephpm_kv_remote_seconds_bucket{le=\"0.00002\"} 1\n"));
        assert!(text.contains("ephpm_kv_remote_seconds_bucket{le=\"+Inf\"} 2\n"));
        assert!(text.contains("ephpm_kv_lost_total{reason=\"unresolved\"} 2\n"));
        assert!(text.contains("ephpm_kv_members 3\n"));
        assert!(text.contains("ephpm_kv_replication_lag_seconds 0.012\n"));
        for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
            assert_eq!(text.matches(line).count(), 1, "{line}");
        }
    }
}
