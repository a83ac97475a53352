//! Every function on keys that another host owns: the same answers as at the owner, refusals and warnings included.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::host::{Host, Value};
use crate::support::poll;

/// Three hosts whose calls may take long, so that a busy machine degrades none of them.
fn patient() -> Cluster {
    Cluster::with(3, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    })
}

/// Runs `code` with `$k` set to a key of the host's own, to keys of others, and in a forked child; each must print
/// `expected`, wherever KEY stands for the key.
fn same_everywhere(cluster: &mut Cluster, prefix: &str, code: &str, expected: &str) {
    let names: Vec<String> = cluster.hosts.iter().map(|host| host.spec.name.clone()).collect();
    for (caller, name) in names.iter().enumerate() {
        for owner in &names {
            let keys = cluster.keys_owned_by(owner, &format!("{prefix}:{name}"), 2);
            let host = &mut cluster.hosts[caller];
            for (in_child, key) in [false, true].into_iter().zip(&keys) {
                let code = format!("$k = '{key}'; {code}");
                let printed = if in_child { host.run_in_child(&code) } else { host.run(&code) };
                let place = format!("on {name}, in a child: {in_child}, {key} owned by {owner}");
                assert_eq!(printed.replace(key.as_str(), "KEY"), expected, "{place}");
            }
        }
    }
}

#[test]
fn a_refusal_is_the_same_wherever_the_key_is_owned() {
    let mut cluster = patient();
    let code = r#"
        foreach (['abc', '1.5', '', ' 5', (string)PHP_INT_MAX] as $text) {
            echo json_encode([
                ephpm_kv_set($k, $text, 60), ephpm_kv_incr($k), ephpm_kv_degraded(), ephpm_kv_incr_by($k, 1),
                ephpm_kv_incr_ttl($k, 1, 5), ephpm_kv_decr($k, -1), ephpm_kv_incr_multi([$k => 1])[$k],
                ephpm_kv_degraded(), ephpm_kv_get($k) === $text, ephpm_kv_ttl($k),
            ]), "\n";
        }
        echo json_encode([
            ephpm_kv_set($k, (string)PHP_INT_MIN), ephpm_kv_decr($k), ephpm_kv_incr($k, PHP_INT_MIN),
            ephpm_kv_decr($k, PHP_INT_MIN), ephpm_kv_get($k) === (string)PHP_INT_MIN,
            ephpm_kv_incr($k, PHP_INT_MAX), ephpm_kv_degraded(),
        ]), "\n";
    "#;
    let line = "[true,false,false,false,false,false,false,false,true,60]\n";
    let warn = |functions: &[&str], reason: &str| -> String {
        functions.iter().map(|name| format!("Warning: ephpm_kv_{name}(): key \"KEY\": {reason}\n")).collect()
    };
    let all = ["incr", "incr_by", "incr_ttl", "decr", "incr_multi"];
    let not_an_integer = warn(&all, "the value is not an integer") + line;
    let overflow = "the result would overflow a 64-bit integer";
    let expected = not_an_integer.repeat(4)
        + &warn(&all, overflow)
        + line
        + &warn(&["decr", "incr", "decr"], overflow)
        + "[true,false,false,false,true,-1,false]\n";
    same_everywhere(&mut cluster, "refusal", code, &expected);
    cluster.quit();
}

#[test]
fn a_wrong_argument_never_leaves_the_host() {
    let mut cluster = patient();
    let before: f64 = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_entries")).sum();
    let code = r#"
        $calls = [
            fn() => ephpm_kv_incr_ttl($k, 1, 0), fn() => ephpm_kv_incr_ttl($k, 1, NAN), fn() => ephpm_kv_set($k, 'v', -1),
            fn() => ephpm_kv_expire($k, 1e300), fn() => ephpm_kv_incr_multi([$k => 1, 'x' => '1']),
            fn() => ephpm_kv_incr_multi([$k => 1, '' => 1]), fn() => ephpm_kv_set($k, str_repeat('v', (1 << 20) + 1)),
            fn() => ephpm_kv_incr(str_pad($k, 1025)),
        ];
        foreach ($calls as $call) {
            try { echo json_encode($call()), "\n"; } catch (ValueError | TypeError $e) { echo get_class($e), ' '; }
        }
        echo json_encode([ephpm_kv_exists($k), ephpm_kv_expire($k, 60), ephpm_kv_del($k)]);
    "#;
    let expected =
        "ValueError ValueError ValueError ValueError TypeError ValueError ValueError ValueError [false,false,0]";
    same_everywhere(&mut cluster, "wrong", code, expected);
    let after: f64 = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_entries")).sum();
    assert_eq!(before, after, "nothing was created");
    cluster.quit();
}

#[test]
fn every_function_reads_its_own_writes_wherever_the_key_is_owned() {
    let mut cluster = patient();
    let code = r#"
        $degraded = 0;
        $seen = [];
        $see = function (mixed ...$values) use (&$seen, &$degraded) {
            $degraded += (int)ephpm_kv_degraded();
            $seen[] = $values;
        };
        $see(ephpm_kv_exists($k), ephpm_kv_get($k), ephpm_kv_ttl($k), ephpm_kv_pttl($k), ephpm_kv_del($k), ephpm_kv_expire($k, 5));
        $see(ephpm_kv_set($k, "v\0\xff"), ephpm_kv_get($k) === "v\0\xff", ephpm_kv_ttl($k), ephpm_kv_exists($k));
        $see(ephpm_kv_set($k, '', 60), ephpm_kv_get($k), ephpm_kv_ttl($k));
        $see(ephpm_kv_del($k), ephpm_kv_get($k), ephpm_kv_exists($k), ephpm_kv_ttl($k), ephpm_kv_del($k));
        $see(ephpm_kv_incr($k, 5), ephpm_kv_get($k), ephpm_kv_ttl($k));
        $see(ephpm_kv_expire($k, 30), ephpm_kv_ttl($k), ephpm_kv_get($k), ephpm_kv_incr($k), ephpm_kv_ttl($k));
        $see(ephpm_kv_expire($k, 0), ephpm_kv_ttl($k), ephpm_kv_get($k));
        $see(ephpm_kv_set($k, '41', 60), ephpm_kv_incr($k), ephpm_kv_decr($k, 2), ephpm_kv_incr_by($k, 3), ephpm_kv_ttl($k));
        $see(ephpm_kv_set($k, '7'), ephpm_kv_ttl($k), ephpm_kv_incr($k, 0));
        $see(ephpm_kv_del($k), ephpm_kv_incr_ttl($k, 5, 60), ephpm_kv_ttl($k), ephpm_kv_incr_ttl($k, 5, 600), ephpm_kv_ttl($k));
        $see(ephpm_kv_expire($k, 0.05), ephpm_kv_pttl($k) <= 60, ephpm_kv_get($k));
        for ($until = microtime(true) + 5; ephpm_kv_exists($k) && microtime(true) < $until; usleep(1000));
        $see(ephpm_kv_get($k), ephpm_kv_ttl($k), ephpm_kv_expire($k, 5), ephpm_kv_del($k), ephpm_kv_incr_ttl($k, 3, 9), ephpm_kv_ttl($k));
        echo json_encode($seen), $degraded;
    "#;
    let expected = concat!(
        r#"[[false,null,-2,-2,0,false],[true,true,-1,true],[true,"",60],[1,null,false,-2,0],[5,"5",-1],"#,
        r#"[true,30,"5",6,30],[true,-1,"6"],[true,42,40,43,60],[true,-1,7],[1,5,60,10,60],[true,true,"10"],"#,
        r#"[null,-2,false,0,3,9]]0"#
    );
    same_everywhere(&mut cluster, "own", code, expected);
    cluster.quit();
}

#[test]
fn what_one_host_writes_every_other_reads_soon() {
    let mut cluster = patient();
    for owner in ["host0", "host1", "host2"] {
        for writer in 0..3 {
            let key = &cluster.keys_owned_by(owner, &format!("soon:{writer}"), 1)[0];
            let steps = [
                (format!("ephpm_kv_set('{key}', 'text', 60);"), r#"["text",60]"#),
                (format!("ephpm_kv_expire('{key}', 0);"), r#"["text",-1]"#),
                (format!("ephpm_kv_set('{key}', '5');"), r#"["5",-1]"#),
                (format!("ephpm_kv_expire('{key}', 90);"), r#"["5",90]"#),
                (format!("ephpm_kv_incr('{key}', 2);"), r#"["7",90]"#),
                (format!("ephpm_kv_del('{key}');"), "[null,-2]"),
                (format!("ephpm_kv_incr_ttl('{key}', 4, 50);"), r#"["4",50]"#),
            ];
            for (step, expected) in steps {
                let degraded = cluster.hosts[writer].run(&format!("{step} echo (int)ephpm_kv_degraded();"));
                assert_eq!(degraded, "0", "{step}");
                for host in &mut cluster.hosts {
                    poll(&format!("{} sees {step}", host.spec.name), Duration::from_secs(5), || {
                        match host.run(&format!("echo json_encode([ephpm_kv_get('{key}'), ephpm_kv_ttl('{key}')]);")) {
                            seen if seen == expected => Ok(()),
                            seen => Err(seen),
                        }
                    });
                }
            }
        }
    }
    cluster.quit();
}

#[test]
fn keys_of_any_bytes_travel() {
    let mut cluster = patient();
    let code = r#"
        $keys = ["\0", "a\0b", "\xff\xfe", "\xc3\x28", str_repeat("\xf0", 1024), "{}x", "{tag}\0", "\n", "\xc3\xa9"];
        foreach ($keys as $number => $key) {
            $value = ephpm_kv_incr($key, $number + 1);
            echo $value, ephpm_kv_degraded() ? ' degraded' : '', ephpm_kv_get($key) === (string)$value ? ' ' : ' unread ';
        }
    "#;
    assert_eq!(cluster.hosts[0].run(code), "1 2 3 4 5 6 7 8 9 ");
    assert_eq!(cluster.hosts[1].run_in_child(code), "2 4 6 8 10 12 14 16 18 ");
    assert_eq!(cluster.hosts[2].run(code), "3 6 9 12 15 18 21 24 27 ");
    cluster.quit();
}

#[test]
fn a_value_of_1_mib_is_set_from_anywhere_and_read_everywhere() {
    let mut cluster = patient();
    for owner in ["host0", "host1", "host2"] {
        for (writer, in_child) in [(0, false), (1, true), (2, false)] {
            let key = &cluster.keys_owned_by(owner, &format!("large:{writer}"), 1)[0];
            let code = format!(
                "$v = random_bytes(1 << 20);
                 echo json_encode([ephpm_kv_set('{key}', 'small'), ephpm_kv_set('{key}', $v, 60), ephpm_kv_degraded()]),
                     md5($v);"
            );
            let host = &mut cluster.hosts[writer];
            let printed = if in_child { host.run_in_child(&code) } else { host.run(&code) };
            let sum =
                printed.strip_prefix("[true,true,false]").unwrap_or_else(|| panic!("{key} of {owner}: {printed}"));
            let owner_index: usize = owner[4..].parse().expect("a number");
            let held = format!("echo md5((string)ephpm_kv_get('{key}')), ' ', ephpm_kv_ttl('{key}');");
            let expected = format!("{sum} 60");
            assert_eq!(cluster.hosts[owner_index].run(&held), expected, "{key} at its owner {owner}");
            for host in &mut cluster.hosts {
                poll(&format!("{} has {key}", host.spec.name), Duration::from_secs(5), || match host.run(&held) {
                    seen if seen == expected => Ok(()),
                    seen => Err(seen),
                });
            }
            // Not left there, so that all of them fit.
            assert_eq!(cluster.hosts[writer].run(&format!("echo ephpm_kv_del('{key}');")), "1");
        }
    }
    cluster.quit();
}

#[test]
fn namespaces_are_kept_apart_and_flushed_apart_between_hosts() {
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
        let namespace = if spec.name == "host2" { "other:" } else { "shop:" };
        spec.ini.insert("namespace".into(), namespace.into());
    });
    let keys: Vec<String> = (0..30).map(|number| format!("name:{number}")).collect();
    for key in &keys {
        assert_eq!(cluster.hosts[0].incr(key, 5), (5, false), "{key}");
        assert_eq!(cluster.hosts[1].incr(key, 1), (6, false), "{key}: one namespace is one count");
        assert_eq!(cluster.hosts[2].incr(key, 70), (70, false), "{key}: another namespace is another count");
        let owner = cluster.hosts[0].owner(key);
        assert_eq!(cluster.hosts[2].owner(key), owner, "{key}: the namespace does not place it");
    }
    assert_eq!(cluster.hosts[1].run("echo json_encode([ephpm_kv_flush_all(), ephpm_kv_degraded()]);"), "[true,false]");
    for key in &keys {
        assert_eq!(cluster.hosts[0].incr(key, 1), (1, false), "{key} was flushed");
        assert_eq!(cluster.hosts[2].incr(key, 1), (71, false), "{key} was not");
    }
    cluster.quit();
}

#[test]
fn incr_multi_counts_keys_of_all_owners_in_order() {
    let mut cluster = patient();
    let mut keys = Vec::new();
    for number in 0..4 {
        for owner in ["host2", "host0", "host1"] {
            keys.push(cluster.keys_owned_by(owner, &format!("multi{number}"), 1).remove(0));
        }
    }
    let list = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(",");
    for round in 1..=3 {
        for host in 0..3 {
            let code = format!(
                "$keys = [{list}];
                 $deltas = array_combine($keys, range(1, count($keys))) + [77 => 1];
                 $result = ephpm_kv_incr_multi($deltas, 60);
                 echo json_encode([array_keys($result) === array_keys($deltas), array_values($result),
                     ephpm_kv_degraded(), min(array_map('ephpm_kv_ttl', $keys)) > 40]);"
            );
            let times = (round - 1) * 3 + host as i64 + 1;
            let values: Vec<i64> = (1..=keys.len() as i64).map(|delta| delta * times).chain([times]).collect();
            let expected = format!("[true,{},false,true]", format!("{values:?}").replace(' ', ""));
            let caller = &mut cluster.hosts[host];
            let printed = if round == 2 { caller.run_in_child(&code) } else { caller.run(&code) };
            assert_eq!(printed, expected, "round {round} on host{host}");
        }
    }
    // One that is refused by its owner is false, with a warning; the others count.
    let (text, count) = (&keys[0], &keys[1]);
    let code =
        format!("ephpm_kv_set('{text}', 'abc'); var_dump(ephpm_kv_incr_multi(['{text}' => 1, '{count}' => 1]));");
    let printed = cluster.hosts[1].run(&code);
    assert!(
        printed.starts_with(&format!("Warning: ephpm_kv_incr_multi(): key \"{text}\": the value is not")),
        "{printed}"
    );
    assert!(printed.contains("bool(false)") && printed.contains("int(19)"), "{printed}");
    cluster.quit();
}

/// Counters with and without a deadline and values of all owners.
fn fill(cluster: &mut Cluster) -> Vec<String> {
    let mut keys = Vec::new();
    for owner in ["host0", "host1", "host2"] {
        keys.append(&mut cluster.keys_owned_by(owner, "flush", 10));
    }
    for (number, key) in keys.iter().enumerate() {
        let code = match number % 3 {
            0 => format!("ephpm_kv_incr('{key}', 9);"),
            1 => format!("ephpm_kv_incr_ttl('{key}', 9, 60);"),
            _ => format!("ephpm_kv_set('{key}', 'text');"),
        };
        assert_eq!(cluster.hosts[number % 2].run(&code), "");
    }
    let list = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(",");
    for host in &mut cluster.hosts {
        poll("all copies are there", Duration::from_secs(5), || {
            let held = host.run(&format!("echo count(array_filter(array_map('ephpm_kv_exists', [{list}])));"));
            if held == keys.len().to_string() { Ok(()) } else { Err(held) }
        });
    }
    keys
}

#[test]
fn a_flush_from_any_host_ends_every_key() {
    let mut cluster = patient();
    for (caller, in_child) in [(2, false), (0, true), (1, false)] {
        let keys = fill(&mut cluster);
        let list = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(",");
        let code = "echo json_encode([ephpm_kv_flush_all(), ephpm_kv_degraded()]);";
        let host = &mut cluster.hosts[caller];
        let printed = if in_child { host.run_in_child(code) } else { host.run(code) };
        assert_eq!(printed, "[true,false]", "host{caller}");
        // Every owner starts anew, whoever asks.
        for (number, key) in keys.iter().enumerate() {
            let asked = &mut cluster.hosts[number % 3];
            assert_eq!(asked.incr(key, 3), (3, false), "{key}");
        }
        for host in &mut cluster.hosts {
            let name = host.spec.name.clone();
            poll(&format!("{name} holds nothing old"), Duration::from_secs(5), || {
                let values = host.run(&format!("echo json_encode(array_unique(array_map('ephpm_kv_get', [{list}])));"));
                if values == r#"["3"]"# { Ok(()) } else { Err(values) }
            });
        }
        assert_eq!(cluster.hosts[caller].run("echo (int)ephpm_kv_flush_all();"), "1");
    }
    cluster.quit();
}

#[test]
fn a_flush_that_an_owner_missed_says_so() {
    let mut cluster = Cluster::new(3);
    fill(&mut cluster);
    cluster.hosts[2].stop();
    let printed = cluster.hosts[0].run("echo json_encode([ephpm_kv_flush_all(), ephpm_kv_degraded()]);");
    cluster.hosts[2].signal(libc::SIGCONT);
    assert_eq!(printed, "[false,true]");
    cluster.wait_ready();
    poll("all owners again", Duration::from_secs(10), || {
        let printed = cluster.hosts[0].run("echo json_encode([ephpm_kv_flush_all(), ephpm_kv_degraded()]);");
        if printed == "[true,false]" { Ok(()) } else { Err(printed) }
    });
    cluster.quit();
}

#[test]
fn a_cluster_full_of_live_counters_refuses_new_ones_and_counts_on() {
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("memory".into(), "4M".into());
        spec.ini.insert("timeout_ms".into(), "2000".into());
    });
    // Spread over all owners, made on one host, which holds a copy of each.
    let code = r#"
        for ($n = 0; $n < 200000; $n++) {
            if (@ephpm_kv_incr("full:$n") === false) {
                break;
            }
        }
        echo "$n|", error_get_last()['message'] ?? '';
    "#;
    let printed = cluster.hosts[0].run(&format!("restore_error_handler(); {code} set_error_handler(null);"));
    let (made, message) = printed.split_once('|').expect("two fields");
    let made: i64 = made.parse().expect("a number");
    assert!((1_000..200_000).contains(&made), "{printed}");
    assert_eq!(message, format!("ephpm_kv_incr(): key \"full:{made}\": memory is full (ephpm_kv.memory)"));
    // What is there counts on, wherever it is asked and owned.
    let mut degraded = 0;
    for (number, index) in (0..made).step_by(made as usize / 300).enumerate() {
        let (value, flagged) = cluster.hosts[number % 3].incr(&format!("full:{index}"), 1);
        assert_eq!(value, 2, "full:{index} on host{}", number % 3);
        degraded += i64::from(flagged);
    }
    assert_eq!(degraded, 0);
    let full: f64 = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_memory_full_total")).sum();
    assert!(full > 0.0);
    for host in &mut cluster.hosts {
        assert_eq!(host.info().state, "ready");
        assert_eq!(host.metric("ephpm_kv_evictions_total"), 0.0, "{}", host.spec.name);
    }
    cluster.quit();
}

fn ops(host: &mut Host, op: &str, path: &str) -> f64 {
    host.metric(&format!("ephpm_kv_ops_total{{op=\"{op}\",path=\"{path}\"}}"))
}

#[test]
fn metrics_tell_local_remote_and_degraded_apart() {
    let mut cluster = patient();
    let here = cluster.keys_owned_by("host0", "metric", 1).remove(0);
    let there = cluster.keys_owned_by("host1", "metric", 1).remove(0);
    let host = &mut cluster.hosts[0];
    let count = |host: &mut Host| {
        ["local", "remote", "degraded"].map(|path| ["incr", "set", "del", "expire"].map(|op| ops(host, op, path)))
    };
    let before = count(host);
    let (timed, flagged) = (host.metric("ephpm_kv_remote_seconds_count"), host.metric("ephpm_kv_degraded_total"));
    for key in [&here, &there, &there] {
        let code = format!(
            "ephpm_kv_incr('{key}'); ephpm_kv_incr_ttl('{key}', 1, 9); ephpm_kv_set('{key}', '5');
             ephpm_kv_expire('{key}', 9); ephpm_kv_del('{key}');"
        );
        assert_eq!(host.run(&code), "");
    }
    let after = count(host);
    let grown: Vec<Vec<f64>> =
        after.iter().zip(&before).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b).collect()).collect();
    assert_eq!(grown, [[2.0, 1.0, 1.0, 1.0], [4.0, 2.0, 2.0, 2.0], [0.0; 4]]);
    assert_eq!(host.metric("ephpm_kv_remote_seconds_count") - timed, 10.0);
    assert!(host.metric("ephpm_kv_remote_seconds_sum") > 0.0);
    assert_eq!(host.metric("ephpm_kv_degraded_total"), flagged);
    assert_eq!(host.metric("ephpm_kv_members"), 3.0);
    // Without its owner: degraded, pending until it is home, then merged at whoever owns it next.
    let spec = cluster.hosts.remove(1).kill();
    let (_, flag) = cluster.hosts[0].incr(&there, 1);
    assert!(flag);
    assert!(ops(&mut cluster.hosts[0], "incr", "degraded") >= 1.0);
    assert!(cluster.hosts[0].metric("ephpm_kv_degraded_total") > flagged);
    cluster.hosts.insert(1, Host::start(&spec));
    cluster.wait_ready();
    poll("the share is home", Duration::from_secs(10), || {
        let pending = cluster.hosts[0].metric("ephpm_kv_shares_pending");
        if pending == 0.0 { Ok(()) } else { Err(format!("{pending} pending")) }
    });
    for host in &mut cluster.hosts {
        let name = host.spec.name.clone();
        poll(&format!("{name} lags not"), Duration::from_secs(5), || {
            let lag = host.metric("ephpm_kv_replication_lag_seconds");
            if lag < 1.0 { Ok(()) } else { Err(format!("{lag} s")) }
        });
    }
    cluster.quit();
}

#[test]
fn info_names_the_members_their_addresses_and_who_owns_how_much() {
    let mut cluster = Cluster::new(3);
    let code = r#"
        $info = ephpm_kv_info();
        $members = $info['members'];
        usort($members, fn($a, $b) => $a['node_id'] <=> $b['node_id']);
        echo json_encode([$info['clustered'], $info['node_pid'] === getmypid(), $info['epoch'] > 0,
            array_column($members, 'node_id'), array_column($members, 'address'), array_column($members, 'live'),
            array_column($members, 'client'), array_sum(array_column($members, 'owner_slots')),
            min(array_column($members, 'owner_slots')) > 4000], JSON_UNESCAPED_SLASHES);
    "#;
    let addresses: Vec<String> = cluster.hosts.iter().map(|host| format!("\"127.0.0.1:{}\"", host.spec.port)).collect();
    let expected = format!(
        r#"[true,true,true,["host0","host1","host2"],[{}],[true,true,true],[false,false,false],16384,true]"#,
        addresses.join(",")
    );
    for host in &mut cluster.hosts {
        let name = host.spec.name.clone();
        poll(&format!("{name} knows all owners"), Duration::from_secs(5), || match host.run(code) {
            seen if seen == expected => Ok(()),
            seen => Err(seen),
        });
    }
    let info =
        cluster.hosts[1].run("ob_start(); phpinfo(INFO_MODULES); echo strstr(ob_get_clean(), \"\\nephpm_kv\\n\");");
    assert_eq!(info.matches("\nMember => host").count(), 3, "{info}");
    assert!(info.contains("\nState => ready"), "{info}");
    // A dead member is shown as dead, not as if it owned something for good.
    cluster.hosts.pop().expect("host2").kill();
    let host = &mut cluster.hosts[0];
    poll("host2 is dead and its slots have new owners", Duration::from_secs(10), || {
        let code = "foreach (ephpm_kv_info()['members'] as $m) { echo $m['node_id'], (int)$m['live'], ' '; if ($m['live']) $s = ($s ?? 0) + $m['owner_slots']; } echo $s;";
        match host.run(code) {
            seen if !seen.contains("host21") && seen.ends_with("16384") => Ok(()),
            seen => Err(seen),
        }
    });
    assert_eq!(host.call("ephpm_kv_incr", &[Value::text("after")]).value, Value::Int(1));
    cluster.quit();
}

/// Writes of every kind on keys whose owner has just gone, one way or another; then the hosts must agree.
fn writes_without_an_owner(go: impl FnOnce(&mut Cluster), back: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::new(3);
    let keys = cluster.keys_owned_by("host2", "orphan", 5);
    let list = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(",");
    for key in &keys {
        assert_eq!(cluster.hosts[0].run(&format!("echo ephpm_kv_incr_ttl('{key}', 5, 600);")), "5");
    }
    for key in &keys {
        cluster.wait_value(key, 5, Duration::from_secs(5));
    }
    go(&mut cluster);
    let code = format!(
        "[$count, $set, $del, $expire, $new] = [{list}];
         $seen = [];
         foreach ([fn() => ephpm_kv_incr($count), fn() => ephpm_kv_set($set, 'text'), fn() => ephpm_kv_del($del),
             fn() => ephpm_kv_expire($expire, 0), fn() => ephpm_kv_incr_ttl($new, 1, 60)] as $call) {{
             $start = hrtime(true);
             $seen[] = $call();
             $seen[] = ephpm_kv_degraded() && hrtime(true) - $start < 200_000_000;
         }}
         echo json_encode($seen);"
    );
    assert_eq!(cluster.hosts[0].run(&code), "[6,true,true,true,1,true,true,true,6,true]");
    back(&mut cluster);
    cluster.wait_ready();
    // Increments are never lost, and nobody else wrote: the other changes were made, too, on every host.
    for key in [&keys[0], &keys[4]] {
        cluster.wait_value(key, 6, Duration::from_secs(5));
    }
    let look = format!("echo json_encode(array_map(fn($k) => [ephpm_kv_get($k), ephpm_kv_ttl($k) > 0], [{list}]));");
    let expected = "[[\"6\",true],[\"text\",false],[null,false],[\"5\",false],[\"6\",true]]";
    poll("all agree", Duration::from_secs(5), || {
        let seen: Vec<String> = cluster.hosts.iter_mut().map(|host| host.run(&look)).collect();
        if seen.iter().all(|one| one == expected) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    cluster.quit();
}

#[test]
fn after_writes_without_an_owner_that_was_killed_all_hosts_agree() {
    let spec = std::cell::Cell::new(None);
    writes_without_an_owner(
        |cluster| spec.set(Some(cluster.hosts.pop().expect("host2").kill())),
        |cluster| cluster.hosts.push(Host::start(&spec.take().expect("host2's settings"))),
    );
}

#[test]
fn after_writes_without_an_owner_that_was_only_slow_all_hosts_agree() {
    writes_without_an_owner(
        |cluster| {
            cluster.hosts[2].stop();
            // Three calls that time out open the breaker: from then on nothing is sent to the owner.
            let keys = cluster.keys_owned_by("host2", "breaker", 3);
            for key in &keys {
                assert!(cluster.hosts[0].incr(key, 1).1, "degraded");
            }
        },
        |cluster| cluster.hosts[2].signal(libc::SIGCONT),
    );
}

#[test]
fn a_flush_is_seen_at_once_by_its_caller() {
    let mut cluster = patient();
    let keys = fill(&mut cluster);
    let list = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(",");
    let code = format!("echo (int)ephpm_kv_flush_all(), count(array_filter(array_map('ephpm_kv_exists', [{list}])));");
    for host in 0..3 {
        assert_eq!(cluster.hosts[host].run(&code), "10", "read your writes on host{host}");
        fill(&mut cluster);
    }
    cluster.quit();
}

#[test]
fn a_large_value_is_read_at_once_by_its_writer() {
    let mut cluster = patient();
    for length in [4_000, 5_000, 1 << 20] {
        let code = format!(
            "$v = random_bytes({length}); $w = strrev($v);
             echo json_encode([ephpm_kv_set($k, $v, 60), ephpm_kv_get($k) === $v, ephpm_kv_ttl($k),
                 ephpm_kv_set($k, $w), ephpm_kv_get($k) === $w, ephpm_kv_ttl($k), ephpm_kv_expire($k, 30),
                 ephpm_kv_ttl($k), ephpm_kv_del($k)]);"
        );
        let expected = "[true,true,60,true,true,-1,true,30,1]";
        same_everywhere(&mut cluster, &format!("large{length}"), &code, expected);
    }
    cluster.quit();
}
