//! What `ephpm_kv_info()`, `ephpm_kv_owner()`, `ephpm_kv_metrics()` and phpinfo show.

use std::sync::atomic::Ordering;

use super::host::Host;
use crate::metrics::Gauges;
use crate::placement;
use crate::record::Key;
use crate::segment::table::{NodeState, Owner, SLOTS};

/// A member, as this host's table has it.
pub struct MemberInfo {
    /// Its node id.
    pub node_id: String,
    /// The address peers dial.
    pub address: String,
    /// In the view.
    pub live: bool,
    /// Slots it owns, as this host knows it.
    pub owner_slots: u32,
    /// Owns nothing by its role.
    pub client: bool,
}

/// The state of this host.
pub struct Info {
    /// `disabled`, `alone`, `joining`, `ready` or `leaving`.
    pub state: &'static str,
    /// Why; empty when there is nothing to say.
    pub reason: String,
    /// This host's node id.
    pub node_id: String,
    /// Process that runs the node; 0: none.
    pub node_pid: u32,
    /// The members, this one included.
    pub members: Vec<MemberInfo>,
    /// Whether a cluster is configured.
    pub clustered: bool,
    /// Number of the view.
    pub epoch: u64,
    /// Bytes of the segment in use.
    pub memory_used: u64,
    /// Bytes of the segment.
    pub memory_total: u64,
    /// Live entries.
    pub entries: u64,
    /// Layout number of the segment.
    pub layout: u32,
    /// Protocol version.
    pub protocol: u16,
    /// The segment's id, hexadecimal.
    pub origin: String,
}

impl Host {
    /// Node id of the key's owner; empty while there is none.
    pub fn owner(&self, key: Key<'_>) -> String {
        let Ok(open) = self.current() else { return String::new() };
        if !open.clustered {
            return self.node_id();
        }
        let table = open.segment.table();
        match table.owner(placement::slot(key.name)) {
            Owner::Member(index) => table.member(index).node_id.get(),
            Owner::Nobody | Owner::Frozen => String::new(),
        }
    }

    fn node_id(&self) -> String {
        let Ok(open) = self.current() else { return String::new() };
        let table = open.segment.table();
        if let Some(index) = table.self_index() {
            return table.member(index).node_id.get();
        }
        match &open.starter {
            Some(starter) => starter.node_id(),
            None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// A script asks for the host's state: as good a first use as any.
    pub fn touch(&self) {
        if let Ok(open) = self.open_host() {
            open.speaks();
        }
    }

    /// The state of this host.
    pub fn info(&self) -> Info {
        let open = match self.current() {
            Ok(open) => open,
            Err(reason) => return Info::disabled(reason.to_string()),
        };
        let table = open.segment.table();
        let stats = open.store.stats();
        let mut slots = vec![0_u32; table.members.len()];
        for slot in 0..SLOTS as u16 {
            if let Owner::Member(index) = table.owner(slot) {
                slots[index as usize] += 1;
            }
        }
        let members = table
            .members
            .iter()
            .zip(slots)
            .filter(|(cell, _)| cell.presence.load(Ordering::Acquire) != 0)
            .map(|(cell, owner_slots)| MemberInfo {
                node_id: cell.node_id.get(),
                address: cell.address.get(),
                live: cell.presence.load(Ordering::Acquire) == 1,
                owner_slots,
                client: cell.client.load(Ordering::Acquire) != 0,
            })
            .collect();
        let state = match table.state() {
            NodeState::Alone => "alone",
            NodeState::Joining => "joining",
            NodeState::Ready => "ready",
            NodeState::Leaving => "leaving",
        };
        Info {
            state,
            reason: table.reason.get(),
            node_id: self.node_id(),
            node_pid: table.node_pid.load(Ordering::Acquire),
            members,
            clustered: open.clustered,
            epoch: table.epoch.load(Ordering::Acquire),
            memory_used: stats.bytes_used,
            memory_total: stats.bytes_total,
            entries: stats.entries,
            layout: crate::segment::LAYOUT,
            protocol: crate::wire::hello::protocol(),
            origin: format!("{:016x}", open.segment.origin()),
        }
    }

    /// Prometheus text of this host.
    pub fn metrics(&self) -> String {
        let Ok(open) = self.current() else { return String::new() };
        let table = open.segment.table();
        let stats = open.store.stats();
        open.segment.metrics().render(Gauges {
            complete: table.is_complete(),
            entries: stats.entries,
            memory_bytes: stats.bytes_used,
            members: u64::from(table.members_live.load(Ordering::Acquire)),
            shares_pending: table.shares_pending.load(Ordering::Relaxed),
            unresolved: table.unresolved.load(Ordering::Relaxed),
            replication_lag_ms: table.replication_lag_ms.load(Ordering::Relaxed),
        })
    }
}

impl Info {
    fn disabled(reason: String) -> Self {
        Self {
            state: "disabled",
            reason,
            node_id: String::new(),
            node_pid: 0,
            members: Vec::new(),
            clustered: false,
            epoch: 0,
            memory_used: 0,
            memory_total: 0,
            entries: 0,
            layout: crate::segment::LAYOUT,
            protocol: crate::wire::hello::protocol(),
            origin: String::new(),
        }
    }
}
