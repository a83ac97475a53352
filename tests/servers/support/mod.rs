//! What the tests here have that those of `tests/cluster` and `tests/fpm` have not: web servers, and an HTTP client.

pub mod facts;
pub mod http;
pub mod server;

use crate::hosts::client::Client;
use crate::hosts::fpm::Plan;
use crate::hosts::ready;
use server::{Kind, WebServer};

/// Starts a server of this kind for each plan and waits until each host is ready and sees all.
pub fn start_all(kind: Kind, plans: &[Plan]) -> Vec<WebServer> {
    let servers: Vec<WebServer> = plans.iter().map(|plan| WebServer::start(kind, plan)).collect();
    ready(&clients(&servers), plans.len());
    servers
}

/// One client for each server.
pub fn clients(servers: &[WebServer]) -> Vec<Client> {
    servers.iter().map(WebServer::client).collect()
}
