//! Orderly ends of a master leave nothing behind.

use crate::shared::number;
use crate::support::fpm::Fpm;
use crate::support::{plans, proc, ready};

#[test]
fn nothing_is_left_after_each_stop() {
    let plan = plans(1).remove(0);
    for round in 0..number("EPHPM_KV_STOPS", 3) {
        let host = Fpm::start(&plan);
        let client = host.client(0);
        ready(std::slice::from_ref(&client), 1);
        assert_eq!(client.incr("stop"), (1, false), "a new segment");
        assert_eq!(host.nodes(), [client.node_pid()]);
        assert!(!proc::port_is_free(plan.port) && !proc::unix_sockets(&plan.host_socket()).is_empty(), "it is up");
        host.stop(if round % 2 == 0 { libc::SIGQUIT } else { libc::SIGTERM });
    }
}
