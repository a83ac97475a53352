use proptest::prelude::Rng;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::wire::hello::{PROTOCOL, RefusalCode};

fn random_bytes() -> TestRng {
    TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha)).new_rng()
}

#[tokio::test]
async fn requests_sent_in_one_go_are_answered_in_order() {
    let node = Node::start("node", limits()).await;
    let mut raw = Raw::greeted(&node).await;
    raw.send(&frames((1..=1_000).map(|id| (id, incr(2))))).await;
    for id in 1..=1_000 {
        assert_eq!(raw.response().await, Some((id, value(2 * id as i64))));
    }
    let peer = node.handler.peers.lock()[0].clone();
    assert_eq!((peer.node_id.as_str(), peer.stream, peer.version, peer.local), ("raw", 5, PROTOCOL, false));
    drop(raw);
    until(|| !node.handler.gone.lock().is_empty()).await;
    assert_eq!(*node.handler.gone.lock(), [peer]);
}

#[tokio::test]
async fn a_sender_of_single_bytes_is_understood() {
    let node = Node::start("node", limits()).await;
    let mut raw = Raw::connect(&node).await;
    raw.socket.set_nodelay(true).unwrap();
    let mut out = BytesMut::new();
    encode_hello(&local("raw").hello(5, false), &mut out);
    out.extend_from_slice(&frames([(1, incr(3)), (2, Request::Ping)]));
    for byte in out {
        raw.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    assert!(decode_answer(raw.frame().await.unwrap()).unwrap().is_ok());
    assert_eq!(raw.response().await, Some((1, value(3))));
    assert_eq!(raw.response().await, Some((2, Response::Pong { vouches: true })));
}

#[tokio::test]
async fn a_frame_of_4_gib_is_refused_and_others_live() {
    let node = Node::start("node", limits()).await;
    let link = node.linked().await;
    let mut raw = Raw::greeted(&node).await;
    raw.send(&frames([(1, incr(1))])).await;
    raw.send(b"\xff\xff\xff\xff\x02and more").await;
    assert_eq!(raw.response().await, Some((1, value(1))));
    let text = "a frame of 4294967295 bytes was announced, at most 3145728 are allowed";
    assert_eq!(raw.response().await, Some((0, Response::Error(text.into()))));
    assert_eq!(raw.response().await, None);
    // A stranger may announce much less.
    let mut stranger = Raw::connect(&node).await;
    stranger.send(b"\x00\x00\x01\x00").await;
    let text = "a frame of 65536 bytes was announced, at most 4096 are allowed";
    assert_eq!(stranger.response().await, Some((0, Response::Error(text.into()))));
    assert_eq!(stranger.response().await, None);
    assert_eq!(ask(&link, incr(1)).await, value(2));
}

#[tokio::test]
async fn random_bytes_end_only_their_own_connection() {
    let node = Node::start("node", limits()).await;
    let link = node.linked().await;
    let mut rng = random_bytes();
    for round in 0..100 {
        let mut raw = if round % 2 == 0 { Raw::connect(&node).await } else { Raw::greeted(&node).await };
        let mut bytes = vec![0; 1 + rng.next_u32() as usize % 3_000];
        rng.fill_bytes(&mut bytes);
        // Half of them announce a length that is believed, so that what follows is looked at.
        if round % 4 < 2 {
            bytes.splice(..0, (9 + rng.next_u32() % 200).to_le_bytes());
        }
        // The node may hang up before it has read everything.
        let _ = raw.socket.write_all(&bytes).await;
        let _ = raw.socket.shutdown().await;
        while raw.frame().await.is_some() {}
    }
    assert_eq!(ask(&link, incr(1)).await, value(1));
    until(|| node.handler.gone.lock().len() == 50).await;
}

#[tokio::test]
async fn an_unknown_type_is_answered_and_the_connection_goes_on() {
    let node = Node::start("node", limits()).await;
    let mut raw = Raw::greeted(&node).await;
    raw.send(b"\x0b\0\0\0\x3f\x01\0\0\0\0\0\0\0??").await;
    raw.send(&frames([(2, Request::Ping)])).await;
    assert_eq!(raw.response().await, Some((1, Response::Error("unknown message type 0x3f".into()))));
    assert_eq!(raw.response().await, Some((2, Response::Pong { vouches: true })));
    // A known type that makes no sense is another matter.
    raw.send(b"\x0b\0\0\0\x06\x03\0\0\0\0\0\0\0??").await;
    assert_eq!(raw.response().await, Some((3, Response::Error("the message of type 0x06 is cut short".into()))));
    assert_eq!(raw.response().await, None);
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_cut_off() {
    let limits = Limits { write_buffer_max: 4 << 20, stall_max: Duration::from_millis(300), ..limits() };
    let node = Node::start("node", limits).await;
    let link = node.linked().await;
    let mut raw = Raw::greeted(&node).await;
    // 200 pages of 1 MB: far more than the kernel's buffers and the node's.
    raw.send(&frames(
        (1..=200).map(|id| (id, Request::Sync { cursor: 1_000_000, slots: vec![], owned: true, wants: None })),
    ))
    .await;
    let start = std::time::Instant::now();
    until(|| node.handler.gone.lock().len() == 1).await;
    // By the node: the kernel takes 3 s to give up on such a peer.
    assert!(start.elapsed() < Duration::from_millis(2_900), "{:?}", start.elapsed());
    // It stopped asking the handler long before it had 200 MB to write.
    let handled = node.handler.ids.lock()[&5].len();
    assert!((1..40).contains(&handled), "{handled} requests were handled");
    assert_eq!(ask(&link, Request::Ping).await, Response::Pong { vouches: true });
}

#[tokio::test]
async fn a_peer_that_reads_slowly_gets_everything() {
    let limits = Limits { write_buffer_max: 4 << 20, ..limits() };
    let node = Node::start("node", limits).await;
    let mut raw = Raw::greeted(&node).await;
    raw.send(&frames(
        (1..=60).map(|id| (id, Request::Sync { cursor: 500_000, slots: vec![], owned: true, wants: None })),
    ))
    .await;
    for id in 1..=60 {
        let Some((answered, Response::Page { copies, .. })) = raw.response().await else { panic!("cut off") };
        assert_eq!((answered, copies.len()), (id, 1));
    }
}

#[tokio::test]
async fn half_open_connections_are_few_and_short() {
    let limits = Limits { half_open_max: 2, handshake_max: Duration::from_millis(400), ..limits() };
    let node = Node::start("node", limits).await;
    let mut silent = [Raw::connect(&node).await, Raw::connect(&node).await];
    let mut third = Raw::connect(&node).await;
    assert_eq!(third.response().await, None);
    for silent in &mut silent {
        assert_eq!(silent.response().await, None);
    }
    let mut fourth = Raw::greeted(&node).await;
    fourth.send(&frames([(1, Request::Ping)])).await;
    assert_eq!(fourth.response().await, Some((1, Response::Pong { vouches: true })));
}

#[tokio::test]
async fn connections_are_limited() {
    let node = Node::start("node", Limits { connections_max: 2, ..limits() }).await;
    let first = Raw::greeted(&node).await;
    let mut second = Raw::greeted(&node).await;
    assert_eq!(Raw::connect(&node).await.response().await, None);
    drop(first);
    until(|| node.handler.gone.lock().len() == 1).await;
    // The place is free once the closed connection's task has ended, shortly after.
    in_time(async {
        loop {
            let mut raw = Raw::connect(&node).await;
            let mut out = BytesMut::new();
            encode_hello(&local("raw").hello(6, false), &mut out);
            if raw.socket.write_all(&out).await.is_ok() && raw.frame().await.is_some() {
                break;
            }
        }
    })
    .await;
    second.send(&frames([(1, Request::Ping)])).await;
    assert_eq!(second.response().await, Some((1, Response::Pong { vouches: true })));
}

#[tokio::test]
async fn refusals_say_why() {
    let node = Node::start("node", limits()).await;
    let refusal = async |change: fn(&mut Hello)| {
        let mut hello = local("raw").hello(5, false);
        change(&mut hello);
        let mut raw = Raw::connect(&node).await;
        let refused = raw.greet(&hello).await.expect_err("not refused");
        assert_eq!(raw.response().await, None, "closed");
        refused
    };
    let refused = refusal(|hello| hello.cluster_id = "other".into()).await;
    assert_eq!(refused.code, RefusalCode::ClusterId);
    assert_eq!(refused.reason, "cluster id \"test\" here, \"other\" at raw");
    let refused = refusal(|hello| (hello.version, hello.version_oldest) = (9, 8)).await;
    assert_eq!(refused.code, RefusalCode::Version);
    assert_eq!(refused.reason, "protocol versions 0 to 1 here, 8 to 9 at raw");
    let refused = refusal(|hello| hello.settings.copy_all_max = 3).await;
    assert_eq!(refused.code, RefusalCode::Settings);
    assert_eq!(refused.reason, "ephpm_kv.copy_all_max must agree: 16 at node, 3 at raw");
    let refused = refusal(|hello| hello.node_id = "node".into()).await;
    assert_eq!(refused.code, RefusalCode::NodeId);
    *node.handler.refuse.lock() = Some("a newer generation is connected".into());
    let refused = refusal(|_| ()).await;
    assert_eq!(refused.code, RefusalCode::NotAdmitted);
    assert_eq!(refused.reason, "a newer generation is connected");
    assert!(node.handler.peers.lock().is_empty());
    assert!(node.handler.gone.lock().is_empty());
    *node.handler.refuse.lock() = None;
    Raw::greeted(&node).await;
}

#[tokio::test]
async fn later_answers_are_bounded_and_go_with_their_connection() {
    let node = Node::start("node", Limits { pending_max: 3, ..limits() }).await;
    let mut raw = Raw::greeted(&node).await;
    raw.send(&frames((1..=5).map(|id| (id, get(&format!("k{id}")))).chain([(6, Request::Ping)]))).await;
    until(|| node.handler.waiting() == 3).await;
    node.handler.release("k2", value(2));
    assert_eq!(raw.response().await, Some((2, value(2))));
    until(|| node.handler.waiting() == 3).await;
    assert_eq!(node.handler.ids.lock()[&5], [1, 2, 3, 4]);
    node.handler.release("k1", value(1));
    node.handler.release("k3", value(3));
    let mut answered = [raw.response().await.unwrap(), raw.response().await.unwrap()];
    answered.sort_by_key(|(id, _)| *id);
    assert_eq!(answered, [(1, value(1)), (3, value(3))]);
    assert_eq!(raw.response().await, Some((6, Response::Pong { vouches: true })));
    assert_eq!(*node.handler.dropped.lock(), 3);
    drop(raw);
    until(|| *node.handler.dropped.lock() == 5).await;
}

#[tokio::test]
async fn a_response_that_is_too_long_becomes_an_error() {
    let node = Node::start("node", limits()).await;
    let link = node.linked().await;
    let Response::Error(text) =
        ask(&link, Request::Sync { cursor: 3 << 20, slots: vec![], owned: true, wants: None }).await
    else {
        panic!("not refused");
    };
    assert_eq!(text, "the response of 3145785 bytes is longer than a frame may be");
    assert_eq!(ask(&link, Request::Ping).await, Response::Pong { vouches: true });
}

#[tokio::test]
async fn stopping_closes_every_connection() {
    let node = Node::start("node", limits()).await;
    let (address, mut silent) = (node.address, Raw::connect(&node).await);
    let mut raw = Raw::greeted(&node).await;
    raw.send(&frames([(1, get("never"))])).await;
    until(|| node.handler.waiting() == 1).await;
    let handler = node.stop().await;
    assert_eq!((handler.gone.lock().len(), *handler.dropped.lock()), (1, 1));
    assert_eq!(raw.response().await, None);
    assert_eq!(silent.response().await, None);
    assert!(TcpStream::connect(address).await.is_err());
}
