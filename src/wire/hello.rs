//! The handshake: who is calling, and whether the two may talk.
//!
//! The caller sends a [`Hello`]; the answer is the other side's own, or a refusal with a reason for the operator. Its
//! layout up to the versions is the same for ever, so that any two releases can at least tell each other so.

use std::net::SocketAddr;

use bytes::{BufMut, BytesMut};

use super::WireError;
use super::body::{Reader, put_option, put_text};
use super::frame::{Frame, encode_frame};
use crate::config::testing_number;

/// The protocol this release speaks.
pub const PROTOCOL: u16 = 1;

/// The oldest it also speaks: a rolling upgrade is one cluster.
pub const PROTOCOL_OLDEST: u16 = PROTOCOL - 1;

/// [`PROTOCOL`], unless a test has to see what the next release will say.
pub fn protocol() -> u16 {
    static ANNOUNCED: std::sync::OnceLock<u16> = std::sync::OnceLock::new();
    let announced = || testing_number("EPHPM_KV_TEST_PROTOCOL").map_or(PROTOCOL, |number| number as u16);
    *ANNOUNCED.get_or_init(announced)
}

/// The oldest that is spoken besides [`protocol`].
fn protocol_oldest() -> u16 {
    protocol() - (PROTOCOL - PROTOCOL_OLDEST)
}

/// Whether a node that announces protocol `theirs` and this one understand each other: each speaks its own and the one
/// before.
pub fn speaks_with(theirs: u16) -> bool {
    theirs.abs_diff(protocol()) <= PROTOCOL - PROTOCOL_OLDEST
}

/// Largest `len` of a handshake's frame: what a stranger can make a node allocate.
pub const HELLO_LEN_MAX: usize = 4_096;

const MAGIC: [u8; 4] = *b"EPKV";

const HELLO: u8 = 0x40;
const HELLO_OK: u8 = 0x41;
const HELLO_REFUSED: u8 = 0x42;

/// Settings that must agree in a cluster, because each node computes with them on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `ephpm_kv.replicas`
    pub replicas: u32,
    /// `ephpm_kv.copy_all_max`
    pub copy_all_max: u32,
    /// Number of placement slots.
    pub slots: u32,
}

/// What this side says of itself in every handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct LocalHello {
    /// `ephpm_kv.cluster_id`
    pub cluster_id: String,
    /// This node's id; that of its host's node when a PHP process calls it.
    pub node_id: String,
    /// Boot time in nanoseconds.
    pub generation: u64,
    /// The segment.
    pub origin: u64,
    /// Where peers dial this node; `None` for one that is not to be dialled.
    pub address: Option<SocketAddr>,
    /// Owns no slots.
    pub client: bool,
    /// Must agree with the peer's.
    pub settings: Settings,
    /// Proves on the host's own Unix socket that both sides map the same segment. Never sent over TCP.
    pub token: [u8; 16],
}

impl std::fmt::Debug for LocalHello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token.
        write!(f, "LocalHello({} {} {})", self.cluster_id, self.node_id, self.generation)
    }
}

impl LocalHello {
    /// The message that opens a connection (or answers one) whose requests are named by `stream`; with the token only
    /// `on_unix_socket`.
    pub fn hello(&self, stream: u64, on_unix_socket: bool) -> Hello {
        Hello {
            version: protocol(),
            version_oldest: protocol_oldest(),
            cluster_id: self.cluster_id.clone(),
            node_id: self.node_id.clone(),
            generation: self.generation,
            origin: self.origin,
            stream,
            address: self.address,
            client: self.client,
            settings: self.settings,
            token: on_unix_socket.then_some(self.token),
        }
    }

    /// Whether to talk to a peer that said `peer`, over TCP: the protocol version to speak, or why not.
    pub fn judge(&self, peer: &Hello) -> Result<u16, HelloRefused> {
        let version = common_version(peer)?;
        if peer.cluster_id != self.cluster_id {
            let reason =
                format!("cluster id \"{}\" here, \"{}\" at {}", self.cluster_id, peer.cluster_id, peer.node_id);
            return Err(HelloRefused { code: RefusalCode::ClusterId, reason });
        }
        if peer.node_id == self.node_id {
            let address = self.address.map_or_else(String::new, |address| format!(" at {address}"));
            let reason = format!("node id \"{}\" is mine{address}: node ids must differ", self.node_id);
            return Err(HelloRefused { code: RefusalCode::NodeId, reason });
        }
        let (mine, theirs) = (&self.settings, &peer.settings);
        for (name, mine, theirs) in [
            ("ephpm_kv.replicas", mine.replicas, theirs.replicas),
            ("ephpm_kv.copy_all_max", mine.copy_all_max, theirs.copy_all_max),
            ("the number of slots", mine.slots, theirs.slots),
        ] {
            if mine != theirs {
                let (here, there) = (&self.node_id, &peer.node_id);
                let reason = format!("{name} must agree: {mine} at {here}, {theirs} at {there}");
                return Err(HelloRefused { code: RefusalCode::Settings, reason });
            }
        }
        Ok(version)
    }

    /// The same for a process of this host that calls on the Unix socket: it must know the segment's token.
    pub fn judge_local(&self, peer: &Hello) -> Result<u16, HelloRefused> {
        let version = common_version(peer)?;
        let same = peer.token.is_some_and(|token| {
            // Every byte is compared whatever the first ones are, so that the time taken says nothing.
            token.iter().zip(&self.token).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
        });
        if !same {
            let reason = "the caller's token is not this host segment's".to_owned();
            return Err(HelloRefused { code: RefusalCode::Token, reason });
        }
        Ok(version)
    }
}

/// The highest version that both sides speak.
fn common_version(peer: &Hello) -> Result<u16, HelloRefused> {
    let (oldest, newest) = (protocol_oldest(), protocol());
    let version = peer.version.min(newest);
    if version >= peer.version_oldest && (oldest..=newest).contains(&version) {
        return Ok(version);
    }
    let reason = format!(
        "protocol versions {oldest} to {newest} here, {} to {} at {}",
        peer.version_oldest, peer.version, peer.node_id
    );
    Err(HelloRefused { code: RefusalCode::Version, reason })
}

/// The first message of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Newest protocol version it speaks.
    pub version: u16,
    /// Oldest protocol version it speaks.
    pub version_oldest: u16,
    /// Its cluster.
    pub cluster_id: String,
    /// Its node id.
    pub node_id: String,
    /// Its boot time in nanoseconds.
    pub generation: u64,
    /// Its segment.
    pub origin: u64,
    /// Names the request ids of this connection; chosen at random by the caller, repeated in the answer.
    pub stream: u64,
    /// Where peers dial it.
    pub address: Option<SocketAddr>,
    /// It owns no slots.
    pub client: bool,
    /// Must agree.
    pub settings: Settings,
    /// On the host's Unix socket: the segment's token.
    pub token: Option<[u8; 16]>,
}

/// Why a handshake was refused, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalCode {
    /// Another cluster.
    ClusterId = 1,
    /// No protocol version in common.
    Version = 2,
    /// A setting that must agree does not.
    Settings = 3,
    /// The caller has the answerer's node id.
    NodeId = 4,
    /// Not a process of this host segment.
    Token = 5,
    /// The node behind the handshake does not want this peer (a newer generation of it is connected, say).
    NotAdmitted = 6,
    /// The answerer is not the node that the caller meant to reach. Never sent: callers conclude it.
    OtherNode = 7,
}

impl RefusalCode {
    /// The refusal that a wire number stands for; what this release does not know is [`RefusalCode::NotAdmitted`].
    fn from_code(code: u8) -> Self {
        use RefusalCode::*;
        [ClusterId, Version, Settings, NodeId, Token, NotAdmitted, OtherNode]
            .into_iter()
            .find(|refusal| *refusal as u8 == code)
            .unwrap_or(NotAdmitted)
    }
}

/// A refused handshake. The connection is closed; nothing was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused: {reason}")]
pub struct HelloRefused {
    /// As a number.
    pub code: RefusalCode,
    /// For the operator.
    pub reason: String,
}

/// The answer to a [`Hello`].
pub type HelloAnswer = Result<Hello, HelloRefused>;

/// Appends a hello as a frame.
pub fn encode_hello(hello: &Hello, out: &mut BytesMut) {
    encode_frame(HELLO, 0, out, |out| put_hello(out, hello));
}

/// Appends an answer as a frame.
pub fn encode_answer(answer: &HelloAnswer, out: &mut BytesMut) {
    match answer {
        Ok(hello) => encode_frame(HELLO_OK, 0, out, |out| put_hello(out, hello)),
        Err(refused) => encode_frame(HELLO_REFUSED, 0, out, |out| {
            out.put_u8(refused.code as u8);
            put_text(out, &refused.reason);
        }),
    }
}

/// The hello in `frame`. Errors: as [`super::decode_request`], and [`WireError::Invalid`] for a wrong magic.
pub fn decode_hello(frame: Frame) -> Result<Hello, WireError> {
    match frame.kind {
        HELLO => read_hello(frame),
        kind => Err(WireError::UnknownType(kind)),
    }
}

/// The answer in `frame`. Errors: as [`decode_hello`].
pub fn decode_answer(frame: Frame) -> Result<HelloAnswer, WireError> {
    match frame.kind {
        HELLO_OK => read_hello(frame).map(Ok),
        HELLO_REFUSED => {
            let mut r = Reader::new(frame);
            let refused = HelloRefused { code: RefusalCode::from_code(r.u8()?), reason: r.text()? };
            r.end()?;
            Ok(Err(refused))
        }
        kind => Err(WireError::UnknownType(kind)),
    }
}

fn put_hello(out: &mut BytesMut, hello: &Hello) {
    out.put_slice(&MAGIC);
    out.put_u16_le(hello.version);
    out.put_u16_le(hello.version_oldest);
    put_text(out, &hello.cluster_id);
    put_text(out, &hello.node_id);
    out.put_u64_le(hello.generation);
    out.put_u64_le(hello.origin);
    out.put_u64_le(hello.stream);
    put_option(out, hello.address, |out, address| put_text(out, &address.to_string()));
    out.put_u8(hello.client.into());
    out.put_u32_le(hello.settings.replicas);
    out.put_u32_le(hello.settings.copy_all_max);
    out.put_u32_le(hello.settings.slots);
    put_option(out, hello.token, |out, token| out.put_slice(&token));
}

fn read_hello(frame: Frame) -> Result<Hello, WireError> {
    let mut r = Reader::new(frame);
    if r.take(MAGIC.len())? != MAGIC[..] {
        return Err(r.invalid("magic"));
    }
    let hello = Hello {
        version: r.u16()?,
        version_oldest: r.u16()?,
        cluster_id: r.text()?,
        node_id: r.text()?,
        generation: r.u64()?,
        origin: r.u64()?,
        stream: r.u64()?,
        address: r.option(|r| r.text()?.parse().map_err(|_| r.invalid("address")))?,
        client: r.flag()?,
        settings: Settings { replicas: r.u32()?, copy_all_max: r.u32()?, slots: r.u32()? },
        token: r.option(|r| {
            let mut token = [0; 16];
            token.copy_from_slice(&r.take(16)?);
            Ok(token)
        })?,
    };
    // A newer release may say more of itself.
    if hello.version <= protocol() || r.left() == 0 {
        r.end()?;
    }
    Ok(hello)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::frame::decode_frame;
    use super::*;

    fn local(node_id: &str) -> LocalHello {
        LocalHello {
            cluster_id: "shop".into(),
            node_id: node_id.into(),
            generation: 7,
            origin: 8,
            address: Some("[::1]:7946".parse().unwrap()),
            client: false,
            settings: Settings { replicas: 2, copy_all_max: 16, slots: 16_384 },
            token: [9; 16],
        }
    }

    fn frame(encode: impl FnOnce(&mut BytesMut)) -> Frame {
        let mut out = BytesMut::new();
        encode(&mut out);
        decode_frame(&mut out, HELLO_LEN_MAX).unwrap().unwrap()
    }

    #[test]
    fn hellos_and_answers_come_back_as_they_went() {
        for unix in [false, true] {
            let hello = local("a").hello(99, unix);
            assert_eq!(hello.token.is_some(), unix);
            let sent = frame(|out| encode_hello(&hello, out));
            for len in 0..sent.body.len() {
                assert!(decode_hello(Frame { body: sent.body.slice(..len), ..sent.clone() }).is_err());
            }
            assert_eq!(decode_hello(sent), Ok(hello.clone()));
            assert_eq!(decode_answer(frame(|out| encode_answer(&Ok(hello.clone()), out))), Ok(Ok(hello)));
        }
        let refused = HelloRefused { code: RefusalCode::Settings, reason: "é".into() };
        let sent = frame(|out| encode_answer(&Err(refused.clone()), out));
        assert_eq!(decode_answer(sent), Ok(Err(refused)));
    }

    /// Up to the versions this is the same in all releases.
    #[test]
    fn golden_bytes() {
        let mut out = BytesMut::new();
        encode_hello(&local("a").hello(0x0102, true), &mut out);
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "5d000000", // 93 bytes follow
                "40",
                "0000000000000000",
                "45504b56", // EPKV
                "0100",     // version
                "0000",     // oldest
                "040073686f70",
                "010061",
                "0700000000000000", // generation
                "0800000000000000", // origin
                "0201000000000000", // stream
                "010a005b3a3a315d3a37393436",
                "00", // no client
                "02000000",
                "10000000",
                "00400000",
                "0109090909090909090909090909090909",
            )
        );
    }

    #[test]
    fn a_hello_of_full_length_fits_the_cap() {
        let mut local = local(&"n".repeat(64));
        local.cluster_id = "c".repeat(255);
        let sent = frame(|out| encode_hello(&local.hello(1, true), out));
        assert!(sent.body.len() < HELLO_LEN_MAX / 2);
    }

    #[test]
    fn other_protocols_and_later_releases() {
        let mut out = BytesMut::new();
        encode_hello(&local("a").hello(1, false), &mut out);
        out[13] = b'X';
        let wrong_magic = decode_frame(&mut out, HELLO_LEN_MAX).unwrap().unwrap();
        assert_eq!(decode_hello(wrong_magic), Err(WireError::Invalid { kind: HELLO, what: "magic" }));
        assert_eq!(decode_hello(Frame { kind: 1, id: 0, body: Bytes::new() }), Err(WireError::UnknownType(1)));

        let newer = Hello { version: PROTOCOL + 1, version_oldest: PROTOCOL, ..local("a").hello(1, false) };
        let mut sent = frame(|out| encode_hello(&newer, out));
        sent.body = [&sent.body[..], b"more"].concat().into();
        assert_eq!(decode_hello(sent), Ok(newer.clone()));
        assert_eq!(local("b").judge(&newer), Ok(PROTOCOL));
        let older = Hello { version: PROTOCOL - 1, version_oldest: 0, ..newer.clone() };
        assert_eq!(local("b").judge(&older), Ok(PROTOCOL - 1));
        let far = Hello { version: PROTOCOL + 2, version_oldest: PROTOCOL + 1, ..newer };
        let refused = local("b").judge(&far).unwrap_err();
        assert_eq!(refused.code, RefusalCode::Version);
        assert_eq!(refused.reason, "protocol versions 0 to 1 here, 2 to 3 at a");
        let mut sent = frame(|out| encode_hello(&local("a").hello(1, false), out));
        sent.body = [&sent.body[..], b"more"].concat().into();
        assert_eq!(decode_hello(sent), Err(WireError::Trailing { kind: HELLO, left: 4 }));
    }

    #[test]
    fn refusals_name_what_differs() {
        let refusal = |change: fn(&mut Hello)| {
            let mut hello = local("b").hello(1, false);
            change(&mut hello);
            local("a").judge(&hello).unwrap_err()
        };
        let refused = refusal(|hello| hello.cluster_id = "bank".into());
        assert_eq!(refused.code, RefusalCode::ClusterId);
        assert_eq!(refused.reason, "cluster id \"shop\" here, \"bank\" at b");
        let refused = refusal(|hello| hello.node_id = "a".into());
        assert_eq!(refused.code, RefusalCode::NodeId);
        assert_eq!(refused.reason, "node id \"a\" is mine at [::1]:7946: node ids must differ");
        let refused = refusal(|hello| hello.settings.replicas = 3);
        assert_eq!(refused.code, RefusalCode::Settings);
        assert_eq!(refused.reason, "ephpm_kv.replicas must agree: 2 at a, 3 at b");
        assert!(refusal(|hello| hello.settings.copy_all_max = 3).reason.starts_with("ephpm_kv.copy_all_max must"));
        assert!(refusal(|hello| hello.settings.slots = 3).reason.starts_with("the number of slots must"));
        assert_eq!(local("a").judge(&local("b").hello(1, false)), Ok(PROTOCOL));
    }

    #[test]
    fn the_unix_socket_asks_for_the_token_only() {
        let node = local("a");
        assert_eq!(node.judge_local(&node.hello(1, true)), Ok(PROTOCOL));
        assert_eq!(node.judge_local(&node.hello(1, false)).unwrap_err().code, RefusalCode::Token);
        let mut hello = node.hello(1, true);
        hello.token.as_mut().unwrap()[15] = 0;
        assert_eq!(node.judge_local(&hello).unwrap_err().code, RefusalCode::Token);
    }

    #[test]
    fn unknown_refusals_are_not_admitted() {
        for code in 0..=u8::MAX {
            let known = RefusalCode::from_code(code);
            assert_eq!(known as u8, if (1..=7).contains(&code) { code } else { RefusalCode::NotAdmitted as u8 });
        }
    }
}
