//! `examples/` on three hosts: what people build with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::shared::host::root;
use crate::shared::poll;
use crate::support::client::{Client, Request};
use crate::support::fpm::Fpm;
use crate::support::{plans, ready, start_all};
use tempfile::TempDir;

/// Three hosts with OPcache that never looks at files again, and a directory that their workers can read.
fn three_hosts() -> (Vec<Fpm>, Vec<Client>, TempDir) {
    let lines = ["zend_extension=opcache.so", "opcache.validate_timestamps=0", "opcache.file_update_protection=0"];
    let plans: Vec<_> = plans(3).into_iter().map(|plan| plan.php(&lines)).collect();
    let hosts = start_all(&plans);
    let clients: Vec<Client> = hosts.iter().map(|host| host.client(0)).collect();
    ready(&clients, 3);
    let dir = TempDir::new().expect("a directory");
    for example in fs::read_dir(root().join("examples")).expect("examples").flatten() {
        fs::copy(example.path(), dir.path().join(example.file_name())).expect("a copy");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    (hosts, clients, dir)
}

fn request(script: &str, examples: &Path) -> Request {
    Request::new(script).arg("examples", examples.display())
}

#[test]
fn a_session_goes_on_at_another_host_and_lives_as_long_as_it_is_used() {
    let (_hosts, clients, dir) = three_hosts();
    let visit = |client: &Client, id: Option<&str>, arguments: &[(&str, &str)]| {
        let mut request = request("session.php", dir.path());
        for (name, value) in id.map(|id| ("id", id)).iter().chain(arguments) {
            request = request.arg(name, value);
        }
        let body = client.body(request);
        let lines: Vec<String> = body.lines().map(str::to_owned).collect();
        assert_eq!((lines.len(), lines[3].as_str()), (4, "0"), "{body}");
        (lines[0].clone(), lines[1].clone(), lines[2].parse::<i64>().expect("milliseconds"))
    };
    let (id, before, _) = visit(&clients[0], None, &[("lifetime", "60"), ("add", "apple")]);
    assert_eq!(before, "");
    for (number, client) in clients.iter().chain(&clients).enumerate() {
        let add = format!("item{number}");
        let (same, before, left) = visit(client, Some(&id), &[("lifetime", "60"), ("add", &add)]);
        assert_eq!((&same, before.split(' ').count()), (&id, number + 1), "{before}");
        assert!((1..=60_000).contains(&left), "{left}");
    }
    // A request that changes nothing moves the deadline all the same.
    let (_, _, left) = visit(&clients[1], Some(&id), &[("lifetime", "600")]);
    assert!((500_000..=600_000).contains(&left), "{left}");
    // An id that nobody gave out is not taken.
    let (other, before, _) = visit(&clients[2], Some("made-up"), &[("lifetime", "60")]);
    assert_eq!((other != "made-up", before.as_str()), (true, ""));
    // The end of one, for all.
    visit(&clients[2], Some(&id), &[("lifetime", "60"), ("end", "1")]);
    for client in &clients {
        let (other, before, _) = visit(client, Some(&id), &[("lifetime", "60")]);
        assert_eq!((other != id, before.as_str()), (true, ""), "{}", client.name);
    }
    // One that is not used any more ends by itself.
    let (id, _, _) = visit(&clients[0], None, &[("lifetime", "1"), ("add", "apple")]);
    poll("the session ends", Duration::from_secs(10), || {
        let held = clients[1].body(Request::ask("get").arg("keys", format!("session:{id}")));
        if held == "0" { Ok(()) } else { Err(held) }
    });
}

#[test]
fn one_host_raises_the_version_and_every_host_compiles_anew() {
    let (_hosts, clients, dir) = three_hosts();
    let code: PathBuf = dir.path().join("code.php");
    let says = |client: &Client, raise: bool| {
        let request = request("version.php", dir.path()).arg("code", code.display());
        client.body(if raise { request.arg("raise", 1) } else { request })
    };
    let write = |text: &str| {
        fs::write(&code, format!("<?php return '{text}';")).expect("code");
        fs::set_permissions(&code, fs::Permissions::from_mode(0o644)).expect("permissions");
    };
    write("one");
    for client in clients.iter().chain(&clients) {
        assert_eq!(says(client, false), "one");
    }
    for text in ["two", "three"] {
        let before = says(&clients[0], false);
        write(text);
        for client in clients.iter().chain(&clients) {
            assert_eq!(says(client, false), before, "{}: what is compiled stays", client.name);
        }
        says(&clients[1], true);
        for client in &clients {
            poll(&format!("{} says {text}", client.name), Duration::from_secs(10), || {
                let said = says(client, false);
                if said == text { Ok(()) } else { Err(said) }
            });
        }
    }
}

#[test]
fn a_lock_is_held_by_one_process_of_all_hosts() {
    let (_hosts, clients, dir) = three_hosts();
    let ask = |client: &Client, what: &str| client.body(request("lock.php", dir.path()).arg("do", what).arg("ttl", 60));
    let (rounds, threads) = (10, 2);
    let total: i64 = std::thread::scope(|scope| {
        let counting: Vec<_> = clients
            .iter()
            .flat_map(|client| std::iter::repeat_n(client, threads))
            .map(|client| {
                let client = client.clone().within(Duration::from_secs(60));
                let count = request("lock.php", dir.path()).arg("do", "count").arg("n", rounds);
                scope.spawn(move || client.body(count).parse::<i64>().expect("a number"))
            })
            .collect();
        counting.into_iter().map(|count| count.join().expect("a count")).sum()
    });
    assert_eq!(total, (clients.len() * threads * rounds) as i64, "every one got the lock in time");
    poll("every host has the last number", Duration::from_secs(5), || {
        let said: Vec<String> = clients.iter().map(|client| ask(client, "locked")).collect();
        if said.iter().all(|text| *text == total.to_string()) { Ok(()) } else { Err(format!("{said:?}, not {total}")) }
    });
    let taken: Vec<String> = clients.iter().map(|client| ask(client, "take")).collect();
    assert_eq!(taken.iter().filter(|answer| *answer == "yes").count(), 1, "{taken:?}");
    assert_eq!(ask(&clients[1], "extend"), "[true,true,false,false]");
}
