//! `ephpm_kv.socket` as a path.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::hosts::is_root;
use crate::shared::cluster::specs;
use crate::shared::host::{Host, Spec, php};
use crate::support::facts::{Facts, UNTIL_READY, another, errors, printed};

/// A cluster of one whose processes meet at a path, in a directory that everybody may look into.
fn at_a_path(dir: &TempDir) -> (Spec, PathBuf) {
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
    let path = dir.path().join("host.sock");
    let mut spec = specs(1, dir.path()).remove(0);
    spec.ini.insert("socket".into(), path.display().to_string());
    (spec, path)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

#[test]
fn processes_meet_there_and_leave_no_file() {
    let dir = TempDir::new().expect("a directory");
    let (spec, path) = at_a_path(&dir);
    // The second time it is a file that a killed process has left.
    for round in 0..2 {
        let mut host = Host::start(&spec);
        host.wait_ready(1);
        assert!(is_socket(&path));
        let mut second = another(&host, "second");
        second.wait_ready(1);
        assert_eq!(Facts::of(&mut second), Facts::of(&mut host));
        assert_eq!((host.incr("path", 1), second.incr("path", 1)), ((1, false), (2, false)));
        if round == 0 {
            assert!(second.quit().success());
            host.kill();
            assert!(is_socket(&path), "a killed process leaves it");
        } else {
            // The one that is left serves there.
            assert!(host.quit().success());
            second.wait_ready(1);
            assert!(is_socket(&path));
            assert!(second.quit().success());
            assert!(!path.exists(), "a file is left");
        }
    }
}

#[test]
fn a_file_of_another_user_that_cannot_be_replaced_is_reported() {
    if !is_root() {
        println!("not run: another user needs root");
        return;
    }
    for mode in [0o666, 0o755] {
        let dir = TempDir::new().expect("a directory");
        let (spec, path) = at_a_path(&dir);
        drop(UnixListener::bind(&path).expect("a socket"));
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("permissions");
        let mut command = php(&spec);
        let code = format!("{UNTIL_READY} echo ephpm_kv_incr('file'), ' ', (int)ephpm_kv_degraded();");
        command.args(["-r", &code, "--", "1"]).uid(65_534).gid(65_534);
        let output = command.output().expect("php runs");
        println!("mode {mode:o}: {}", errors(&output));
        assert_eq!(printed(&output), "1 0", "mode {mode:o}: {}", errors(&output));
        assert!(errors(&output).contains(&path.display().to_string()), "{}", errors(&output));
        assert!(is_socket(&path));
    }
}
