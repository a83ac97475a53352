//! Web servers with PHP in them, each a host: Apache (prefork, mod_php) and PHP's own (`php -S`).

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::http::Http;
use crate::hosts::client::Client;
use crate::hosts::fpm::{Plan, php};
use crate::hosts::proc;
use crate::shared::host::{print_tail, root};
use crate::shared::{poll, ports};

/// How long a start, a reload or a stop may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where Debian has Apache's modules.
const APACHE_MODULES: &str = "/usr/lib/apache2/modules";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Apache with four processes that serve.
    Apache,
    /// `php -S`, one process.
    Alone,
    /// `php -S` with four processes that serve, and the first, which serves too.
    Workers,
}

/// A running server; ends with the value, whatever happens.
pub struct WebServer {
    /// What it was started with.
    pub plan: Plan,
    kind: Kind,
    http_port: u16,
    child: Child,
    dir: TempDir,
    /// Every process is known to be gone, so their numbers may be somebody else's by now.
    ended: bool,
}

impl Kind {
    /// What it logs when it serves, after a start and after each reload.
    fn serves(self) -> &'static str {
        match self {
            Self::Apache => "resuming normal operations",
            Self::Alone | Self::Workers => ") started",
        }
    }

    fn command(self, dir: &Path, port: u16) -> Command {
        match self {
            Self::Apache => {
                fs::write(dir.join("apache.conf"), apache_conf(dir, port)).expect("apache.conf");
                let mut command = Command::new(std::env::var("APACHE").unwrap_or_else(|_| "/usr/sbin/apache2".into()));
                command.arg("-d").arg(dir).arg("-f").arg(dir.join("apache.conf")).arg("-DFOREGROUND");
                command.env("PHP_INI_SCAN_DIR", "");
                command
            }
            Self::Alone | Self::Workers => {
                let mut command = php(dir);
                command.arg("-S").arg(format!("127.0.0.1:{port}")).arg("-t").arg(dir.join("www"));
                if self == Self::Workers {
                    command.env("PHP_CLI_SERVER_WORKERS", "4");
                }
                command
            }
        }
    }
}

fn apache_conf(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    let module = |name: &str, file: &str| format!("LoadModule {name}_module {APACHE_MODULES}/{file}.so\n");
    let modules =
        [module("mpm_prefork", "mod_mpm_prefork"), module("authz_core", "mod_authz_core"), module("php", "libphp8.2")];
    format!(
        "ServerName localhost\nDefaultRuntimeDir {dir}\nPidFile {dir}/apache.pid\nListen 127.0.0.1:{port}\n{}\
         User www-data\nGroup www-data\nErrorLog {dir}/log\nLogLevel notice\nDocumentRoot {dir}/www\n\
         PHPIniDir {dir}/php.ini\nKeepAlive Off\nStartServers 4\nMinSpareServers 1\nMaxSpareServers 10\n\
         MaxRequestWorkers 4\n<Directory {dir}/www>\nRequire all granted\n</Directory>\n\
         <FilesMatch \"\\.php$\">\nSetHandler application/x-httpd-php\n</FilesMatch>\n",
        modules.concat()
    )
}

impl WebServer {
    /// Starts the server and waits until it serves.
    pub fn start(kind: Kind, plan: &Plan) -> Self {
        Self::start_with(kind, plan, &[])
    }

    /// The same with these variables in its environment.
    pub fn start_with(kind: Kind, plan: &Plan, environment: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().expect("a directory");
        plan.write(dir.path());
        for script in fs::read_dir(root().join("tests/php/servers")).expect("the scripts").flatten() {
            fs::copy(script.path(), dir.path().join("www").join(script.file_name())).expect("a copy");
        }
        let http_port = ports::free_port();
        let log = File::create(dir.path().join("log")).expect("a log file");
        let mut command = kind.command(dir.path(), http_port);
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // A group of its own, so that it can be killed with all its workers at one blow.
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut server = Self { plan: plan.clone(), kind, http_port, child, dir, ended: false };
        poll(&format!("{} serves", plan.name), PATIENCE, || {
            if let Some(status) = server.child.try_wait().expect("a status") {
                panic!("{} ended with {status}", plan.name);
            }
            if server.times_served() > 0 { Ok(()) } else { Err(server.log()) }
        });
        server
    }

    /// How often it has begun to serve.
    pub fn times_served(&self) -> usize {
        self.log().matches(self.kind.serves()).count()
    }

    /// For requests to it.
    pub fn client(&self) -> Client {
        Client::new(&self.plan.name, "www", Http { port: self.http_port })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn log_path(&self) -> PathBuf {
        self.path().join("log")
    }

    /// What server, PHP and node have logged.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The first process.
    pub fn master(&self) -> u32 {
        self.child.id()
    }

    /// The processes forked from it that serve.
    pub fn workers(&self) -> Vec<u32> {
        proc::children(self.master()).into_iter().filter(|pid| proc::comm(*pid) != proc::NODE_COMM).collect()
    }

    /// The node processes of this host: one at most, if all is well.
    pub fn nodes(&self) -> Vec<u32> {
        proc::nodes(&self.plan.name)
    }

    /// Sends a signal to the first process.
    pub fn signal(&self, signal: i32) {
        proc::signal(self.master(), signal);
    }

    /// Sends a signal to all its processes but the node, as a terminal does.
    pub fn signal_all(&self, signal: i32) {
        // SAFETY: no memory is involved; the group is one that this value started and has not reaped.
        unsafe { libc::kill(-(self.master() as i32), signal) };
    }

    /// Has Apache start anew in its process, with the settings as they are in `plan` now, and waits until it serves.
    pub fn restart_gracefully(&self) {
        self.plan.write_settings(self.path());
        let before = self.times_served();
        self.signal(libc::SIGUSR1);
        poll(&format!("{} serves again", self.plan.name), PATIENCE, || {
            if self.times_served() > before { Ok(()) } else { Err(self.log()) }
        });
    }

    /// Waits for the end of its first process, which has been asked for.
    pub fn wait_for_its_end(&mut self) -> ExitStatus {
        poll(&format!("{} ends", self.plan.name), PATIENCE, || {
            self.child.try_wait().expect("a status").ok_or_else(|| format!("still running: {}", self.log()))
        })
    }

    /// The same, and until nothing is left.
    pub fn wait(&mut self) -> ExitStatus {
        let status = self.wait_for_its_end();
        self.plan.leaves_nothing();
        self.ended = true;
        status
    }

    /// Ends it in order, and nothing may be left.
    pub fn stop(mut self) {
        match self.kind {
            Kind::Apache => self.signal(libc::SIGTERM),
            Kind::Alone | Kind::Workers => self.signal_all(libc::SIGINT),
        }
        let status = self.wait();
        assert!(status.success(), "{} ended with {status}", self.plan.name);
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        if !self.ended {
            self.signal_all(libc::SIGKILL);
            let _ = self.child.wait();
            proc::kill_nodes(&self.plan.name);
        }
        if std::thread::panicking() {
            print_tail(&format!("{}, end of log", self.plan.name), &self.log_path());
        }
    }
}
