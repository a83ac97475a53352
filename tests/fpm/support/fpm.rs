//! One php-fpm master with its pools: a host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ephpm_kv::segment::Segment;
use ephpm_kv::segment::descriptors::Descriptors;
use tempfile::TempDir;

use super::client::Client;
use super::{fcgi, proc};
use crate::shared::cluster::settings;
use crate::shared::host::{module, print_tail, root};
use crate::shared::poll;

/// How long a start, a reload or a stop may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What fpm logs when it serves, after a start and after each reload.
const SERVES: &str = "ready to handle connections";

/// What a master is started with; starting it twice is a restart under the same node id.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Node id.
    pub name: String,
    /// Port of 127.0.0.1, UDP and TCP.
    pub port: u16,
    /// `ephpm_kv.` entries by short name.
    pub ini: BTreeMap<String, String>,
    /// More lines of php.ini.
    pub php: Vec<String>,
    /// More lines of the `[global]` section.
    pub global: Vec<String>,
    /// The pools.
    pub pools: Vec<Pool>,
    /// A shell command that becomes php-fpm with `exec "$@"`, in namespaces of its own.
    pub container: Option<String>,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Processes, all started at once.
    pub workers: usize,
    /// Whom they run as, where the tests run as root.
    pub user: String,
    /// More lines of its section.
    pub lines: Vec<String>,
}

/// A running master; ends with the value, whatever happens.
pub struct Fpm {
    /// What it was started with.
    pub plan: Plan,
    child: Child,
    master: u32,
    dir: TempDir,
    /// Every process is known to be gone, so their numbers may be somebody else's by now.
    ended: bool,
}

impl Pool {
    /// So many workers of a user.
    pub fn new(name: &str, workers: usize, user: &str) -> Self {
        Self { name: name.to_owned(), workers, user: user.to_owned(), lines: Vec::new() }
    }

    /// With one more line.
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }
}

impl Plan {
    /// One pool of four workers, in a cluster with these seeds.
    pub fn new(name: &str, port: u16, join: &[String]) -> Self {
        let mut ini = settings(port, name, &join.join(","));
        // As users have it; and no call is degraded only because a small machine is busy.
        ini.remove("role");
        ini.insert("timeout_ms".into(), "2000".into());
        Self {
            name: name.to_owned(),
            port,
            ini,
            php: Vec::new(),
            // Workers finish their request when they are told to end.
            global: vec!["process_control_timeout = 10s".into()],
            pools: vec![Pool::new("www", 4, "www-data")],
            container: None,
        }
    }

    /// With this `ephpm_kv.` entry.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.ini.insert(name.to_owned(), value.to_owned());
        self
    }

    /// With these pools.
    pub fn pools(mut self, pools: impl Into<Vec<Pool>>) -> Self {
        self.pools = pools.into();
        self
    }

    /// With these further lines of php.ini.
    pub fn php(mut self, lines: &[&str]) -> Self {
        self.php.extend(lines.iter().map(|line| (*line).to_owned()));
        self
    }

    /// Name of the abstract socket where the host's processes meet, as the kernel's table shows it.
    pub fn host_socket(&self) -> String {
        let cluster = self.ini.get("cluster_id").map_or("ephpm", String::as_str);
        format!("@ephpm_kv/{cluster}/127.0.0.1:{}", self.port)
    }

    /// Waits until nothing of this host is left: no process, no port, no socket.
    pub fn leaves_nothing(&self) {
        poll(&format!("nothing is left of {}", self.name), Duration::from_secs(10), || {
            let (nodes, sockets) = (proc::nodes(&self.name), proc::unix_sockets(&self.host_socket()));
            let free = proc::port_is_free(self.port);
            if nodes.is_empty() && sockets.is_empty() && free {
                return Ok(());
            }
            Err(format!("nodes {nodes:?}, sockets {sockets:?}, ports free: {free}"))
        });
    }

    fn php_ini(&self) -> String {
        let mut text = String::from("display_errors=0\nlog_errors=1\nhtml_errors=0\nerror_reporting=-1\n");
        writeln!(text, "extension={}", module().display()).expect("text");
        for line in &self.php {
            writeln!(text, "{line}").expect("text");
        }
        for (name, value) in &self.ini {
            writeln!(text, "ephpm_kv.{name}=\"{value}\"").expect("text");
        }
        text
    }

    fn fpm_conf(&self, dir: &Path) -> String {
        let mut text = format!("[global]\ndaemonize = no\nerror_log = {}\n", dir.join("fpm.log").display());
        for line in &self.global {
            writeln!(text, "{line}").expect("text");
        }
        for pool in &self.pools {
            let socket = dir.join(&pool.name).with_extension("sock");
            writeln!(text, "[{}]\nuser = {}\nlisten = {}", pool.name, pool.user, socket.display()).expect("text");
            writeln!(text, "listen.mode = 0666\npm = static\npm.max_children = {}", pool.workers).expect("text");
            for line in &pool.lines {
                writeln!(text, "{line}").expect("text");
            }
        }
        text
    }

    /// Writes the settings, which may have changed.
    pub fn write_settings(&self, dir: &Path) {
        fs::write(dir.join("php.ini"), self.php_ini()).expect("php.ini");
    }

    /// Writes everything that php-fpm and php need into a directory.
    pub fn write(&self, dir: &Path) {
        self.write_settings(dir);
        fs::write(dir.join("fpm.conf"), self.fpm_conf(dir)).expect("fpm.conf");
        let scripts = dir.join("www");
        fs::create_dir_all(&scripts).expect("a directory");
        for script in fs::read_dir(root().join("tests/php/fpm")).expect("the scripts").flatten() {
            fs::copy(script.path(), scripts.join(script.file_name())).expect("a copy");
        }
        // The workers are other users, who may not reach the repository or a directory of root's.
        for path in [dir, &scripts] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).expect("permissions");
        }
    }
}

/// A PHP program with the settings in this directory, and no others.
fn with_settings(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("-c").arg(dir.join("php.ini")).env("PHP_INI_SCAN_DIR", "").current_dir(dir);
    command
}

/// `php-fpm` with the settings in this directory.
pub fn php_fpm(dir: &Path) -> Command {
    let program = std::env::var("PHP_FPM").unwrap_or_else(|_| "php-fpm8.2".into());
    let mut command = with_settings(&program, dir);
    command.arg("-y").arg(dir.join("fpm.conf"));
    command
}

/// `php` with the settings in this directory, as cron would start it.
pub fn php(dir: &Path) -> Command {
    with_settings(&std::env::var("PHP").unwrap_or_else(|_| "php".into()), dir)
}

/// `command` as the first process of a container: `script` runs there as root and becomes it with `exec "$@"`.
fn contained(command: &Command, script: &str) -> Command {
    let mut outer = Command::new("unshare");
    outer.args(["--pid", "--fork", "--mount", "--mount-proc", "--kill-child", "sh", "-c", script, "sh"]);
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        outer.env(name, value.unwrap_or_default());
    }
    outer.current_dir(command.get_current_dir().expect("a directory"));
    outer
}

impl Fpm {
    /// Starts the master and waits until it serves; the node starts at the first request.
    pub fn start(plan: &Plan) -> Self {
        Self::start_in(plan, TempDir::new().expect("a directory"))
    }

    /// The same in a directory that has been prepared.
    pub fn start_in(plan: &Plan, dir: TempDir) -> Self {
        plan.write(dir.path());
        let stderr = File::create(dir.path().join("stderr")).expect("a log file");
        let mut command = php_fpm(dir.path());
        if let Some(script) = &plan.container {
            command = contained(&command, script);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // A group of its own, so that it can be killed with all its workers at one blow.
        command.process_group(0);
        let child = command.spawn().expect("php-fpm starts");
        let master = child.id();
        let mut fpm = Self { plan: plan.clone(), child, master, dir, ended: false };
        poll(&format!("{} serves", plan.name), PATIENCE, || {
            if let Some(status) = fpm.child.try_wait().expect("a status") {
                panic!("{} ended with {status}: {}{}", plan.name, fpm.fpm_log(), fpm.log());
            }
            if fpm.times_served() == 1 { Ok(()) } else { Err(fpm.fpm_log()) }
        });
        if plan.container.is_some() {
            fpm.master = proc::children(master)[0];
        }
        fpm
    }

    fn times_served(&self) -> usize {
        self.fpm_log().matches(SERVES).count()
    }

    /// For the pool of this number.
    pub fn client(&self, pool: usize) -> Client {
        let pool = &self.plan.pools[pool];
        let socket = self.path().join(&pool.name).with_extension("sock");
        let scripts = self.path().join("www");
        Client::new(&self.plan.name, &pool.name, fcgi::Pool { socket, scripts })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The socket of a pool.
    pub fn listen_path(&self, pool: usize) -> PathBuf {
        self.path().join(&self.plan.pools[pool].name).with_extension("sock")
    }

    /// What the node has logged, and what PHP has written at start-up.
    pub fn log(&self) -> String {
        read(&self.path().join("stderr"))
    }

    /// What fpm has logged.
    pub fn fpm_log(&self) -> String {
        read(&self.path().join("fpm.log"))
    }

    /// The master's process id.
    pub fn master(&self) -> u32 {
        self.master
    }

    /// The workers' process ids.
    pub fn workers(&self) -> Vec<u32> {
        proc::children(self.master).into_iter().filter(|pid| proc::comm(*pid) != proc::NODE_COMM).collect()
    }

    /// The node processes of this host: one at most, if all is well.
    pub fn nodes(&self) -> Vec<u32> {
        proc::nodes(&self.plan.name)
    }

    /// The host's segment, which the caller can look at even when every process is gone.
    pub fn segment(&self) -> Arc<Segment> {
        let worker = self.workers()[0];
        let descriptors = proc::descriptors(worker);
        let (number, _) = descriptors.iter().find(|(_, link)| link.contains("memfd:ephpm_kv")).expect("the segment");
        let memory = File::options().read(true).write(true).open(format!("/proc/{worker}/fd/{number}"));
        // With a lifeline of its own: nothing waits for the test to let go.
        let lifeline = Descriptors::create(1 << 16).expect("a pipe");
        Segment::join(Descriptors { memory: memory.expect("the segment").into(), ..lifeline }).expect("a segment")
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: i32) {
        proc::signal(self.master, signal);
    }

    /// Has the master execute itself anew, with the settings as they are in `plan` now, and waits until it serves.
    pub fn reload(&self) {
        self.plan.write_settings(self.path());
        let before = self.times_served();
        self.signal(libc::SIGUSR2);
        poll(&format!("{} serves again", self.plan.name), PATIENCE, || {
            if self.times_served() > before { Ok(()) } else { Err(self.fpm_log()) }
        });
    }

    /// Waits for the master's end, which has been asked for.
    pub fn wait(&mut self) -> ExitStatus {
        poll(&format!("{} ends", self.plan.name), PATIENCE, || {
            self.child.try_wait().expect("a status").ok_or_else(|| format!("still running: {}", self.fpm_log()))
        })
    }

    /// Tells the master to end with this signal and waits for that; it must end with status 0 and leave nothing.
    pub fn stop(mut self, signal: i32) {
        self.signal(signal);
        let status = self.wait();
        assert!(status.success(), "{} ended with {status}", self.plan.name);
        self.leaves_nothing();
    }

    /// Waits until nothing of this host is left, as it must be soon after its end.
    pub fn leaves_nothing(&mut self) {
        self.plan.leaves_nothing();
        self.ended = true;
    }

    fn kill_everything(&mut self) {
        // The node first: it would leave in order when it sees that it is alone.
        self.nodes().into_iter().for_each(|pid| proc::signal(pid, libc::SIGKILL));
        // SAFETY: no memory is involved; the group is one that this value started and has not reaped.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
        proc::kill_nodes(&self.plan.name);
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        if !self.ended {
            self.kill_everything();
        }
        if std::thread::panicking() {
            for what in ["fpm.log", "stderr"] {
                print_tail(&format!("{}, end of {what}", self.plan.name), &self.path().join(what));
            }
        }
    }
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
