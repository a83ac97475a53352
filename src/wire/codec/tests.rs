use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::frame::{HEADER_LEN, decode_frame};
use super::*;
use crate::error::Refusal;
use crate::record::{Body, Copy, Diverged, Share, State, Window};

const REQUESTS: std::ops::RangeInclusive<u8> = 0x01..=0x12;
/// Besides these.
const FURTHER: std::ops::RangeInclusive<u8> = kind::STANDING..=kind::OFFER;
const RESPONSES: std::ops::RangeInclusive<u8> = 0x81..=0x8b;

fn arb_bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn arb_key() -> impl Strategy<Value = KeyBuf> {
    (vec(any::<u8>(), 0..=64), vec(any::<u8>(), 1..60)).prop_map(|(namespace, name)| {
        let parts = [&namespace[..], &name[..]].concat();
        KeyBuf::from_parts(parts.into(), namespace.len()).unwrap()
    })
}

fn arb_window() -> impl Strategy<Value = Window> {
    any::<(u64, u64)>().prop_map(|(stamp, origin)| Window { stamp, origin })
}

fn arb_shares() -> impl Strategy<Value = Vec<Share>> {
    let share = (any::<u64>(), arb_window(), any::<u64>(), any::<i64>())
        .prop_map(|(origin, window, sequence, amount)| Share { origin, window, sequence, amount });
    vec(share, 0..4)
}

fn arb_state() -> impl Strategy<Value = State> {
    let body = prop_oneof![
        arb_shares().prop_map(Body::Counter),
        arb_bytes(40).prop_map(Body::Bytes),
        arb_shares().prop_map(Body::Tombstone),
        any::<u32>().prop_map(|len| Body::Elsewhere { len }),
    ];
    let diverged = option::of(any::<(u64, i64, bool)>().prop_map(|(at, amount, sets)| Diverged { at, amount, sets }));
    (any::<u64>(), any::<u64>(), arb_window(), any::<Option<u64>>(), diverged, body)
        .prop_map(|(term, stamp, window, ttl_ms, diverged, body)| State { term, stamp, window, ttl_ms, diverged, body })
}

fn arb_copies() -> impl Strategy<Value = Vec<Copy>> {
    vec((arb_key(), arb_state()).prop_map(|(key, state)| Copy { key, state }), 0..4)
}

fn arb_refusal() -> impl Strategy<Value = Refusal> {
    (0_u8..7).prop_map(|code| Refusal::from_code(code).unwrap())
}

fn arb_slots() -> impl Strategy<Value = Vec<SlotRange>> {
    vec((0_u16..16_384, 1_u16..16_384).prop_map(|(first, count)| SlotRange { first, count }), 0..5)
}

fn arb_request() -> impl Strategy<Value = Request> {
    let op = prop_oneof![
        (vec(any::<i64>(), 1..6), any::<Option<u64>>()).prop_map(|(deltas, ttl_ms)| Op::Incr { deltas, ttl_ms }),
        (arb_bytes(60), any::<Option<u64>>()).prop_map(|(value, ttl_ms)| Op::Set { value, ttl_ms }),
        (arb_bytes(60), any::<Option<u64>>()).prop_map(|(value, ttl_ms)| Op::SetNx { value, ttl_ms }),
        arb_bytes(60).prop_map(|value| Op::Append { value }),
        (option::of(arb_bytes(60)), option::of(arb_bytes(60)), any::<Option<u64>>())
            .prop_map(|(expected, new, ttl_ms)| Op::Cas { expected, new, ttl_ms }),
        Just(Op::Del),
        any::<Option<u64>>().prop_map(|ttl_ms| Op::Expire { ttl_ms }),
        any::<bool>().prop_map(|bytes| Op::Get { bytes }),
    ];
    let wants = prop_oneof![Just(Wants::All), arb_slots().prop_map(Wants::Slots)];
    let applied = (any::<u64>(), vec(any::<u64>(), 0..5)).prop_map(|(stream, ids)| AppliedIds { stream, ids });
    prop_oneof![
        Just(Request::Ping),
        (arb_key(), op).prop_map(|(key, op)| call(key, op)),
        (any::<u64>(), any::<u64>(), arb_copies(), vec(applied, 0..3)).prop_map(
            |(position, after, copies, applied)| Request::Replicate(Batch { position, after, copies, applied })
        ),
        (any::<u64>(), arb_slots(), any::<bool>(), option::of(wants))
            .prop_map(|(cursor, slots, owned, wants)| Request::Sync { cursor, slots, owned, wants }),
        (vec(arb_key(), 0..4), any::<bool>()).prop_map(|(keys, older)| Request::Fetch { keys, older }),
        (arb_slots(), any::<u64>()).prop_map(|(slots, synced_to)| Request::Claim { slots, synced_to }),
        (arb_slots(), any::<u64>()).prop_map(|(slots, term)| Request::Announce { slots, term }),
        arb_copies().prop_map(Request::Share),
        arb_copies().prop_map(Request::Replay),
        (any::<u64>(), vec(any::<u64>(), 0..5), (".{0,20}", any::<u64>()))
            .prop_map(|(stream, ids, of)| Request::Resolve { stream, ids, of }),
        arb_bytes(64).prop_map(|namespace| Request::Flush { namespace }),
        Just(Request::Standing),
        (any::<u32>(), vec(any::<(u16, u64)>(), 0..5))
            .prop_map(|(small_max, slots)| Request::Digest { small_max, slots }),
        arb_copies().prop_map(Request::Offer),
    ]
}

fn arb_response() -> impl Strategy<Value = Response> {
    let value = prop_oneof![any::<i64>().prop_map(Ok), arb_refusal().prop_map(Err)];
    let outcome = prop_oneof![
        vec(value, 0..5).prop_map(Outcome::Values),
        any::<bool>().prop_map(Outcome::Done),
        arb_refusal().prop_map(Outcome::Refused),
    ];
    let homecoming = prop_oneof![
        arb_state().prop_map(Homecoming::Merged),
        option::of(arb_state()).prop_map(Homecoming::Ended),
        Just(Homecoming::NotOwner),
        Just(Homecoming::Full),
    ];
    let fate = prop_oneof![Just(Fate::Applied), Just(Fate::NotApplied), Just(Fate::Unknown)];
    prop_oneof![
        any::<bool>().prop_map(|vouches| Response::Pong { vouches }),
        (outcome, option::of(arb_state()), any::<bool>())
            .prop_map(|(outcome, state, degraded)| Response::Reply(Reply { outcome, state, degraded })),
        (option::of(".{0,20}"), any::<u64>()).prop_map(|(owner, term)| Response::NotOwner { owner, term }),
        Just(Response::Voided),
        (any::<u64>(), vec(any::<u32>(), 0..4), any::<bool>()).prop_map(|(position, full, vouches)| Response::Acked {
            position,
            full,
            vouches
        }),
        (arb_copies(), any::<Option<u64>>()).prop_map(|(copies, next)| Response::Page { copies, next }),
        (any::<u64>(), arb_slots(), vec(".{0,20}", 0..3)).prop_map(|(term, released, owners)| Response::Claimed {
            term,
            released,
            owners
        }),
        Just(Response::Done),
        arb_slots().prop_map(|contested| Response::Announced { contested }),
        vec(homecoming, 0..4).prop_map(Response::Shares),
        (vec(fate, 0..6), any::<bool>()).prop_map(|(fates, left)| Response::Fates { fates, left }),
        any::<bool>().prop_map(|together| Response::Standing { together }),
        ".{0,40}".prop_map(Response::Error),
    ]
}

fn one_frame(bytes: &BytesMut) -> Frame {
    let mut bytes = bytes.clone();
    let frame = decode_frame(&mut bytes, 1 << 20).unwrap().expect("a whole frame");
    assert!(bytes.is_empty());
    frame
}

/// `frame` with its body cut to `len` or made longer by zeros.
fn resized(frame: &Frame, len: usize) -> Frame {
    let mut body = frame.body.to_vec();
    body.resize(len, 0);
    Frame { body: body.into(), ..frame.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_come_back_as_they_went(id: u64, request in arb_request()) {
        let mut out = BytesMut::new();
        encode_request(id, &request, &mut out);
        let frame = one_frame(&out);
        prop_assert!(REQUESTS.contains(&frame.kind) || FURTHER.contains(&frame.kind));
        for len in 0..frame.body.len() {
            prop_assert!(decode_request(resized(&frame, len)).is_err(), "cut at {}", len);
        }
        let long = resized(&frame, frame.body.len() + 1);
        prop_assert_eq!(decode_request(long), Err(WireError::Trailing { kind: frame.kind, left: 1 }));
        prop_assert_eq!(decode_request(frame), Ok((id, request)));
    }

    #[test]
    fn responses_come_back_as_they_went(id: u64, response in arb_response()) {
        let mut out = BytesMut::new();
        encode_response(id, &response, &mut out);
        let frame = one_frame(&out);
        for len in 0..frame.body.len() {
            prop_assert!(decode_response(resized(&frame, len)).is_err(), "cut at {}", len);
        }
        let long = resized(&frame, frame.body.len() + 1);
        prop_assert_eq!(decode_response(long), Err(WireError::Trailing { kind: frame.kind, left: 1 }));
        prop_assert_eq!(decode_response(frame), Ok((id, response)));
    }

    #[test]
    fn random_bytes_never_panic(kind: u8, id: u64, body in vec(any::<u8>(), 0..200)) {
        let frame = Frame { kind, id, body: body.into() };
        // What does decode must be what encodes to these bytes: there is one way to say a thing.
        let mut out = BytesMut::new();
        if let Ok((id, request)) = decode_request(frame.clone()) {
            encode_request(id, &request, &mut out);
            prop_assert_eq!(one_frame(&out), frame);
        } else if let Ok((id, response)) = decode_response(frame.clone()) {
            encode_response(id, &response, &mut out);
            prop_assert_eq!(one_frame(&out), frame);
        }
    }

    #[test]
    fn a_damaged_message_never_panics(request in arb_request(), response in arb_response(), at: usize, byte: u8) {
        let mut out = BytesMut::new();
        encode_request(1, &request, &mut out);
        let position = at % out.len();
        out[position] = byte;
        if let Ok(Some(frame)) = decode_frame(&mut out, 1 << 20) {
            let _ = decode_request(frame);
        }
        out.clear();
        encode_response(1, &response, &mut out);
        let position = at % out.len();
        out[position] = byte;
        if let Ok(Some(frame)) = decode_frame(&mut out, 1 << 20) {
            let _ = decode_response(frame);
        }
    }
}

#[test]
fn all_256_types_are_known_or_refused() {
    for kind in 0..=u8::MAX {
        let frame = Frame { kind, id: 1, body: Bytes::from_static(&[0xee; 3]) };
        let unknown = Err(WireError::UnknownType(kind));
        assert_eq!(
            decode_request(frame.clone()) == unknown.clone().map(|()| (0, Request::Ping)),
            !REQUESTS.contains(&kind) && !FURTHER.contains(&kind)
        );
        let known = RESPONSES.contains(&kind) || kind == kind::ERROR || kind == kind::STANDING_IS;
        assert_eq!(
            decode_response(frame) == unknown.map(|()| (0, Response::Pong { vouches: true })),
            !known,
            "{kind:#x}"
        );
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key(name: &'static [u8]) -> KeyBuf {
    KeyBuf::from_parts(Bytes::from_static(name), 0).unwrap()
}

/// A change here is a new protocol version.
#[test]
fn golden_bytes() {
    let mut out = BytesMut::new();
    let deltas = vec![1, -2];
    encode_request(7, &call(key(b"hits"), Op::Incr { deltas, ttl_ms: Some(60_000) }), &mut out);
    assert_eq!(
        hex(&out),
        concat!(
            "2d000000",         // 45 bytes follow
            "02",               // Incr
            "0700000000000000", // id
            "00",               // no namespace
            "0400",             // name
            "68697473",
            "01", // a TTL
            "60ea000000000000",
            "02000000", // two deltas
            "0100000000000000",
            "feffffffffffffff",
        )
    );
    let state = State {
        term: 1,
        stamp: 2,
        window: Window { stamp: 3, origin: 4 },
        ttl_ms: None,
        diverged: Some(Diverged { at: 7, amount: -1, sets: true }),
        body: Body::Counter(vec![Share { origin: 5, window: Window { stamp: 3, origin: 4 }, sequence: 6, amount: -1 }]),
    };
    out.clear();
    let reply = Reply { outcome: Outcome::Values(vec![Ok(-1)]), state: Some(state), degraded: false };
    encode_response(7, &Response::Reply(reply), &mut out);
    assert_eq!(
        hex(&out),
        concat!(
            "79000000820700000000000000",
            "0001000000",
            "00ffffffffffffffff",
            "01",
            "0100000000000000",
            "0200000000000000",
            "03000000000000000400000000000000",
            "00",
            "01",
            "0700000000000000",
            "ffffffffffffffff",
            "01",
            "0001000000",
            "0500000000000000",
            "03000000000000000400000000000000",
            "0600000000000000",
            "ffffffffffffffff",
            "00",
        )
    );
}

#[test]
fn byte_counts_are_pinned() {
    let request_len = |request| {
        let mut out = BytesMut::new();
        encode_request(u64::MAX, &request, &mut out);
        out.len() - HEADER_LEN
    };
    let response_len = |response| {
        let mut out = BytesMut::new();
        encode_response(u64::MAX, &response, &mut out);
        out.len() - HEADER_LEN
    };
    assert_eq!(HEADER_LEN, 13);
    assert_eq!(request_len(Request::Ping), 0);
    assert_eq!(request_len(call(key(b"k"), Op::Incr { deltas: vec![1], ttl_ms: None })), 3 + 1 + 1 + 4 + 8);
    assert_eq!(request_len(call(key(b"k"), Op::Get { bytes: true })), 3 + 1 + 1);
    let everything = vec![SlotRange { first: 0, count: 16_384 }];
    assert_eq!(request_len(Request::Claim { slots: everything, synced_to: 1 }), 8 + 4 + 4);
    let state = |body| State { term: 0, stamp: 0, window: Window::default(), ttl_ms: None, diverged: None, body };
    let copy = Copy { key: key(b"k"), state: state(Body::Bytes(Bytes::new())) };
    assert_eq!(request_len(Request::Share(vec![copy.clone()])), 4 + COPY_LEN_MIN);
    let stub = Copy { key: key(b"k"), state: state(Body::Elsewhere { len: 1 << 20 }) };
    assert_eq!(request_len(Request::Share(vec![stub])), 4 + COPY_LEN_MIN);
    let sync = Request::Sync { cursor: 0, slots: Vec::new(), owned: true, wants: Some(Wants::All) };
    assert_eq!(request_len(sync), 8 + 4 + 1 + 1);
    let batch =
        Batch { position: 1, after: 0, copies: vec![copy], applied: vec![AppliedIds { stream: 1, ids: vec![1, 2] }] };
    assert_eq!(request_len(Request::Replicate(batch)), 8 + 8 + 4 + COPY_LEN_MIN + 4 + 12 + 16);
    assert_eq!(response_len(Response::Acked { position: 1, full: vec![3], vouches: true }), 8 + 4 + 4 + 1);
    assert_eq!(response_len(Response::Fates { fates: vec![Fate::Applied; 3], left: true }), 1 + 4 + 3);
    assert_eq!(response_len(Response::Shares(vec![Homecoming::Full])), 4 + 1);
}

#[test]
fn a_count_is_believed_only_as_far_as_the_bytes_go() {
    // Each announces 4 billion items in a few bytes; allocating for them would be the end of the process.
    for (kind, prefix) in [
        (kind::SHARE, 0),
        (kind::FETCH, 1),
        (kind::SYNC, 8),
        (kind::CLAIM, 8),
        (kind::RESOLVE, 8),
        (kind::REPLICATE, 16),
    ] {
        let mut body = vec![0; prefix];
        body.extend_from_slice(&u32::MAX.to_le_bytes());
        body.extend_from_slice(&[0; 100]);
        let frame = Frame { kind, id: 1, body: body.into() };
        assert_eq!(decode_request(frame), Err(WireError::Truncated { kind }));
    }
    for (kind, prefix) in [(kind::PAGE, 0), (kind::SHARES, 0), (kind::FATES, 1)] {
        let mut body = vec![0; prefix];
        body.extend_from_slice(b"\xff\xff\xff\xff\x02\x02\x02");
        let frame = Frame { kind, id: 1, body: body.into() };
        assert_eq!(decode_response(frame), Err(WireError::Truncated { kind }));
    }
    let mut body = BytesMut::from(&(SHARES_MAX as u32 + 1).to_le_bytes()[..]);
    body.resize(4 + SHARES_MAX + 1, 3);
    let frame = Frame { kind: kind::SHARES, id: 1, body: body.freeze() };
    assert!(matches!(decode_response(frame), Err(WireError::Invalid { what: "number of shares", .. })));
}

#[test]
fn meaningless_fields_are_refused() {
    let mut out = BytesMut::new();
    encode_request(1, &call(key(b"k"), Op::Incr { deltas: vec![], ttl_ms: None }), &mut out);
    assert!(matches!(decode_request(one_frame(&out)), Err(WireError::Invalid { what: "list of deltas", .. })));
    let bad = |kind, body: &'static [u8]| decode_request(Frame { kind, id: 1, body: Bytes::from_static(body) });
    // An empty key, a namespace longer than the key, a range of no slots, one that wraps around, a flag of 2.
    assert!(matches!(bad(kind::GET, b"\0\0\0"), Err(WireError::Invalid { what: "key", .. })));
    assert!(matches!(bad(kind::GET, b"\x02\x01\0k"), Err(WireError::Invalid { what: "key", .. })));
    assert!(matches!(
        bad(kind::CLAIM, b"\0\0\0\0\0\0\0\0\x01\0\0\0\x05\0\0\0"),
        Err(WireError::Invalid { what: "slot range", .. })
    ));
    assert!(matches!(
        bad(kind::CLAIM, b"\0\0\0\0\0\0\0\0\x01\0\0\0\xff\xff\x02\0"),
        Err(WireError::Invalid { what: "slot range", .. })
    ));
    assert!(matches!(bad(kind::EXPIRE, b"\0\x01\0k\x02"), Err(WireError::Invalid { what: "flag", .. })));
    let no_wants = b"\0\0\0\0\0\0\0\0\0\0\0\0\x01\x03";
    assert!(matches!(bad(kind::SYNC, no_wants), Err(WireError::Invalid { what: "wants", .. })));
    let frame = Frame { kind: kind::ERROR, id: 1, body: Bytes::from_static(b"\x01\0\xff") };
    assert!(matches!(decode_response(frame), Err(WireError::Invalid { what: "text", .. })));
}

#[test]
fn keys_and_values_are_not_copied() {
    let mut out = BytesMut::new();
    let value = Bytes::from(vec![7; 1_000]);
    encode_request(1, &call(key(b"k"), Op::Set { value, ttl_ms: None }), &mut out);
    let range = out.as_ptr_range();
    let frame = decode_frame(&mut out, 1 << 20).unwrap().unwrap();
    let Ok((1, Request::Call(Call { op: Op::Set { value, .. }, .. }))) = decode_request(frame) else {
        panic!("not a set");
    };
    assert!(range.contains(&value.as_ptr()));
}
