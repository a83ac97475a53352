//! What kind of process PHP runs in.

use crate::config::Runtime;

/// The server interface (SAPI) that loaded the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sapi {
    name: String,
    thread_safe: bool,
}

impl Sapi {
    /// By PHP's name for it, and whether PHP was built thread-safe.
    pub fn new(name: &str, thread_safe: bool) -> Self {
        Self { name: name.to_string(), thread_safe }
    }

    /// The command line: one script per process.
    pub(super) fn is_cli(&self) -> bool {
        self.name == "cli"
    }

    /// Whether it serves requests in processes that it forks.
    fn forks(&self) -> bool {
        let more_than = |name: &str, least: u32| {
            let value = std::env::var(name).ok().and_then(|value| value.trim().parse::<u32>().ok());
            value.is_some_and(|value| value > least)
        };
        match self.name.as_str() {
            "fpm-fcgi" | "litespeed" => true,
            // A thread-safe Apache module is for the threaded MPMs.
            "apache2handler" => !self.thread_safe,
            "cgi-fcgi" => more_than("PHP_FCGI_CHILDREN", 0),
            "cli-server" => more_than("PHP_CLI_SERVER_WORKERS", 1),
            _ => false,
        }
    }

    /// Whether its master executes itself anew to reload (php-fpm, SIGUSR2).
    pub(super) fn executes_itself(&self) -> bool {
        self.name == "fpm-fcgi"
    }

    /// Where the node runs: never [`Runtime::Auto`].
    pub(super) fn runtime(&self, configured: Runtime) -> Runtime {
        match configured {
            Runtime::Auto if self.forks() => Runtime::Process,
            Runtime::Auto => Runtime::Thread,
            fixed => fixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_a_process_where_workers_are_forked() {
        for (name, thread_safe, expected) in [
            ("fpm-fcgi", false, Runtime::Process),
            ("apache2handler", false, Runtime::Process),
            ("apache2handler", true, Runtime::Thread),
            ("cli", false, Runtime::Thread),
            ("frankenphp", true, Runtime::Thread),
            ("embed", true, Runtime::Thread),
        ] {
            let sapi = Sapi::new(name, thread_safe);
            assert_eq!(sapi.runtime(Runtime::Auto), expected, "{name}");
            assert_eq!(sapi.runtime(Runtime::Thread), Runtime::Thread);
            assert_eq!(sapi.runtime(Runtime::Process), Runtime::Process);
        }
    }
}
