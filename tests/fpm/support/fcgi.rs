//! The client side of FastCGI, as far as a test needs it: one connection per request, one request per connection.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::client::{Request, Server};

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// Role "responder", and no flags: the server closes the connection.
const RESPONDER: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Without the headers.
    pub body: String,
    /// What PHP logged during the request.
    pub errors: String,
    /// From the connect to the end of the request.
    pub elapsed: Duration,
}

/// Why there is no complete answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// Nobody took the connection: the script did not run.
    Refused(String),
    /// The connection ended in the middle: the script may have run in part.
    Cut(String),
    /// The deadline passed.
    TimedOut(Duration),
}

/// A pool of php-fpm.
#[derive(Debug)]
pub struct Pool {
    /// Where it listens.
    pub socket: PathBuf,
    /// Where its scripts are.
    pub scripts: PathBuf,
}

impl Server for Pool {
    fn send(&self, wanted: &Request, limit: Duration) -> Result<Reply, Failure> {
        let script = self.scripts.join(&wanted.script).display().to_string();
        let mut params: Vec<(String, String)> = [
            ("SCRIPT_FILENAME", script.as_str()),
            ("SCRIPT_NAME", &format!("/{}", wanted.script)),
            ("QUERY_STRING", &wanted.query()),
            ("REQUEST_METHOD", "GET"),
            ("SERVER_PROTOCOL", "HTTP/1.1"),
            ("DOCUMENT_ROOT", &self.scripts.display().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        params.extend(wanted.params.iter().cloned());
        request(&self.socket, &params, limit)
    }
}

/// Makes one request.
fn request(socket: &Path, params: &[(String, String)], limit: Duration) -> Result<Reply, Failure> {
    let started = Instant::now();
    let mut stream = UnixStream::connect(socket).map_err(|error| Failure::Refused(error.to_string()))?;
    let cut = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::TimedOut(started.elapsed()),
        _ => Failure::Cut(error.to_string()),
    };
    stream.set_write_timeout(Some(limit)).expect("a timeout");
    stream.write_all(&encode(params)).map_err(cut)?;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    loop {
        let mut header = [0; 8];
        read_exact(&mut stream, &mut header, started, limit)?;
        let content = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut body = vec![0; content + usize::from(header[6])];
        read_exact(&mut stream, &mut body, started, limit)?;
        body.truncate(content);
        match header[1] {
            STDOUT => output.extend(body),
            STDERR => errors.extend(body),
            END_REQUEST => break,
            kind => return Err(Failure::Cut(format!("a record of type {kind}"))),
        }
    }
    let output = String::from_utf8_lossy(&output).into_owned();
    let (head, body) = output.split_once("\r\n\r\n").unwrap_or((&output, ""));
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")?.get(..3)?.parse().ok());
    Ok(Reply {
        status: status.unwrap_or(200),
        body: body.to_owned(),
        errors: String::from_utf8_lossy(&errors).into_owned(),
        elapsed: started.elapsed(),
    })
}

fn read_exact(
    stream: &mut UnixStream,
    mut buffer: &mut [u8],
    started: Instant,
    limit: Duration,
) -> Result<(), Failure> {
    while !buffer.is_empty() {
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(Failure::TimedOut(started.elapsed()));
        }
        stream.set_read_timeout(Some(left)).expect("a timeout");
        match stream.read(buffer) {
            Ok(0) => return Err(Failure::Cut("end of file".into())),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) => match error.kind() {
                ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                _ => return Err(Failure::Cut(error.to_string())),
            },
        }
    }
    Ok(())
}

fn encode(params: &[(String, String)]) -> Vec<u8> {
    let mut pairs = Vec::new();
    for (name, value) in params {
        for text in [name, value] {
            match u8::try_from(text.len()) {
                Ok(short) if short < 128 => pairs.push(short),
                _ => pairs.extend((text.len() as u32 | 1 << 31).to_be_bytes()),
            }
        }
        pairs.extend(name.as_bytes());
        pairs.extend(value.as_bytes());
    }
    let mut bytes = Vec::new();
    record(&mut bytes, BEGIN_REQUEST, &RESPONDER);
    record(&mut bytes, PARAMS, &pairs);
    record(&mut bytes, PARAMS, &[]);
    record(&mut bytes, STDIN, &[]);
    bytes
}

fn record(bytes: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let length = u16::try_from(content.len()).expect("content that fits one record");
    bytes.extend([1, kind, 0, 1]);
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(content);
}
