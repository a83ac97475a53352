//! How much memory the processes of this container may have: a segment larger than that is no use.

use std::path::{Path, PathBuf};

/// Limits beyond this are none (version 1 says "no limit" with a large number).
const UNLIMITED: u64 = 1 << 60;

/// The smallest memory limit of this process's control groups in bytes; `None`: there is none, or it cannot be told.
pub fn memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = files(&groups).into_iter().filter_map(|file| std::fs::read_to_string(file).ok());
    limits.filter_map(|text| text.trim().parse().ok()).filter(|limit| *limit < UNLIMITED).min()
}

/// Where the limits of these groups (as `/proc/self/cgroup` lists them) and of those above them stand. In a container
/// the path may be the host's: then only the top exists here, and that is the container's own.
fn files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (mount, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            v1 if v1.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|part| Path::new(mount).join(part).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_above_limit_as_well() {
        let found = files("0::/system.slice/php-fpm.service\n");
        let expected = ["system.slice/php-fpm.service/memory.max", "system.slice/memory.max", "memory.max"];
        assert_eq!(found, expected.map(|file| Path::new("/sys/fs/cgroup").join(file)));
        let found = files("5:cpu,cpuacct:/a\n4:memory:/docker/1f\n1:name=systemd:/\n0::/\n");
        let expected = ["memory/docker/1f/memory.limit_in_bytes", "memory/docker/memory.limit_in_bytes"];
        assert_eq!(found[..2], expected.map(|file| Path::new("/sys/fs/cgroup").join(file)));
        assert_eq!(found.last(), Some(&PathBuf::from("/sys/fs/cgroup/memory.max")));
        assert!(files("nonsense\n").is_empty());
    }
}
