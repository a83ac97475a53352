//! `opcache.preload` runs a script at start-up, before any worker is forked.

use std::time::Duration;

use crate::shared::poll;
use crate::support::fpm::{Fpm, Plan};
use crate::support::{is_root, plans, proc, ready};

/// The counter that the preloaded script adds 1 to.
const KEY: &str = "preload";

fn preloading(plan: Plan, dir: &std::path::Path, user: Option<&str>) -> Plan {
    let script = dir.join("www/preload.php");
    let mut plan = plan.php(&["zend_extension=opcache.so", "opcache.enable=1"]);
    plan.php.push(format!("opcache.preload={}", script.display()));
    plan.php.extend(user.map(|user| format!("opcache.preload_user={user}")));
    plan
}

fn check(user: Option<&str>) {
    let dir = tempfile::TempDir::new().expect("a directory");
    let plan = preloading(plans(1).remove(0), dir.path(), user);
    let host = Fpm::start_in(&plan, dir);
    assert_eq!(host.nodes(), [0; 0], "no request, no node");
    assert_eq!(proc::status(host.master(), "Threads"), "1", "no thread in the master");
    assert!(proc::port_is_free(plan.port), "nothing is bound");

    let client = host.client(0);
    ready(std::slice::from_ref(&client), 1);
    poll("what was preloaded has come home", Duration::from_secs(5), || {
        let (count, pending) = (client.count(KEY), client.metric("ephpm_kv_shares_pending"));
        if (count, pending) == (1, 0.0) { Ok(()) } else { Err(format!("{count}, shares pending: {pending}")) }
    });
    assert_eq!(client.body(crate::support::client::Request::new("preloaded.php")), "2", "its class is there");
    assert_eq!(client.incr(KEY), (3, false));
    host.stop(libc::SIGQUIT);
}

#[test]
fn preloading_starts_nothing_and_counts_once() {
    // PHP insists on a user where it is started by root; naming root itself means: none.
    check(is_root().then_some("root"));
}

#[test]
fn preloading_as_another_user_starts_nothing_and_counts_once() {
    if !is_root() {
        println!("not run: another user needs root");
        return;
    }
    check(Some("www-data"));
}
