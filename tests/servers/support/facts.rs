//! What a PHP process on the command line says of its host, and how much it counts in a while.

use std::process::Output;
use std::time::Duration;

use crate::shared::host::Host;
use crate::shared::poll;

/// The part of `ephpm_kv_info()` that tests look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// disabled, alone, joining, ready or leaving.
    pub state: String,
    /// Names the segment.
    pub origin: String,
    /// This host's.
    pub node_id: String,
    /// Process of the node.
    pub node_pid: u32,
    /// Number of the view.
    pub epoch: u64,
    /// Live members.
    pub live: usize,
}

/// PHP code that prints them.
pub const PRINT: &str = "$i = ephpm_kv_info(); echo implode(' ', [$i['state'], $i['origin'], $i['node_id'], \
    $i['node_pid'], $i['epoch'], count(array_filter($i['members'], fn($m) => $m['live']))]);";

/// PHP code that waits until the host is ready and sees `$argv[1]` members.
pub const UNTIL_READY: &str = "for ($until = microtime(true) + 15; microtime(true) < $until; usleep(5000)) { \
    ephpm_kv_get('warm'); $i = ephpm_kv_info(); \
    if ($i['state'] === 'ready' && count(array_filter($i['members'], fn($m) => $m['live'])) == $argv[1]) { break; } }";

impl Facts {
    /// What [`PRINT`] has printed.
    pub fn read(text: &str) -> Self {
        let fields: Vec<&str> = text.split(' ').collect();
        let [state, origin, node_id, node_pid, epoch, live] = fields[..] else { panic!("no facts: {text}") };
        let number = |text: &str| text.parse().expect("a number");
        let (state, origin, node_id) = (state.to_owned(), origin.to_owned(), node_id.to_owned());
        Self {
            state,
            origin,
            node_id,
            node_pid: number(node_pid) as u32,
            epoch: number(epoch),
            live: number(live) as usize,
        }
    }

    /// Of a host.
    pub fn of(host: &mut Host) -> Self {
        Self::read(&host.run(PRINT))
    }
}

/// Another process with the settings of `host`.
pub fn another(host: &Host, name: &str) -> Host {
    let mut spec = host.spec.clone();
    spec.name = name.to_owned();
    Host::start(&spec)
}

/// What a process has counted in a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Calls that returned a value.
    pub calls: i64,
    /// Of these, degraded.
    pub degraded: i64,
    /// Calls that returned false.
    pub refused: i64,
    /// Values of the owner that did not grow.
    pub backwards: i64,
}

/// Adds 1 to `key` again and again for `time`.
pub fn count_for(host: &mut Host, key: &str, time: Duration) -> Counted {
    let seconds = time.as_secs_f64();
    let printed = host.run(&format!(
        "$calls = $degraded = $refused = $backwards = $last = 0;
         for ($until = microtime(true) + {seconds}; microtime(true) < $until; usleep(200)) {{
             $value = ephpm_kv_incr('{key}');
             if ($value === false) {{ $refused++; continue; }}
             $calls++;
             if (ephpm_kv_degraded()) {{ $degraded++; continue; }}
             $backwards += (int)($value <= $last);
             $last = $value;
         }}
         echo \"$calls $degraded $refused $backwards\";"
    ));
    let numbers: Vec<i64> =
        printed.split(' ').map(|number| number.parse().unwrap_or_else(|_| panic!("{printed}"))).collect();
    let [calls, degraded, refused, backwards] = numbers[..] else { panic!("{printed}") };
    Counted { calls, degraded, refused, backwards }
}

/// What a script has printed; it must have ended with status 0.
pub fn printed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}{}", output.status, errors(output));
    text
}

/// What a script has written to stderr.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until these hosts give this value for the key, and nothing is on its way.
pub fn wait_value(hosts: &mut [&mut Host], key: &str, accept: impl Fn(i64) -> bool) -> i64 {
    poll(&format!("{key} settles"), Duration::from_secs(15), || {
        let mut values = Vec::new();
        for host in hosts.iter_mut() {
            for metric in ["ephpm_kv_shares_pending", "ephpm_kv_unresolved"] {
                let open = host.metric(metric);
                if open != 0.0 {
                    return Err(format!("{}: {metric} is {open}", host.spec.name));
                }
            }
            values.push(host.get(key));
        }
        if values.iter().all(|value| *value == values[0] && accept(*value)) {
            Ok(values[0])
        } else {
            Err(format!("{values:?}"))
        }
    })
}
