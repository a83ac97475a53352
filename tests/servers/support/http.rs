//! The client side of HTTP/1.1, as far as a test needs it: one connection per request, one request per connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::hosts::client::{Request, Server};
use crate::hosts::fcgi::{Failure, Reply};

/// A web server on 127.0.0.1.
#[derive(Debug)]
pub struct Http {
    /// Where it listens.
    pub port: u16,
}

impl Server for Http {
    fn send(&self, request: &Request, limit: Duration) -> Result<Reply, Failure> {
        let started = Instant::now();
        let failure = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::TimedOut(started.elapsed()),
            _ => Failure::Cut(error.to_string()),
        };
        let connected = TcpStream::connect(("127.0.0.1", self.port));
        let mut stream = connected.map_err(|error| Failure::Refused(error.to_string()))?;
        stream.set_write_timeout(Some(limit)).expect("a timeout");
        let (script, query) = (&request.script, request.query());
        let head = format!("GET /{script}?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).map_err(failure)?;
        let mut bytes = Vec::new();
        let mut buffer = [0; 65_536];
        loop {
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(Failure::TimedOut(started.elapsed()));
            }
            stream.set_read_timeout(Some(left)).expect("a timeout");
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => bytes.extend(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failure(error)),
            }
        }
        let (status, body) = parse(&bytes).ok_or_else(|| Failure::Cut(format!("after {} bytes", bytes.len())))?;
        Ok(Reply { status, body, errors: String::new(), elapsed: started.elapsed() })
    }
}

/// Status and body of a complete answer.
fn parse(bytes: &[u8]) -> Option<(u16, String)> {
    let head_ends = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&bytes[..head_ends]).ok()?, &bytes[head_ends + 4..]);
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let header = |name: &str| {
        let headers = head.lines().filter_map(|line| line.split_once(": "));
        headers.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next_back()
    };
    let body = match (header("Transfer-Encoding"), header("Content-Length")) {
        (Some("chunked"), _) => unchunk(body)?,
        (_, Some(length)) => body.get(..length.parse().ok()?)?.to_vec(),
        _ => body.to_vec(),
    };
    Some((status, String::from_utf8(body).ok()?))
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line_ends = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line_ends]).ok()?.trim(), 16).ok()?;
        rest = &rest[line_ends + 2..];
        if length == 0 {
            return Some(body);
        }
        body.extend(rest.get(..length)?);
        rest = rest.get(length + 2..)?;
    }
}

#[test]
fn only_complete_answers_are_taken() {
    let head = "HTTP/1.1 200 OK\r\nServer: x\r\n";
    let parse = |text: String| parse(text.as_bytes());
    let body = |text: &str| Some((200, text.to_owned()));
    assert_eq!(parse(format!("{head}\r\nto the end")), body("to the end"));
    assert_eq!(parse(format!("{head}content-length: 3\r\n\r\nabc")), body("abc"));
    assert_eq!(parse(format!("{head}Content-Length: 3\r\n\r\nab")), None);
    assert_eq!(
        parse(format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n")),
        body("abc0123456789")
    );
    assert_eq!(parse(format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")), None);
    assert_eq!(parse(head.to_owned()), None);
}
