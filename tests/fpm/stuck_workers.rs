//! Workers that fpm kills, that crash, and that stand still in the middle of a call.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::shared::{poll, seed};
use crate::support::client::Request;
use crate::support::fcgi::Failure;
use crate::support::fpm::{Fpm, Pool};
use crate::support::load::{Load, Work};
use crate::support::random::Random;
use crate::support::{plans, proc, settled, start_all};

/// Nobody's call may take longer, whoever stands still: the lock is waited for 20 ms, the rest is for a busy machine.
const LIMIT: Duration = Duration::from_secs(2);

/// What a dump of a worker must not hold.
const MARK: &str = "what-the-segment-holds";

fn marked(file: &Path) -> bool {
    let bytes = std::fs::read(file).expect("a file");
    bytes.windows(MARK.len()).any(|window| window == MARK.as_bytes())
}

/// Two hosts, the first with a second pool whose workers get into trouble.
fn hosts(trouble: Pool) -> Vec<Fpm> {
    let mut plans: Vec<_> = plans(2).into_iter().map(|plan| plan.php(&["extension=posix.so"])).collect();
    plans[0].pools.push(trouble);
    start_all(&plans)
}

fn cut_off(fpm: &Fpm, request: Request) -> Duration {
    let started = Instant::now();
    match fpm.client(1).send(request) {
        Err(Failure::Cut(_)) => started.elapsed(),
        other => panic!("was to be cut off: {other:?}"),
    }
}

#[test]
fn a_worker_that_fpm_kills_or_that_crashes_costs_nobody_else() {
    let trouble = Pool::new("trouble", 1, "www-data").line("request_terminate_timeout = 1s");
    let hosts = hosts(trouble.line("rlimit_core = unlimited").line("process.dumpable = yes"));
    let clients: Vec<_> = hosts.iter().map(|host| host.client(0)).collect();
    // A crashing worker may write its dump here.
    let scripts = hosts[0].path().join("www");
    std::fs::set_permissions(&scripts, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("permissions");
    let keys: Vec<String> = (0..4).map(|number| format!("stuck:{number}")).collect();
    let load = Load::start(&clients, &Work { keys, per_request: 20, seed: seed() });
    load.wait_for(200);
    clients[0].body(Request::new("endless.php").arg("key", "mark").arg("calls", 1).arg("mark", MARK));
    let worker = hosts[0].workers()[0];
    let segment =
        proc::descriptors(worker).into_iter().find(|(_, link)| link.contains("memfd:")).expect("the segment").0;
    assert!(marked(Path::new(&format!("/proc/{worker}/fd/{segment}"))), "what is searched for is in the segment");
    for owner in &hosts {
        let key = clients[0].keys_owned_by(&owner.plan.name, "busy", 1).remove(0);
        let after = cut_off(&hosts[0], Request::new("endless.php").arg("key", &key));
        println!("killed by fpm after {after:?}, at {}", clients[0].count(&key));
        assert!(clients[0].count(&key) > 0);
        cut_off(&hosts[0], Request::new("endless.php").arg("key", &key).arg("calls", 100).arg("crash", 1));
    }
    assert!(hosts[0].fpm_log().contains("SIGSEGV"), "it was to crash: {}", hosts[0].fpm_log());
    load.wait_for(200);
    let ledger = load.stop();
    ledger.check(&settled(&clients, &ledger.keys()), 0);
    ledger.distinct();
    assert!(ledger.slowest < LIMIT, "{:?}", ledger.slowest);
    let dumps = std::fs::read_dir(&scripts).expect("the scripts").flatten();
    let dumps: Vec<_> = dumps.filter(|entry| entry.file_name().to_string_lossy().starts_with("core")).collect();
    println!("{} dumps", dumps.len());
    for dump in dumps {
        println!("{} bytes", dump.metadata().expect("its size").len());
        assert!(!marked(&dump.path()), "the segment is in the dump");
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}

#[test]
fn a_worker_that_stands_still_holds_nobody_up() {
    let hosts = hosts(Pool::new("trouble", 1, "www-data"));
    let clients: Vec<_> = hosts.iter().map(|host| host.client(0)).collect();
    let keys: Vec<String> = (0..4).map(|number| format!("still:{number}")).collect();
    let mut random = Random::new(seed(), 1);
    // The workers that stand still count the same keys as everybody else, and make and delete others.
    let busy = Request::new("endless.php").arg("key", keys[0].as_str()).arg("churn", 1);
    let trouble = hosts[0].client(1).within(Duration::from_secs(60));
    let stuck = std::thread::spawn(move || trouble.send(busy));
    let worker = poll("it counts", Duration::from_secs(10), || {
        if clients[0].count(&keys[0]) == 0 {
            return Err("it does not".to_owned());
        }
        let ours = |pid: &u32| proc::command_line(*pid).contains("pool trouble");
        hosts[0].workers().into_iter().find(ours).ok_or_else(|| "no worker".to_owned())
    });
    let load = Load::start(&clients, &Work { keys: keys.clone(), per_request: 20, seed: 1 });
    for _ in 0..10 {
        std::thread::sleep(Duration::from_micros(random.below(50_000)));
        proc::signal(worker, libc::SIGSTOP);
        load.wait_for(100);
        proc::signal(worker, libc::SIGCONT);
    }
    proc::signal(worker, libc::SIGSTOP);
    load.wait_for(100);
    proc::signal(worker, libc::SIGKILL);
    load.wait_for(100);
    let ended = stuck.join().expect("a thread");
    assert!(matches!(ended, Err(Failure::Cut(_))), "{ended:?}");
    let mut ledger = load.stop();
    let finals = settled(&clients, &ledger.keys());
    // Nobody knows how often the killed worker has counted, only that the values it took were its own.
    ledger.tallies.get_mut(&keys[0]).expect("the key").cut += finals[0];
    ledger.check(&finals, 0);
    ledger.distinct();
    assert!(ledger.slowest < LIMIT, "{:?}", ledger.slowest);
    println!("refused meanwhile: {}: {:?}", ledger.failed, ledger.errors);
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
