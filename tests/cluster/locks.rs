//! `setnx` from two hosts at once has one winner.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::host::{Host, unescape};
use crate::support::{now_ns, number};

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
        crate::support::poll(&format!("{} knows the winners", host.spec.name), Duration::from_secs(5), || {
            let printed = host.run(&shown);
            match printed.lines().zip(&winners).position(|(held, winner)| held != *winner) {
                None => Ok(()),
                Some(round) => Err(format!("lock {round} is {:?}", printed.lines().nth(round))),
            }
        });
    }
    cluster.quit();
}
