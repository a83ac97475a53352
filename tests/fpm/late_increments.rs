//! Increments made when a request is nearly over, or its answer has been sent.

use std::time::Duration;

use crate::shared::poll;
use crate::support::client::Request;
use crate::support::{plans, start_all};

const ROUNDS: i64 = 5;

#[test]
fn increments_at_the_end_of_a_request_are_counted() {
    let hosts = start_all(&plans(2));
    let clients = [hosts[0].client(0), hosts[1].client(0)];
    for (host, owner) in [(0, 0), (0, 1), (1, 0)] {
        let prefix = format!("late:{host}");
        let key = clients[0].keys_owned_by(&hosts[owner].plan.name, &prefix, 1).remove(0);
        for _ in 0..ROUNDS {
            let body = clients[host].body(Request::new("late.php").arg("key", &key));
            assert_eq!(body, "sent before anything is counted");
        }
        // Once in a shutdown function, a destructor, a static's destructor, and three times after the answer.
        poll("they are counted", Duration::from_secs(5), || {
            let counts = clients.each_ref().map(|client| client.count(&key));
            if counts == [6 * ROUNDS; 2] { Ok(()) } else { Err(format!("{key}: {counts:?}")) }
        });
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
