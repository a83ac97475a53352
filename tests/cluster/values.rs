//! Values of any size: who keeps them, who reads them, and that nobody ever reads a stale one.

use std::time::{Duration, Instant};

use crate::support::cluster::{Cluster, specs};
use crate::support::host::{Host, Spec, Value};
use crate::support::{poll, seed};
use tempfile::TempDir;

/// How long copies may take to agree when nothing is wrong, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Longer than `small_value_max`.
const LARGE: usize = 20_000;

/// A cluster whose calls have more time than usual: a megabyte takes a while on a machine that does other things too.
fn cluster(count: usize, settings: &[(&str, &str)]) -> Cluster {
    Cluster::with(count, |spec| {
        spec.ini.insert("timeout_ms".into(), "1000".into());
        for (name, value) in settings {
            spec.ini.insert((*name).into(), (*value).into());
        }
    })
}

/// Sets `key` to `len` times the byte.
fn set(host: &mut Host, key: &str, byte: char, len: usize, ttl: f64) {
    let code =
        format!("echo json_encode([ephpm_kv_set('{key}', str_repeat('{byte}', {len}), {ttl}), ephpm_kv_degraded()]);");
    assert_eq!(host.run(&code), "[true,false]", "{}: set {key}", host.spec.name);
}

/// What a host reads of a key: "`len` `byte`" if it is all the same byte, "absent", or what else it is; and whether it
/// was degraded.
fn read(host: &mut Host, key: &str) -> (String, bool) {
    let code = format!(
        "$value = ephpm_kv_get('{key}'); $degraded = (int)ephpm_kv_degraded();
         echo $degraded, $value === null ? 'absent' : (count_chars($value, 1) === [ord($value[0]) => strlen($value)]
             ? strlen($value) . ' ' . $value[0] : 'mixed');"
    );
    let text = host.run(&code);
    (text[1..].to_owned(), text.starts_with('1'))
}

/// Waits until every host reads this of the key, not degraded.
fn wait_read(cluster: &mut Cluster, key: &str, expected: &str) {
    poll(&format!("{key} is {expected} everywhere"), SOON, || {
        for host in &mut cluster.hosts {
            let found = read(host, key);
            if found != (expected.to_owned(), false) {
                return Err(format!("{}: {found:?}", host.spec.name));
            }
        }
        Ok(())
    });
}

/// Waits until no host has to ask another for what it does not know.
fn wait_complete(cluster: &mut Cluster) {
    for host in &mut cluster.hosts {
        let name = host.spec.name.clone();
        poll(&format!("{name} is complete"), SOON, || match host.metric("ephpm_kv_complete") {
            1.0 => Ok(()),
            other => Err(other.to_string()),
        });
    }
}

/// How many bytes of memory each host uses.
fn memory(cluster: &mut Cluster) -> Vec<u64> {
    cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_memory_bytes") as u64).collect()
}

fn call_bool(host: &mut Host, function: &str, arguments: &[Value]) -> bool {
    match host.call(function, arguments).value {
        Value::Bool(result) => result,
        other => panic!("{}: {function} gave {other:?}", host.spec.name),
    }
}

fn expire(host: &mut Host, key: &str, ttl: f64) {
    assert!(call_bool(host, "ephpm_kv_expire", &[Value::text(key), Value::Float(ttl)]), "expire {key}");
}

#[test]
fn every_host_reads_a_large_value_and_only_its_replicas_keep_it() {
    let mut cluster = cluster(5, &[]);
    wait_complete(&mut cluster);
    let before = memory(&mut cluster);
    for number in 0..20 {
        set(&mut cluster.hosts[number % 5], &format!("page:{number}"), 'a', 100_000, 0.0);
    }
    for number in 0..20 {
        // The writer reads its own write at once.
        assert_eq!(read(&mut cluster.hosts[number % 5], &format!("page:{number}")), ("100000 a".into(), false));
        wait_read(&mut cluster, &format!("page:{number}"), "100000 a");
    }
    let after = memory(&mut cluster);
    let copies = after.iter().zip(&before).map(|(after, before)| (after - before) as f64).sum::<f64>() / 2_000_000.0;
    println!("{copies:.2} copies of each value: {before:?} -> {after:?}");
    assert!((2.9..3.6).contains(&copies), "{copies} copies: an owner and two replicas");
    cluster.quit();
}

#[test]
fn a_megabyte_with_a_deadline_is_gone_everywhere_on_time_and_expire_extends_it_everywhere() {
    for count in [3, 5] {
        let mut cluster = cluster(count, &[("memory", "32M")]);
        wait_complete(&mut cluster);
        let begun = Instant::now();
        set(&mut cluster.hosts[0], "short", 's', 1 << 20, 1.0);
        set(&mut cluster.hosts[1], "longer", 'l', 1 << 20, 1.0);
        expire(&mut cluster.hosts[2], "longer", 60.0);
        wait_read(&mut cluster, "longer", "1048576 l");
        std::thread::sleep(Duration::from_millis(1_000).saturating_sub(begun.elapsed()));
        // A replica's clock starts when the copy comes: by the age of the copy it may be late.
        std::thread::sleep(Duration::from_millis(200));
        for host in &mut cluster.hosts {
            assert_eq!(read(host, "short"), ("absent".into(), false), "{}", host.spec.name);
            assert!(!call_bool(host, "ephpm_kv_exists", &[Value::text("short")]));
            assert_eq!(read(host, "longer"), ("1048576 l".into(), false), "{}", host.spec.name);
            match host.call("ephpm_kv_pttl", &[Value::text("longer")]).value {
                Value::Int(left) => assert!((40_000..=60_000).contains(&left), "{left} ms left"),
                other => panic!("{other:?}"),
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(40));
        // Without a deadline, and with one again.
        expire(&mut cluster.hosts[0], "longer", 0.0);
        let last = cluster.hosts.len() - 1;
        poll("no deadline anywhere", SOON, || {
            let ttls: Vec<Value> = cluster
                .hosts
                .iter_mut()
                .map(|host| host.call("ephpm_kv_ttl", &[Value::text("longer")]).value)
                .collect();
            if ttls.iter().all(|ttl| *ttl == Value::Int(-1)) { Ok(()) } else { Err(format!("{ttls:?}")) }
        });
        expire(&mut cluster.hosts[last], "longer", 0.5);
        wait_read(&mut cluster, "longer", "absent");
        cluster.quit();
    }
}

#[test]
fn what_grows_shrinks_or_goes_leaves_no_stale_copy() {
    for count in [3, 5] {
        let mut cluster = cluster(count, &[]);
        wait_complete(&mut cluster);
        for number in 0..6 {
            let key = format!("size:{number}");
            let sizes = [10, LARGE, 30, LARGE * 2, LARGE, 511, 513, 512, 40_000];
            for (turn, len) in sizes.into_iter().enumerate() {
                let byte = char::from(b'a' + turn as u8);
                set(&mut cluster.hosts[(number + turn) % count], &key, byte, len, 0.0);
                let expected = format!("{len} {byte}");
                assert_eq!(read(&mut cluster.hosts[(number + turn) % count], &key), (expected.clone(), false));
                wait_read(&mut cluster, &key, &expected);
            }
            // A counter, too, and back.
            let counter = cluster.hosts[number % count].call("ephpm_kv_set", &[Value::text(&key), Value::text("7")]);
            assert_eq!(counter.value, Value::Bool(true));
            assert_eq!(cluster.hosts[(number + 1) % count].incr(&key, 1), (8, false));
            wait_read(&mut cluster, &key, "1 8");
            set(&mut cluster.hosts[0], &key, 'z', LARGE, 0.0);
            wait_read(&mut cluster, &key, &format!("{LARGE} z"));
            let deleted = cluster.hosts[(number + 2) % count].call("ephpm_kv_del", &[Value::text(&key)]);
            assert_eq!((deleted.value, deleted.degraded), (Value::Int(1), false));
            wait_read(&mut cluster, &key, "absent");
        }
        cluster.quit();
    }
}

#[test]
fn set_then_delete_in_quick_pairs_leaves_nothing_on_any_host() {
    let mut cluster = cluster(3, &[]);
    wait_complete(&mut cluster);
    let code = "$failed = 0;
        for ($i = 0; $i < 5000; $i++) {
            $value = $i % 5 === 0 ? str_repeat('x', 2000) : 'x';
            $failed += (int)!ephpm_kv_set(\"pair:$i\", $value) + (int)(ephpm_kv_del(\"pair:$i\") !== 1);
        }
        echo $failed;";
    assert_eq!(cluster.hosts[0].run(code), "0");
    let count =
        "$there = 0; for ($i = 0; $i < 5000; $i++) { $there += (int)ephpm_kv_exists(\"pair:$i\"); } echo $there;";
    for host in &mut cluster.hosts {
        let name = host.spec.name.clone();
        poll(&format!("{name} has none of them"), SOON, || match host.run(count).as_str() {
            "0" => Ok(()),
            other => Err(other.to_owned()),
        });
    }
    cluster.quit();
}

#[test]
fn concurrent_sets_on_all_hosts_leave_the_same_value_everywhere() {
    let seed = seed();
    let mut cluster = cluster(3, &[]);
    wait_complete(&mut cluster);
    let dir = cluster.path().to_owned();
    // Each host's child sets the same keys to values of its own, of changing sizes.
    for (index, host) in cluster.hosts.iter_mut().enumerate() {
        let done = dir.join(format!("done-{index}"));
        let code = format!(
            "$pid = pcntl_fork();
             if ($pid === 0) {{
                 mt_srand({seed} + {index});
                 for ($i = 0; $i < 600; $i++) {{
                     $len = [1, 100, 600, 5000, 50000][mt_rand(0, 4)];
                     ephpm_kv_set('same:' . mt_rand(0, 9), str_repeat(chr(97 + mt_rand(0, 25)), $len));
                     if (mt_rand(0, 9) === 0) {{ ephpm_kv_del('same:' . mt_rand(0, 9)); }}
                 }}
                 touch('{}');
                 pcntl_exec('/bin/true');
             }}
             echo $pid > 0 ? 'ok' : 'no';",
            done.display()
        );
        assert_eq!(host.run(&code), "ok");
    }
    poll("all have set", Duration::from_secs(60), || {
        let done = (0..3).filter(|index| dir.join(format!("done-{index}")).exists()).count();
        if done == 3 { Ok(()) } else { Err(format!("{done} of 3")) }
    });
    for number in 0..10 {
        let key = format!("same:{number}");
        poll(&format!("{key} is the same everywhere"), SOON, || {
            let found: Vec<(String, bool)> = cluster.hosts.iter_mut().map(|host| read(host, &key)).collect();
            if found.iter().all(|one| *one == found[0] && !one.1) { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }
    cluster.quit();
}

/// Sets large values owned by `owner` and waits until its replicas must have them.
fn set_owned(cluster: &mut Cluster, owner: &str, prefix: &str, count: usize) -> Vec<String> {
    let keys = cluster.keys_owned_by(owner, prefix, count);
    for (number, key) in keys.iter().enumerate() {
        let hosts = cluster.hosts.len();
        set(&mut cluster.hosts[number % hosts], key, 'v', LARGE, 600.0);
    }
    for key in &keys {
        wait_read(cluster, key, &format!("{LARGE} v"));
    }
    poll("replicated", SOON, || {
        let lag: f64 = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_replication_lag_seconds")).sum();
        if lag == 0.0 { Ok(()) } else { Err(format!("{lag} s")) }
    });
    std::thread::sleep(Duration::from_millis(100));
    keys
}

#[test]
fn a_large_value_survives_the_kill_of_its_owner_and_an_orderly_leave() {
    for count in [3, 5] {
        let mut cluster = cluster(count, &[]);
        wait_complete(&mut cluster);
        let victim = format!("host{}", count - 1);
        let keys = set_owned(&mut cluster, &victim, "kept", 20);
        let spec = cluster.hosts.pop().expect("the owner").kill();
        for key in &keys {
            wait_read(&mut cluster, key, &format!("{LARGE} v"));
            poll("another host owns it", SOON, || match cluster.hosts[0].owner(key) {
                owner if owner == victim => Err(owner),
                _ => Ok(()),
            });
        }
        // Back again; then it leaves in order.
        cluster.hosts.push(Host::start(&spec));
        cluster.wait_ready();
        for key in &keys {
            wait_read(&mut cluster, key, &format!("{LARGE} v"));
        }
        poll("it owns them again", SOON, || {
            let owners: Vec<String> = keys.iter().map(|key| cluster.hosts[0].owner(key)).collect();
            if owners.iter().all(|owner| *owner == victim) { Ok(()) } else { Err(format!("{owners:?}")) }
        });
        assert!(cluster.hosts.pop().expect("the owner").quit().success());
        for key in &keys {
            wait_read(&mut cluster, key, &format!("{LARGE} v"));
        }
        let lost: f64 = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_values_lost_total")).sum();
        assert_eq!(lost, 0.0);
        cluster.quit();
    }
}

#[test]
fn above_copy_all_max_only_replicas_have_copies_and_every_host_reads_right() {
    let mut cluster = cluster(4, &[("copy_all_max", "2"), ("replicas", "1")]);
    for number in 0..40 {
        let (counter, value) = (format!("count:{number}"), format!("small:{number}"));
        for turn in 0..4 {
            assert_eq!(cluster.hosts[turn].incr(&counter, 2), (2 * turn as i64 + 2, false), "{counter}");
        }
        set(&mut cluster.hosts[number % 4], &value, 's', 50, 0.0);
    }
    for number in 0..40 {
        cluster.wait_value(&format!("count:{number}"), 8, SOON);
        wait_read(&mut cluster, &format!("small:{number}"), "50 s");
    }
    let entries: f64 = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_entries")).sum();
    println!("{entries} entries on 4 hosts for 80 keys with one replica each");
    assert!(entries <= 200.0, "{entries} entries: everyone has everything");
    let complete: f64 = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_complete")).sum();
    assert_eq!(complete, 0.0);

    // An owner is killed: what its replica had acknowledged is there.
    std::thread::sleep(Duration::from_millis(300));
    let spec = cluster.hosts.remove(2).kill();
    for number in 0..40 {
        cluster.wait_value(&format!("count:{number}"), 8, Duration::from_secs(10));
        wait_read(&mut cluster, &format!("small:{number}"), "50 s");
    }
    for number in 0..40 {
        assert_eq!(cluster.hosts[number % 3].incr(&format!("count:{number}"), 1), (9, false));
    }
    // It joins again, and another leaves in order.
    cluster.hosts.insert(2, Host::start(&spec));
    cluster.wait_ready();
    for number in 0..40 {
        cluster.wait_value(&format!("count:{number}"), 9, SOON);
        wait_read(&mut cluster, &format!("small:{number}"), "50 s");
    }
    assert!(cluster.hosts.remove(0).quit().success());
    for number in 0..40 {
        cluster.wait_value(&format!("count:{number}"), 9, Duration::from_secs(10));
        wait_read(&mut cluster, &format!("small:{number}"), "50 s");
        assert_eq!(cluster.hosts[number % 3].incr(&format!("count:{number}"), 1), (10, false));
    }
    cluster.quit();
}

#[test]
fn more_replicas_than_hosts_are_all_hosts() {
    let mut cluster = cluster(3, &[("replicas", "10")]);
    wait_complete(&mut cluster);
    let before = memory(&mut cluster);
    for number in 0..10 {
        set(&mut cluster.hosts[number % 3], &format!("all:{number}"), 'r', 100_000, 0.0);
        wait_read(&mut cluster, &format!("all:{number}"), "100000 r");
    }
    poll("everyone has the bytes", SOON, || {
        let grown: Vec<u64> = memory(&mut cluster).iter().zip(&before).map(|(after, before)| after - before).collect();
        if grown.iter().all(|grown| *grown >= 1_000_000) { Ok(()) } else { Err(format!("{grown:?}")) }
    });
    cluster.quit();
}

#[test]
fn a_value_of_one_byte_too_many_is_refused_and_changes_nothing() {
    let mut cluster = cluster(3, &[("value_max", "64K")]);
    for number in 0..6 {
        let key = format!("limit:{number}");
        set(&mut cluster.hosts[0], &key, 'm', 65_536, 0.0);
        let printed = cluster.hosts[1].run(&format!(
            "try {{ ephpm_kv_set('{key}', str_repeat('n', 65537)); }} catch (ValueError $error) {{ echo 'refused'; }}
             echo ephpm_kv_append('{key}', '!') === false ? ', and no room for more' : 'appended';"
        ));
        assert!(printed.starts_with("refused") && printed.ends_with(", and no room for more"), "{printed}");
        wait_read(&mut cluster, &key, "65536 m");
    }
    cluster.quit();
}

/// Fills `host` with counters, which never give way.
fn fill(host: &mut Host, count: usize) {
    let code = format!(
        "$ok = 0; for ($i = 0; $i < {count}; $i++) {{ $ok += (int)(ephpm_kv_incr(\"fill:$i\") === 1); }} echo $ok;"
    );
    assert_eq!(host.run(&code), count.to_string());
}

#[test]
fn a_host_too_small_for_what_its_peers_hold_says_so_and_its_calls_are_right() {
    let dir = TempDir::new().expect("a directory");
    let mut specs: Vec<Spec> = specs(3, dir.path());
    specs.iter_mut().for_each(|spec| {
        spec.ini.insert("timeout_ms".into(), "1000".into());
    });
    specs[2].ini.insert("memory".into(), "4M".into());
    let mut hosts: Vec<Host> = specs[..2].iter().map(Host::start).collect();
    for host in &mut hosts {
        host.call("ephpm_kv_get", &[Value::text("warm")]);
    }
    hosts.iter_mut().for_each(|host| host.wait_ready(2));
    fill(&mut hosts[0], 60_000);
    set(&mut hosts[1], "value", 'v', 100_000, 0.0);
    let mut small = Host::start(&specs[2]);
    let reason = poll("the small host says why it is not ready", Duration::from_secs(20), || {
        small.call("ephpm_kv_get", &[Value::text("warm")]);
        let info = small.info();
        let told = info.state == "joining" && info.reason.contains("ephpm_kv.memory");
        if told { Ok(info.reason) } else { Err(format!("{info:?}")) }
    });
    println!("{reason}");
    assert!(small.metric("ephpm_kv_memory_full_total") > 0.0);
    assert!(specs[2].stderr().contains("no room for what peer owns"), "{}", specs[2].stderr());
    // Its own calls go to the owners, as soon as it has met them.
    let probe = "$reached = 0; for ($i = 0; $i < 20; $i++) { ephpm_kv_get(\"probe:$i\"); $reached += (int)!ephpm_kv_degraded(); } echo $reached;";
    poll("the small host reaches the owners", SOON, || match small.run(probe) {
        reached if reached == "20" => Ok(()),
        reached => Err(reached),
    });
    for number in 0..200 {
        let key = format!("fill:{number}");
        assert_eq!(small.incr(&key, 1), (2, false), "{key}");
        assert_eq!(small.get(&key), 2);
    }
    assert_eq!(read(&mut small, "value"), ("100000 v".into(), false));
    assert_eq!(read(&mut small, "nothing"), ("absent".into(), false));
    assert_eq!(small.call("ephpm_kv_ttl", &[Value::text("value")]).value, Value::Int(-1));
    set(&mut small, "mine", 'm', 30_000, 0.0);
    poll("the others read it", SOON, || match read(&mut hosts[0], "mine") {
        (found, false) if found == "30000 m" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(small.quit().success());
    for host in hosts {
        assert!(host.quit().success());
    }
}

#[test]
fn a_client_reads_large_values_of_the_owners() {
    let dir = TempDir::new().expect("a directory");
    let mut specs = specs(4, dir.path());
    specs.iter_mut().for_each(|spec| {
        spec.ini.insert("timeout_ms".into(), "1000".into());
    });
    specs[3].ini.insert("role".into(), "client".into());
    let mut hosts: Vec<Host> = specs.iter().map(Host::start).collect();
    for host in &mut hosts {
        host.call("ephpm_kv_get", &[Value::text("warm")]);
    }
    hosts.iter_mut().for_each(|host| host.wait_ready(4));
    for number in 0..20 {
        let key = format!("page:{number}");
        set(&mut hosts[number % 4], &key, 'c', 200_000, 0.0);
        poll("the client reads it", SOON, || match read(&mut hosts[3], &key) {
            (found, false) if found == "200000 c" => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    let used = hosts[3].metric("ephpm_kv_memory_bytes");
    assert!(used < 2_000_000.0, "the client keeps {used} bytes");
    for host in hosts {
        assert!(host.quit().success());
    }
}

/// Starts a child of `host` that reads `keys` until `stop` exists, and then writes to `report` how many reads it made,
/// how many were degraded, and how many gave something else than `expected` although they were not.
fn read_on(host: &mut Host, keys: &[String], expected: &str, stop: &std::path::Path, report: &std::path::Path) {
    let code = format!(
        "$pid = pcntl_fork();
         if ($pid === 0) {{
             pcntl_alarm(120);
             $keys = explode(',', '{keys}');
             $reads = $degraded = $wrong = 0; $examples = [];
             while (!file_exists('{stop}')) {{
                 $key = $keys[mt_rand(0, count($keys) - 1)];
                 $value = ephpm_kv_get($key);
                 $was = ephpm_kv_degraded();
                 $reads++;
                 $degraded += (int)$was;
                 if ($value !== str_repeat('v', {expected}) && !($was && $value === null)) {{
                     $wrong++;
                     $examples[] = $key . ' ' . ($value === null ? 'absent' : strlen($value)) . ' ' . (int)$was;
                 }}
                 usleep(200);
             }}
             file_put_contents('{report}.new', \"$reads $degraded $wrong \" . implode(', ', array_slice($examples, 0, 5)));
             rename('{report}.new', '{report}');
             pcntl_exec('/bin/true');
         }}
         echo $pid > 0 ? 'ok' : 'no';",
        keys = keys.join(","),
        stop = stop.display(),
        report = report.display(),
    );
    assert_eq!(host.run(&code), "ok");
}

#[test]
fn no_read_is_wrong_while_owners_change_by_kills_leaves_and_joins() {
    for copy_all_max in ["16", "3"] {
        let mut cluster = cluster(4, &[("copy_all_max", copy_all_max), ("timeout_ms", "200")]);
        let keys: Vec<String> = (0..40).map(|number| format!("steady:{number}")).collect();
        for key in &keys {
            set(&mut cluster.hosts[0], key, 'v', LARGE, 0.0);
        }
        for key in &keys {
            wait_read(&mut cluster, key, &format!("{LARGE} v"));
        }
        std::thread::sleep(Duration::from_millis(200));
        let dir = cluster.path().to_owned();
        let stop = dir.join("stop");
        for index in 0..3 {
            let report = dir.join(format!("report-{index}"));
            read_on(&mut cluster.hosts[index], &keys, &LARGE.to_string(), &stop, &report);
        }
        for turn in 0..4 {
            let host = cluster.hosts.pop().expect("host3");
            let spec = host.spec.clone();
            if turn % 2 == 0 {
                assert!(host.quit().success());
            } else {
                host.kill();
            }
            poll("the others are alone", Duration::from_secs(10), || match cluster.hosts[0].info().members {
                3 => Ok(()),
                other => Err(other.to_string()),
            });
            std::thread::sleep(Duration::from_millis(300));
            cluster.hosts.push(Host::start(&spec));
            cluster.wait_ready();
        }
        std::fs::write(&stop, "").expect("a file");
        for index in 0..3 {
            let report = dir.join(format!("report-{index}"));
            let text = poll("the reader's report", Duration::from_secs(20), || {
                std::fs::read_to_string(&report).map_err(|error| error.to_string())
            });
            println!("copy_all_max={copy_all_max}, host{index}: reads, degraded, wrong: {text}");
            let numbers: Vec<u64> = text.split(' ').take(3).map(|number| number.parse().expect("a number")).collect();
            assert_eq!(numbers[2], 0, "{text}");
            assert!(numbers[0] > 100, "{text}");
        }
        for key in &keys {
            wait_read(&mut cluster, key, &format!("{LARGE} v"));
        }
        cluster.quit();
    }
}

#[test]
fn an_owner_killed_while_it_takes_large_values_leaves_each_old_new_or_absent_and_all_agree() {
    let seed = seed();
    let mut cluster = cluster(3, &[("timeout_ms", "200")]);
    let keys = cluster.keys_owned_by("host2", "torn", 30);
    let dir = cluster.path().to_owned();
    for key in &keys {
        set(&mut cluster.hosts[0], key, 'o', LARGE, 0.0);
    }
    for key in &keys {
        wait_read(&mut cluster, key, &format!("{LARGE} o"));
    }
    let code = format!(
        "$pid = pcntl_fork();
         if ($pid === 0) {{
             mt_srand({seed});
             $keys = explode(',', '{}');
             for ($i = 0; $i < 4000; $i++) {{
                 ephpm_kv_set($keys[mt_rand(0, count($keys) - 1)], str_repeat(chr(97 + mt_rand(0, 25)), mt_rand(600, 200000)));
             }}
             touch('{}');
             pcntl_exec('/bin/true');
         }}
         echo $pid > 0 ? 'ok' : 'no';",
        keys.join(","),
        dir.join("done").display()
    );
    assert_eq!(cluster.hosts[0].run(&code), "ok");
    std::thread::sleep(Duration::from_millis(400));
    cluster.hosts.pop().expect("host2").kill();
    poll("all is set", Duration::from_secs(60), || {
        if dir.join("done").exists() { Ok(()) } else { Err("not yet".to_owned()) }
    });
    for key in &keys {
        // Bytes that only the killed host had are waited for, for half a minute.
        poll(&format!("{key} is the same everywhere"), Duration::from_secs(45), || {
            let found: Vec<(String, bool)> = cluster.hosts.iter_mut().map(|host| read(host, key)).collect();
            let whole = found[0].0 != "mixed";
            if whole && found.iter().all(|one| *one == found[0] && !one.1) { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }
    cluster.quit();
}

#[test]
fn hosts_whose_memory_is_full_of_values_still_agree_about_each() {
    let mut cluster = cluster(3, &[("memory", "4M")]);
    wait_complete(&mut cluster);
    // Many times what fits.
    for (index, host) in cluster.hosts.iter_mut().enumerate() {
        let code = format!(
            "set_error_handler(fn() => true); $refused = 0;
             for ($i = 0; $i < 400; $i++) {{
                 $value = str_repeat('f', [100, 5000, 20000][$i % 3]);
                 $refused += (int)!ephpm_kv_set(\"full:{index}:$i\", $value);
             }}
             echo $refused;"
        );
        // Pages of one size do not become pages of another, so a large value may find no room among small ones.
        let refused: u32 = host.run(&code).parse().expect("a number");
        assert!(refused <= 40, "{refused} of 400 values were refused");
        fill_counter(host, index);
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut there = 0;
    for index in 0..3 {
        for number in 0..400 {
            let key = format!("full:{index}:{number}");
            let found = poll(&format!("{key} is the same everywhere"), Duration::from_secs(10), || {
                let found: Vec<(String, bool)> = cluster.hosts.iter_mut().map(|host| read(host, &key)).collect();
                if found.iter().all(|one| *one == found[0] && !one.1) {
                    Ok(found[0].0.clone())
                } else {
                    Err(format!("{found:?}"))
                }
            });
            let whole = format!("{} f", [100, 5_000, 20_000][number % 3]);
            assert!(found == whole || found == "absent", "{key}: {found}");
            there += usize::from(found == whole);
        }
        cluster.wait_value(&format!("counter:{index}"), 500, SOON);
    }
    println!("{there} of 1200 values are left");
    assert!(there > 100);
    cluster.quit();
}

/// A counter that lives through all of it.
fn fill_counter(host: &mut Host, index: usize) {
    let code = format!("for ($i = 0; $i < 500; $i++) {{ $last = ephpm_kv_incr(\"counter:{index}\"); }} echo $last;");
    assert_eq!(host.run(&code), "500");
}
