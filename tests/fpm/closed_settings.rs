//! What a script, a directory or a request cannot change, and what a pool can.

use std::collections::BTreeMap;

use crate::shared::host::unescape;
use crate::support::client::{Client, Request};
use crate::support::fpm::Pool;
use crate::support::{plans, start_all};

/// What a request says about its settings: `ephpm_kv.` entries, and `user_agent`, which anybody may set.
fn settings(client: &Client, request: Request) -> BTreeMap<String, String> {
    let body = client.body(request);
    let lines = body.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(name, value)| (name.to_owned(), unescape(value))).collect()
}

#[test]
fn no_script_directory_or_request_changes_a_setting() {
    let mut plans = plans(1);
    let pool = Pool::new("www", 1, "www-data").line("php_admin_value[ephpm_kv.namespace] = shop:");
    plans[0] = plans[0].clone().pools([pool]).php(&["user_ini.cache_ttl=-1"]);
    let hosts = start_all(&plans);
    let client = hosts[0].client(0);
    let plain = || Request::new("settings.php");
    let before = settings(&client, plain());
    assert!(before.len() > 20, "{before:?}");
    assert_eq!(before["ephpm_kv.namespace"], "shop:");
    let only_agent = |agent: &str, after: &BTreeMap<String, String>| {
        let mut expected = before.clone();
        expected.insert("user_agent".into(), agent.into());
        let changed: Vec<_> = after.iter().filter(|(name, value)| expected.get(*name) != Some(value)).collect();
        assert_eq!((changed, after.len()), (vec![], expected.len()), "user_agent was to be {agent:?}");
    };

    let body = client.body(Request::new("settings.php").arg("set", 1));
    assert_eq!(body.lines().filter(|line| line.starts_with("set ")).collect::<Vec<_>>(), ["set user_agent"]);
    only_agent("", &settings(&client, plain()));

    let evil = "user_agent=changed\nephpm_kv.namespace=evil:\nephpm_kv.timeout_ms=1\nephpm_kv.enabled=0\n";
    let dir = hosts[0].path().join("www");
    std::fs::write(dir.join(".user.ini"), evil.replace("changed", "by-directory")).expect(".user.ini");
    only_agent("by-directory", &settings(&client, plain()));
    assert_eq!(client.incr("closed"), (1, false));
    std::fs::remove_file(dir.join(".user.ini")).expect("its end");
    only_agent("", &settings(&client, plain()));

    for name in ["PHP_VALUE", "PHP_ADMIN_VALUE"] {
        let value = evil.replace("changed", name);
        only_agent(name, &settings(&client, plain().param(name, &value)));
        let counted = client.counted(Request::new("incr.php").arg("key", name).param(name, &value)).expect("an answer");
        assert_eq!(counted.answers, [(Some(1), false)], "counted in the pool's namespace");
        // What anybody may set sticks to the worker: that is why ours must not be settable so.
        only_agent(name, &settings(&client, plain()));
        assert_eq!(client.incr(name), (2, false), "the same counter as in the request that tried");
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}

#[test]
fn pools_with_namespaces_do_not_see_each_others_keys() {
    let mut plans = plans(2);
    for plan in &mut plans {
        plan.pools = ["shop", "blog"]
            .map(|name| Pool::new(name, 1, "www-data").line(&format!("php_admin_value[ephpm_kv.namespace] = {name}:")))
            .into();
        plan.pools.push(Pool::new("plain", 1, "www-data"));
    }
    let hosts = start_all(&plans);
    for (round, host) in (1..).zip(&hosts) {
        for pool in 0..3 {
            let client = host.client(pool);
            // Each pool's key is the same on both hosts.
            assert_eq!(client.incr("hits"), (round, false), "{}", client.name);
        }
        let shop = host.client(0);
        assert_eq!(shop.count("shop:hits"), 0, "a namespace is not a part of the name");
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
