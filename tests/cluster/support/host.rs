//! One host: a PHP process (and the children it forks) with a module, settings and a segment of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::poll;

/// How long one command to a host may take, unless the caller knows better.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What a host is started with; starting it twice is a restart under the same node id.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Node id and name in the logs.
    pub name: String,
    /// Port of 127.0.0.1, UDP and TCP.
    pub port: u16,
    /// `ephpm_kv.` entries by short name.
    pub ini: BTreeMap<String, String>,
    /// Environment of its processes.
    pub env: BTreeMap<String, String>,
    /// Where it logs.
    pub dir: PathBuf,
}

/// A value that crosses between the test and PHP.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// int
    Int(i64),
    /// float
    Float(f64),
    /// string
    Text(String),
    /// bool
    Bool(bool),
    /// null
    Null,
}

/// The result of one function call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What the function returned.
    pub value: Value,
    /// `ephpm_kv_degraded()` right after.
    pub degraded: bool,
    /// How long the call took.
    pub elapsed: Duration,
}

/// The part of `ephpm_kv_info()` that tests look at.
#[derive(Clone, Debug)]
pub struct Info {
    /// disabled, alone, joining, ready or leaving.
    pub state: String,
    /// Live members in this host's view.
    pub members: u64,
    /// Bytes in use.
    pub memory_used: u64,
    /// Why the state is what it is.
    pub reason: String,
}

/// One process's use of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Process id.
    pub pid: u32,
    /// Resident KiB.
    pub rss_kib: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// A running host; ends with the value, whatever happens.
pub struct Host {
    /// What it was started with.
    pub spec: Spec,
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    group: i32,
    /// Every process of the group is known to be gone, so its number may be somebody else's by now.
    ended: bool,
}

/// The module built for tests, as an absolute path.
pub fn module() -> PathBuf {
    let path = match std::env::var_os("EPHPM_KV_TEST_MODULE") {
        Some(path) => PathBuf::from(path),
        None => root().join("target/testing-modules/ephpm_kv.so"),
    };
    assert!(path.exists(), "{} is missing: run `make test-module` first", path.display());
    path
}

/// The repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `php` with this host's module and settings, ready for a script's name.
pub fn php(spec: &Spec) -> Command {
    let mut command = Command::new(std::env::var("PHP").unwrap_or_else(|_| "php".into()));
    command.arg("-n").args(["-d", "display_errors=stderr", "-d", "error_reporting=-1", "-d", "html_errors=0"]);
    command.arg("-d").arg(format!("extension={}", module().display()));
    for (name, value) in &spec.ini {
        command.arg("-d").arg(format!("ephpm_kv.{name}=\"{value}\""));
    }
    command.envs(&spec.env).env("EPHPM_KV_TEST_HOST", &spec.name);
    command
}

impl Spec {
    /// The file this host's processes write their errors to.
    pub fn stderr_path(&self) -> PathBuf {
        self.dir.join(format!("{}.stderr", self.name))
    }

    /// What this host's processes have written to stderr, in all its lives.
    pub fn stderr(&self) -> String {
        std::fs::read(self.stderr_path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Host {
    /// Starts the process; the node starts at the first call.
    pub fn start(spec: &Spec) -> Self {
        Self::start_with(spec, |_| ())
    }

    /// The same, with what `prepare` makes of the command.
    pub fn start_with(spec: &Spec, prepare: impl FnOnce(&mut Command)) -> Self {
        let stderr = File::options().create(true).append(true).open(spec.stderr_path()).expect("a log file");
        let mut command = php(spec);
        command.arg(root().join("tests/php/worker.php"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        // A group of its own, so that it can be killed with all its children at one blow.
        command.process_group(0);
        prepare(&mut command);
        let mut child = command.spawn().expect("php starts");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("a pipe");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let group = child.id() as i32;
        Self { spec: spec.clone(), child, stdin, answers, group, ended: false }
    }

    /// Sends one command and gives the fields of its answer.
    pub fn ask(&mut self, fields: &[&str]) -> Vec<String> {
        self.ask_within(ANSWER_LIMIT, fields).unwrap_or_else(|reason| panic!("{} {fields:?}: {reason}", self.spec.name))
    }

    /// The same with a limit of its own.
    pub fn ask_within(&mut self, limit: Duration, fields: &[&str]) -> Result<Vec<String>, String> {
        let stdin = self.stdin.as_mut().ok_or("it was told to end")?;
        writeln!(stdin, "{}", fields.join("\t")).map_err(|error| format!("it is gone: {error}"))?;
        let line = self.answers.recv_timeout(limit).map_err(|error| format!("no answer: {error}"))?;
        let mut parts = line.split('\t').map(str::to_owned);
        match parts.next().as_deref() {
            Some("ok") => Ok(parts.collect()),
            Some("error") => Err(unescape(&parts.next().unwrap_or_default())),
            _ => Err(format!("not an answer: {line}")),
        }
    }

    /// Calls a PHP function.
    pub fn call(&mut self, function: &str, arguments: &[Value]) -> Answer {
        let encoded: Vec<String> = arguments.iter().map(Value::encode).collect();
        let mut fields = vec!["call", function];
        fields.extend(encoded.iter().map(String::as_str));
        let answer = self.ask(&fields);
        Answer {
            value: Value::decode(&answer[0]),
            degraded: answer[1] == "1",
            elapsed: Duration::from_nanos(answer[2].parse().expect("nanoseconds")),
        }
    }

    /// Runs PHP code in the host's process and gives what it prints, its warnings included (see `run` in
    /// `tests/php/worker.php`).
    pub fn run(&mut self, code: &str) -> String {
        unescape(&self.ask(&["run", &escape(code)])[0])
    }

    /// The same in a child that the host forks for it.
    pub fn run_in_child(&mut self, code: &str) -> String {
        self.run(&format!("echo in_child(function () {{ {code} }});"))
    }

    /// `ephpm_kv_incr`, which must give an integer.
    pub fn incr(&mut self, key: &str, by: i64) -> (i64, bool) {
        let answer = self.call("ephpm_kv_incr", &[Value::text(key), Value::Int(by)]);
        match answer.value {
            Value::Int(value) => (value, answer.degraded),
            other => panic!("{}: ephpm_kv_incr({key}) gave {other:?}", self.spec.name),
        }
    }

    /// `ephpm_kv_get` of a counter; 0 when there is none.
    pub fn get(&mut self, key: &str) -> i64 {
        match self.call("ephpm_kv_get", &[Value::text(key)]).value {
            Value::Text(text) => text.parse().expect("a counter"),
            Value::Null => 0,
            other => panic!("{}: ephpm_kv_get({key}) gave {other:?}", self.spec.name),
        }
    }

    /// `ephpm_kv_owner`.
    pub fn owner(&mut self, key: &str) -> String {
        match self.call("ephpm_kv_owner", &[Value::text(key)]).value {
            Value::Text(text) => text,
            other => panic!("{}: ephpm_kv_owner({key}) gave {other:?}", self.spec.name),
        }
    }

    /// `ephpm_kv_info`.
    pub fn info(&mut self) -> Info {
        let fields = self.ask(&["info"]);
        let number = |index: usize| fields[index].parse().unwrap_or_default();
        Info { state: fields[0].clone(), members: number(1), memory_used: number(4), reason: unescape(&fields[7]) }
    }

    /// The value of one metric, as it stands in the Prometheus text (name and labels); 0 when it is not there.
    pub fn metric(&mut self, name: &str) -> f64 {
        let text = unescape(&self.ask(&["metrics"])[0]);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// Makes calls, so that the node starts, until it is ready and sees so many members.
    pub fn wait_ready(&mut self, members: u64) {
        let name = self.spec.name.clone();
        poll(&format!("{name} ready with {members} members"), Duration::from_secs(15), || {
            self.call("ephpm_kv_get", &[Value::text("warm")]);
            let info = self.info();
            if info.state == "ready" && info.members == members { Ok(()) } else { Err(format!("{info:?}")) }
        });
    }

    /// What this process and its children use now.
    pub fn usage(&mut self) -> Vec<Usage> {
        let answer = self.ask(&["rss"]);
        let parse = |text: &str| {
            let numbers: Vec<u64> = text.split(':').map(|part| part.parse().expect("a number")).collect();
            Usage { pid: numbers[0] as u32, rss_kib: numbers[1], threads: numbers[2], descriptors: numbers[3] }
        };
        answer[0].split(',').map(parse).collect()
    }

    /// The parent's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to every process of the host.
    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved; the group is one that this value started and has not reaped.
        unsafe { libc::kill(-self.group, signal) };
    }

    /// Stops the host's first process and waits until all its threads stand still; `signal(SIGCONT)` wakes it.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.pid());
        poll(&format!("{} stands still", self.spec.name), Duration::from_secs(5), || {
            for task in std::fs::read_dir(&tasks).map_err(|error| error.to_string())?.flatten() {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                if !stat.contains(") T ") {
                    return Err(stat);
                }
            }
            Ok(())
        });
    }

    /// Kills every process of the host at once, without warning.
    pub fn kill(mut self) -> Spec {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("its end");
        self.ended = true;
        self.spec.clone()
    }

    /// The same for several hosts at one blow.
    pub fn kill_all(hosts: Vec<Self>) -> Vec<Spec> {
        hosts.iter().for_each(|host| host.signal(libc::SIGKILL));
        hosts.into_iter().map(Self::kill).collect()
    }

    /// Tells it to end in order and waits for that.
    pub fn quit(mut self) -> ExitStatus {
        if let Some(mut stdin) = self.stdin.take() {
            // It may be gone already, which its status will tell.
            let _ = writeln!(stdin, "exit");
        }
        let status = poll(&format!("{} ends", self.spec.name), Duration::from_secs(15), || {
            self.child.try_wait().expect("a status").ok_or_else(|| "still running".to_owned())
        });
        // Its children ended before it: worker.php waits for them.
        self.ended = true;
        status
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(libc::SIGKILL);
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            print_tail(&format!("{}, end of stderr", self.spec.name), &self.spec.stderr_path());
        }
    }
}

/// Prints the last lines of a log under a heading.
pub fn print_tail(heading: &str, path: &Path) {
    let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    println!("--- {heading}");
    for line in &lines[lines.len().saturating_sub(40)..] {
        println!("{line}");
    }
}

impl Value {
    /// A string.
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    fn encode(&self) -> String {
        match self {
            Self::Int(value) => format!("i:{value}"),
            Self::Float(value) => format!("d:{value:?}"),
            Self::Text(text) => format!("s:{}", escape(text)),
            Self::Bool(true) => "t".into(),
            Self::Bool(false) => "f".into(),
            Self::Null => "n".into(),
        }
    }

    fn decode(field: &str) -> Self {
        match field.split_once(':') {
            Some(("i", value)) => Self::Int(value.parse().expect("an integer")),
            Some(("d", value)) => Self::Float(value.parse().expect("a float")),
            Some(("s", text)) => Self::Text(unescape(text)),
            _ => match field {
                "t" => Self::Bool(true),
                "f" => Self::Bool(false),
                "n" => Self::Null,
                _ => panic!("not a value: {field}"),
            },
        }
    }
}

/// Percent encoding of everything but letters and digits.
pub fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    text.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The reverse, also of PHP's `rawurlencode`; what is not UTF-8 is replaced.
pub fn unescape(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
