//! `setnx` from two hosts at once has one winner, and an owner that is being cut off has none.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::host::{Host, unescape};
use crate::support::{now_ns, number, poll};

/// Time between two rounds, in nanoseconds: both hosts begin each at the same moment.
const ROUND_NS: u64 = 2_000_000;

/// One host's call in one round.
struct Attempt {
    start: u64,
    end: u64,
    won: bool,
    degraded: bool,
}

/// PHP code that tries for each lock when its turn comes, and prints start, end, outcome and degraded of each.
fn racing(host: &str, rounds: u64, at: u64) -> String {
    format!(
        r#"for ($round = 0; $round < {rounds}; $round++) {{
            $begin = {at} + $round * {ROUND_NS};
            // Asleep until shortly before, for the others' sake; then awake, so that both are there in time.
            $wait = intdiv($begin - hrtime(true), 1000) - 200;
            if ($wait > 0) {{ usleep($wait); }}
            while (hrtime(true) < $begin) {{}}
            $start = hrtime(true);
            $won = ephpm_kv_setnx("lock:$round", "{host}");
            echo $start, ' ', hrtime(true), ' ', (int)$won, ' ', (int)ephpm_kv_degraded(), "\n";
        }}"#
    )
}

fn race(host: &mut Host, rounds: u64, at: u64) -> Vec<Attempt> {
    let code = racing(&host.spec.name, rounds, at);
    let limit = Duration::from_nanos(rounds * ROUND_NS) * 5 + Duration::from_secs(30);
    let fields = ["run", &crate::support::host::escape(&code)];
    let printed = host.ask_within(limit, &fields).unwrap_or_else(|reason| panic!("{}: {reason}", host.spec.name));
    let attempt = |line: &str| -> Attempt {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect(line)).collect();
        Attempt { start: numbers[0], end: numbers[1], won: numbers[2] == 1, degraded: numbers[3] == 1 }
    };
    unescape(&printed[0]).lines().map(attempt).collect()
}

#[test]
fn two_hosts_that_take_a_lock_at_once_have_one_winner() {
    let rounds = number("EPHPM_KV_LOCKS", 500);
    // Three hosts, so that a third of the locks is owned by neither of the two. Nothing here is about late answers.
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    });
    let at = now_ns() + 300_000_000;
    let (one, rest) = cluster.hosts.split_at_mut(1);
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| race(&mut one[0], rounds, at));
        let second = scope.spawn(|| race(&mut rest[0], rounds, at));
        (first.join().expect("host0"), second.join().expect("host1"))
    });
    assert_eq!((first.len() as u64, second.len() as u64), (rounds, rounds));

    let (mut wins, mut met) = ([0u64; 2], 0u64);
    let mut winners = Vec::new();
    for (round, (one, two)) in first.iter().zip(&second).enumerate() {
        assert!(!one.degraded && !two.degraded, "lock {round}: an answer without an owner");
        assert!(one.won != two.won, "lock {round}: {} winners", u32::from(one.won) + u32::from(two.won));
        wins[usize::from(two.won)] += 1;
        met += u64::from(one.start < two.end && two.start < one.end);
        winners.push(if one.won { "host0" } else { "host1" });
    }
    println!(
        "{rounds} locks: {} to host0, {} to host1; in {met} rounds both calls were under way at once",
        wins[0], wins[1]
    );
    assert!(met * 4 > rounds, "they have hardly ever met: nothing was tried");

    // Every host sees the winner's value.
    let shown = format!("for ($i = 0; $i < {rounds}; $i++) {{ echo ephpm_kv_get(\"lock:$i\"), \"\\n\"; }}");
    for host in &mut cluster.hosts {
        poll(&format!("{} knows the winners", host.spec.name), Duration::from_secs(5), || {
            let printed = host.run(&shown);
            match printed.lines().zip(&winners).position(|(held, winner)| held != *winner) {
                None => Ok(()),
                Some(round) => Err(format!("lock {round} is {:?}", printed.lines().nth(round))),
            }
        });
    }
    cluster.quit();
}

#[test]
fn an_owner_that_is_being_cut_off_decides_nothing_and_takes_back_what_nobody_knows_of() {
    let mut cluster = Cluster::new(3);
    let keys = cluster.keys_owned_by("host0", "cut:", 4);
    let [lock, list, version, counter] = &keys[..] else { panic!("{keys:?}") };
    let prepare = format!("ephpm_kv_append('{list}', 'a;'); ephpm_kv_set('{version}', 'v1', 600);");
    cluster.hosts[0].run(&prepare);
    let held =
        format!("echo json_encode([ephpm_kv_get('{lock}'), ephpm_kv_get('{list}'), ephpm_kv_get('{version}')]);");
    let agreed = |cluster: &mut Cluster, expected: &str| {
        for host in &mut cluster.hosts {
            poll(&format!("{} holds {expected}", host.spec.name), Duration::from_secs(10), || match host.run(&held) {
                held if held == expected => Ok(()),
                held => Err(held),
            });
        }
    };
    agreed(&mut cluster, r#"[null,"a;","v1"]"#);

    for host in &cluster.hosts[1..] {
        host.signal(libc::SIGSTOP);
    }
    // For a second more it speaks for the cluster, as its count shows; then these are refused anyway.
    let code = format!(
        r#"set_error_handler(fn() => true);
        $told = [];
        foreach ([fn() => ephpm_kv_setnx('{lock}', 'mine', 60), fn() => ephpm_kv_append('{list}', 'b;'),
                  fn() => ephpm_kv_cas('{version}', 'v1', 'v2')] as $call) {{
            $told[] = [$call(), ephpm_kv_degraded()];
        }}
        ephpm_kv_incr('{counter}');
        $told[] = ephpm_kv_degraded();
        $left = ephpm_kv_ttl('{version}');
        echo json_encode([$told, $left > 590 && $left <= 600]);"#
    );
    let told = cluster.hosts[0].run(&code);
    let known = cluster.hosts[0].run(&held);
    for host in &cluster.hosts[1..] {
        host.signal(libc::SIGCONT);
    }
    assert_eq!(
        told, "[[[false,true],[false,true],[false,true],false],true]",
        "outcome and degraded of each; speaks; TTL"
    );
    assert_eq!(known, r#"[null,"a;","v1"]"#);

    // Nothing of it comes up again.
    cluster.wait_ready();
    poll("somebody can have the lock", Duration::from_secs(10), || {
        match cluster.hosts[1].run(&format!("echo json_encode(ephpm_kv_setnx('{lock}', 'yours'));")) {
            won if won == "true" => Ok(()),
            won => Err(won),
        }
    });
    agreed(&mut cluster, r#"["yours","a;","v1"]"#);
    cluster.quit();
}
