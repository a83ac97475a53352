//! Copies that miss something without anybody's noticing are found by comparison and put right.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::host::{Spec, Value};
use crate::support::load::{Load, wait};
use crate::support::{poll, seed};

/// Comparisons every half second.
fn often(spec: &mut Spec) {
    spec.env.insert("EPHPM_KV_TEST_COMPARE_MS".into(), "500".into());
}

#[test]
fn copies_that_were_lost_on_the_way_are_put_right_everywhere() {
    let mut cluster = Cluster::with(3, |spec| {
        often(spec);
        if spec.name != "host0" {
            // Acknowledged, and forgotten.
            spec.env.insert("EPHPM_KV_PLANT".into(), "lose:5".into());
        }
    });
    let names: Vec<String> = (0..200).map(|number| format!("drift:{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let host = &mut cluster.hosts[number % 3];
        host.call("ephpm_kv_incr", &[Value::text(name), Value::Int(5)]);
        host.call("ephpm_kv_set", &[Value::text(&format!("text:{name}")), Value::text("one")]);
    }
    std::thread::sleep(Duration::from_millis(300));
    // Changes and deletes get lost as well.
    for (number, name) in names.iter().enumerate() {
        let host = &mut cluster.hosts[(number + 1) % 3];
        match number % 4 {
            0 => drop(host.call("ephpm_kv_del", &[Value::text(&format!("text:{name}"))])),
            1 => drop(host.call("ephpm_kv_set", &[Value::text(&format!("text:{name}")), Value::text("two")])),
            2 => drop(host.incr(name, 1)),
            _ => {}
        }
    }
    poll("all copies are right", Duration::from_secs(60), || {
        for host in &mut cluster.hosts {
            for (number, name) in names.iter().enumerate() {
                let text = host.call("ephpm_kv_get", &[Value::text(&format!("text:{name}"))]).value;
                let expected = match number % 4 {
                    0 => Value::Null,
                    1 => Value::text("two"),
                    _ => Value::text("one"),
                };
                let value = host.get(name);
                if text != expected || value != if number % 4 == 2 { 6 } else { 5 } {
                    return Err(format!("{}: {name} is {value} and {text:?}", host.spec.name));
                }
            }
        }
        Ok(())
    });
    let repairs: Vec<f64> = cluster.hosts.iter_mut().map(|host| host.metric("ephpm_kv_repairs_total")).collect();
    println!("repairs: {repairs:?}");
    assert!(repairs[0] == 0.0 && repairs[1] > 0.0 && repairs[2] > 0.0, "{repairs:?}");
    let log = cluster.hosts[1].spec.stderr();
    assert_eq!(log.matches("copies differed from their owner's").count(), 1, "once a minute at the most: {log}");
    cluster.quit();
}

#[test]
fn nothing_has_to_be_put_right_in_a_busy_cluster() {
    let mut cluster = Cluster::with(3, often);
    let dir = cluster.path().to_owned();
    let load = Load::new(1, seed()).with("prefix", "busy").with("keys", 300).with("mix", "incr,incr_ttl,incr_by");
    load.with("ttl", 2).with("pause_us", 1_000).lasting(Duration::from_secs(12)).start_all(&mut cluster.hosts, &dir);
    for round in 0..10 {
        for host in &mut cluster.hosts {
            for number in 0..20 {
                let key = Value::text(&format!("value:{number}"));
                host.call("ephpm_kv_set", &[key.clone(), Value::text(&format!("{round}")), Value::Int(2)]);
                if number % 5 == 0 {
                    host.call("ephpm_kv_del", &[key]);
                }
            }
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(60));
    }
    std::thread::sleep(Duration::from_secs(3));
    for host in &mut cluster.hosts {
        assert_eq!(host.metric("ephpm_kv_repairs_total"), 0.0, "{}", host.spec.stderr());
    }
    cluster.quit();
}
