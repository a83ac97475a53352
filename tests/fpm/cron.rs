//! Scripts on the command line, with the settings of the host that php-fpm runs.

use crate::shared::{number, seed};
use crate::support::fpm::php;
use crate::support::load::{Load, Work};
use crate::support::{plans, settled, start_all};

#[test]
fn scripts_of_cron_are_part_of_the_host() {
    let hosts = start_all(&plans(2));
    let clients: Vec<_> = hosts.iter().map(|host| host.client(0)).collect();
    let before: Vec<_> = clients.iter().map(|client| client.info()).collect();
    let [own, others] = [0, 1].map(|owner| clients[0].keys_owned_by(&hosts[owner].plan.name, "cron", 1).remove(0));
    let work = Work { keys: vec![own.clone(), others.clone()], per_request: 5, seed: seed() };
    let load = Load::start(&clients, &work);
    load.wait_for(100);
    let scripts = number("EPHPM_KV_SCRIPTS", 20);
    let script = crate::shared::host::root().join("tests/php/fpm/cron.php");
    for _ in 0..scripts {
        let output = php(hosts[0].path()).arg(&script).args([&own, &others]).output().expect("php runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{}: {printed}{said}", output.status);
        let expected = format!("{} {} {} counted", before[0].node_id, before[0].node_pid, before[0].origin);
        assert_eq!(printed, expected);
    }
    let mut ledger = load.stop();
    for key in [own, others] {
        ledger.tallies.entry(key).or_default().completed += scripts as i64;
    }
    let finals = settled(&clients, &ledger.keys());
    ledger.check(&finals, 0);
    ledger.exact();
    for (client, before) in clients.iter().zip(before) {
        let after = client.info();
        assert_eq!((after.epoch, after.live), (before.epoch, before.live), "{}: nobody came or went", client.name);
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
