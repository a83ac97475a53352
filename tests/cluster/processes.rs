//! The processes of one host in a cluster of several: children, grandchildren, signals, and orderly ends.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::host::Host;
use crate::support::poll;

/// A key of host0's own and one of another host's.
fn keys(cluster: &mut Cluster, prefix: &str) -> [String; 2] {
    ["host0", "host1"].map(|owner| cluster.keys_owned_by(owner, prefix, 1).remove(0))
}

fn patient() -> Cluster {
    Cluster::with(3, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    })
}

#[test]
fn children_and_their_children_count_with_their_host() {
    let mut cluster = patient();
    let [own, others] = keys(&mut cluster, "family");
    let code = format!(
        "$count = function () {{
            for ($i = 0; $i < 50; $i++) {{
                foreach (['{own}', '{others}'] as $key) {{
                    ephpm_kv_incr($key);
                    if (ephpm_kv_degraded()) {{
                        echo \"degraded\\n\";
                    }}
                }}
            }}
        }};
        $count();
        echo in_child(function () use ($count) {{
            $count();
            echo in_child($count);
            $count();
        }});
        $count();
        echo json_encode([ephpm_kv_get('{own}'), ephpm_kv_get('{others}'), ephpm_kv_info()['node_pid'] === getmypid()]);"
    );
    assert_eq!(cluster.hosts[0].run(&code), r#"["250","250",true]"#);
    for key in [&own, &others] {
        cluster.wait_value(key, 250, Duration::from_secs(5));
    }
    cluster.quit();
}

#[test]
fn the_end_of_a_child_ends_no_node() {
    let mut cluster = patient();
    let [own, others] = keys(&mut cluster, "ends");
    // Through PHP's own end, a fatal error, an exception that nobody catches, and killed in a shutdown function.
    let ends = [
        "exit(0);",
        "trigger_error('end', E_USER_ERROR);",
        "throw new Exception('end');",
        "register_shutdown_function(fn() => exec('kill -9 ' . getmypid())); exit(0);",
    ];
    for (round, end) in (1..=8_i64).zip(ends.iter().cycle()) {
        let code = format!(
            "$pid = pcntl_fork();
             if ($pid === 0) {{
                 fclose(STDOUT);
                 ini_set('display_errors', '0');
                 while (ob_get_level() > 0) {{
                     ob_end_clean();
                 }}
                 restore_error_handler();
                 ephpm_kv_incr('{own}');
                 ephpm_kv_incr('{others}');
                 {end}
             }}
             pcntl_waitpid($pid, $status);
             $info = ephpm_kv_info();
             echo json_encode([ephpm_kv_incr('{own}'), ephpm_kv_incr('{others}'), ephpm_kv_degraded(), $info['state'],
                 $info['node_pid'] === getmypid()]);"
        );
        let printed = cluster.hosts[0].run(&code);
        let value = 2 * round;
        assert_eq!(printed, format!(r#"[{value},{value},false,"ready",true]"#), "round {round}: {end}");
    }
    for host in &mut cluster.hosts {
        assert_eq!(host.info().members, 3, "{}: nobody left", host.spec.name);
    }
    cluster.quit();
}

#[test]
fn a_child_forked_while_the_node_starts_gets_ready_and_leaves_a_host_that_does() {
    let mut cluster = patient();
    let [own, others] = keys(&mut cluster, "early");
    for round in 1..=3_i64 {
        let host = cluster.hosts.remove(0);
        let spec = host.spec.clone();
        assert!(host.quit().success());
        let mut host = Host::start(&spec);
        // The first call starts the node; the fork follows at once. Either of the two may win the claim: if it is the
        // child, its end is an orderly leave, and the parent starts the next node.
        let code = "ephpm_kv_get('warm'); echo in_child(function () {
                for ($until = microtime(true) + 10; microtime(true) < $until; usleep(2000)) {
                    ephpm_kv_get('warm');
                    if (ephpm_kv_info()['state'] === 'ready') {
                        echo 'ready';
                        break;
                    }
                }
            });";
        assert_eq!(host.run(code), "ready", "round {round}");
        cluster.hosts.insert(0, host);
        cluster.wait_ready();
        for key in [&own, &others] {
            assert_eq!(cluster.hosts[0].incr(key, 1), (round, false), "{key}");
            cluster.wait_value(key, round, Duration::from_secs(5));
        }
    }
    cluster.quit();
}

#[test]
fn signals_during_remote_calls_cost_nothing() {
    let mut cluster = patient();
    let [_, others] = keys(&mut cluster, "signal");
    let code = format!(
        "$handled = 0; $wrong = 0; $degraded = 0;
         pcntl_async_signals(true);
         pcntl_signal(SIGUSR1, function () use (&$handled) {{ $handled++; }});
         $kill = 'for i in $(seq 200); do kill -USR1 ' . getmypid() . '; sleep 0.002; done';
         $sender = proc_open(['sh', '-c', $kill], [], $pipes);
         for ($n = 0; proc_get_status($sender)['running'];) {{
             $wrong += (int)(ephpm_kv_incr('{others}') !== ++$n);
             $degraded += (int)ephpm_kv_degraded();
         }}
         proc_close($sender);
         pcntl_signal(SIGUSR1, SIG_DFL);
         echo json_encode([$wrong, $degraded, $handled > 100, $n > 100]);"
    );
    assert_eq!(cluster.hosts[0].run(&code), "[0,0,true,true]");
    // The same in a child, whose way to the node is a socket.
    let [_, others_too] = keys(&mut cluster, "signal:child");
    let code = code.replace(&others, &others_too);
    assert_eq!(cluster.hosts[0].run_in_child(&code), "[0,0,true,true]");
    cluster.quit();
}

#[test]
fn a_host_told_to_end_by_a_signal_handler_leaves_in_order() {
    let mut cluster = patient();
    let [own, _] = keys(&mut cluster, "term");
    assert_eq!(cluster.hosts[0].incr(&own, 7), (7, false));
    let mut leaver = cluster.hosts.remove(0);
    leaver.run("pcntl_async_signals(true); pcntl_signal(SIGTERM, function () { exit(0); });");
    leaver.signal(libc::SIGTERM);
    let status = leaver.quit();
    assert!(status.success(), "{status}");
    cluster.wait_ready();
    // Nothing was lost, and the successor was told: no call is degraded.
    assert_eq!(cluster.hosts[0].incr(&own, 1), (8, false));
    cluster.quit();
}

#[test]
fn the_thread_and_the_descriptors_of_a_host_stay_the_same_over_restarts_of_a_peer() {
    let mut cluster = Cluster::new(2);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let spec = cluster.hosts.pop().expect("host1").kill();
        cluster.hosts.push(Host::start(&spec));
        cluster.wait_ready();
        let usage = poll("it settles", Duration::from_secs(10), || {
            let usage = cluster.hosts[0].usage()[0];
            std::thread::sleep(Duration::from_millis(300));
            let again = cluster.hosts[0].usage()[0];
            let same = (usage.threads, usage.descriptors) == (again.threads, again.descriptors);
            if same { Ok(again) } else { Err(format!("{usage:?} {again:?}")) }
        });
        seen.push((usage.threads, usage.descriptors));
    }
    println!("{seen:?}");
    let (first, last) = (seen[0], seen[3]);
    assert!(last.0 <= first.0 + 1 && last.1 <= first.1 + 3, "threads and descriptors grow: {seen:?}");
    cluster.quit();
}
