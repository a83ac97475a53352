//! What the kernel says about processes and sockets.

use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use crate::shared::poll;

/// The name that a node's process has.
pub const NODE_COMM: &str = "ephpm_kv";

/// Every process.
fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The fields of `/proc/PID/stat` after the name, state first; none when the process is gone.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

/// It runs, and is not a zombie that waits for its parent.
pub fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] != "Z")
}

/// Its living children.
pub fn children(pid: u32) -> Vec<u32> {
    let parent = pid.to_string();
    all().into_iter().filter(|pid| stat(*pid).is_some_and(|stat| stat[1] == parent && stat[0] != "Z")).collect()
}

/// Its process group.
pub fn group(pid: u32) -> u32 {
    stat(pid).map_or(0, |fields| fields[2].parse().expect("a number"))
}

/// One field of `/proc/PID/status`; empty when the process is gone.
pub fn status(pid: u32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// A number of `/proc/PID/status`, without its unit.
pub fn status_number(pid: u32, field: &str) -> u64 {
    let text = status(pid, field);
    let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
    first.unwrap_or_else(|| panic!("{pid} has no {field}: {text}"))
}

/// The short name.
pub fn comm(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// What `ps` shows.
pub fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// The node processes of this node id.
pub fn nodes(node_id: &str) -> Vec<u32> {
    let title = format!("node {node_id}");
    all().into_iter().filter(|pid| comm(*pid) == NODE_COMM && command_line(*pid).contains(&title)).collect()
}

/// Where its descriptors lead, by number.
pub fn descriptors(pid: u32) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links: Vec<(u32, String)> = entries
        .filter_map(|entry| {
            let link = std::fs::read_link(entry.path()).ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, link.to_string_lossy().into_owned()))
        })
        .collect();
    links.sort_unstable();
    links
}

/// Inodes of the Unix sockets with this name (abstract ones begin with `@`).
pub fn unix_sockets(name: &str) -> BTreeSet<u64> {
    let table = std::fs::read_to_string("/proc/net/unix").expect("the kernel's table");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(7) == Some(&name)).map(|row| row[6].parse().expect("an inode")).collect()
}

/// TCP and UDP can be bound.
pub fn port_is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok()
}

/// Sends a signal to a process that the caller knows to be the test's.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Kills the node processes of this node id, which have sessions of their own.
pub fn kill_nodes(node_id: &str) {
    // A process of PHP's may have been about to start another.
    poll(&format!("no node of {node_id} is left"), Duration::from_secs(20), || match nodes(node_id) {
        nodes if nodes.is_empty() => Ok(()),
        nodes => {
            nodes.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
            Err(format!("{nodes:?}"))
        }
    });
}

/// Processes called `sleep` that a test has made a script start; killed when this is dropped.
pub struct Sleepers(pub Vec<u32>);

impl Sleepers {
    /// Those whose numbers the script has printed.
    pub fn read(printed: &str) -> Self {
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{printed}"));
        Self(printed.split_ascii_whitespace().map(number).collect())
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for pid in &self.0 {
            if comm(*pid) == "sleep" {
                signal(*pid, libc::SIGKILL);
            }
        }
    }
}
