use super::*;
use crate::dataplane::link::{LinkLost, NotSent};
use crate::wire::hello::RefusalCode;

#[tokio::test]
async fn later_answers_find_their_callers_in_any_order() {
    let node = Node::start("node", limits()).await;
    let link = node.linked().await;
    let slow = link.call(&get("slow")).unwrap();
    let slower = link.call(&get("slower")).unwrap();
    let quick = link.call(&incr(5)).unwrap();
    assert_eq!((slow.id, slower.id, quick.id), (1, 2, 3));
    assert_eq!(in_time(quick.answer()).await, Ok(value(5)));
    until(|| node.handler.waiting() == 2).await;
    node.handler.release("slower", value(22));
    assert_eq!(in_time(slower.answer()).await, Ok(value(22)));
    node.handler.release("slow", value(11));
    assert_eq!(in_time(slow.answer()).await, Ok(value(11)));
}

#[tokio::test]
async fn a_lost_connection_fails_what_is_unanswered_and_comes_back_on_a_new_stream() {
    let node = Node::start("node", limits()).await;
    let address = node.address;
    let (link, mut events) = node.link();
    let first = up(&mut events).await;
    assert_eq!((first.node_id.as_str(), first.generation, first.origin, first.local), ("node", 7, 8, false));
    assert_eq!(link.peer(), Some(first.clone()));
    assert_eq!(ask(&link, incr(1)).await, value(1));
    let unanswered = [link.call(&get("nothing")).unwrap(), link.call(&get("later")).unwrap()];
    assert_eq!((unanswered[0].stream, unanswered[0].id, unanswered[1].id), (first.stream, 2, 3));
    until(|| node.handler.waiting() == 1).await;
    node.stop().await;
    for unanswered in unanswered {
        assert_eq!(in_time(unanswered.answer()).await, Err(LinkLost));
    }
    let Some(LinkEvent::Down { was_up: true, .. }) = in_time(events.recv()).await else { panic!("not down") };
    assert!(!link.is_up());
    assert_eq!(link.call(&Request::Ping).err(), Some(NotSent::Down));
    let Some(LinkEvent::Down { was_up: false, reason }) = in_time(events.recv()).await else { panic!("not down") };
    assert!(reason.contains("refused"), "{reason}");

    let node = Node::start_at(address, "node", limits()).await;
    let second = loop {
        match in_time(events.recv()).await.unwrap() {
            LinkEvent::Up { peer } => break peer,
            LinkEvent::Down { was_up: false, .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert_ne!(second.stream, first.stream);
    let again = link.call(&incr(1)).unwrap();
    assert_eq!((again.stream, again.id), (second.stream, 1));
    assert_eq!(in_time(again.answer()).await, Ok(value(1)));
    assert_eq!(node.handler.peers.lock()[0].stream, second.stream);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_at_once() {
    let node = Node::start("node", limits()).await;
    let (link, mut events) = node.link_as(local("caller"), Limits { pending_max: 2, ..limits() }, None);
    assert_eq!(link.call(&Request::Ping).err(), Some(NotSent::Down));
    up(&mut events).await;
    let large = call("k", Op::Set { value: vec![0; 3 << 20].into(), ttl_ms: None });
    assert_eq!(link.call(&large).err(), Some(NotSent::TooLarge));
    let first = link.call(&get("first")).unwrap();
    // Giving up does not make a request answered.
    drop(link.call(&get("nothing")).unwrap());
    assert_eq!(link.call(&Request::Ping).err(), Some(NotSent::Full));
    until(|| node.handler.waiting() == 1).await;
    node.handler.release("first", value(1));
    assert_eq!((first.id, in_time(first.answer()).await), (1, Ok(value(1))));
    let third = link.call(&Request::Ping).unwrap();
    assert_eq!((third.id, in_time(third.answer()).await), (3, Ok(Response::Pong { vouches: true })));
}

#[tokio::test]
async fn ids_rise_on_the_wire_whichever_threads_call() {
    const THREADS: i64 = 4;
    const CALLS: i64 = 500;
    let node = Node::start("node", limits()).await;
    let link = Arc::new(node.linked().await);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let link = link.clone();
            std::thread::spawn(move || {
                (0..CALLS)
                    .map(|_| {
                        let reply = link.call(&incr(1)).unwrap().reply.blocking_recv().unwrap().unwrap();
                        let Response::Reply(Reply { outcome: Outcome::Values(values), .. }) = reply else {
                            panic!("{reply:?}");
                        };
                        values[0].unwrap()
                    })
                    .collect::<Vec<i64>>()
            })
        })
        .collect();
    until(|| threads.iter().all(std::thread::JoinHandle::is_finished)).await;
    let mut values: Vec<i64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    values.sort_unstable();
    assert_eq!(values, (1..=THREADS * CALLS).collect::<Vec<_>>());
    let ids = node.handler.ids.lock();
    let ids: Vec<_> = ids.values().next().unwrap().clone();
    assert_eq!(ids, (1..=(THREADS * CALLS) as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn both_sides_refuse() {
    let node = Node::start("node", limits()).await;
    let refused = async |hello: LocalHello, expected| {
        let (_link, mut events) = node.link_as(hello, limits(), expected);
        match in_time(events.recv()).await {
            Some(LinkEvent::Refused { code, reason }) => (code, reason),
            other => panic!("{other:?}"),
        }
    };
    let (code, reason) = refused(LocalHello { cluster_id: "other".into(), ..local("caller") }, None).await;
    assert_eq!((code, reason.as_str()), (RefusalCode::ClusterId, "cluster id \"test\" here, \"other\" at caller"));
    let settings = Settings { replicas: 1, ..local("caller").settings };
    let (code, reason) = refused(LocalHello { settings, ..local("caller") }, None).await;
    assert_eq!(
        (code, reason.as_str()),
        (RefusalCode::Settings, "ephpm_kv.replicas must agree: 2 at node, 1 at caller")
    );
    let (code, _) = refused(local("node"), None).await;
    assert_eq!(code, RefusalCode::NodeId);
    let (code, reason) = refused(local("caller"), Some("somebody")).await;
    assert_eq!((code, reason), (RefusalCode::OtherNode, format!("node is at {}", node.address)));
    let (_link, mut events) = node.link_as(local("caller"), limits(), Some("node"));
    up(&mut events).await;
}

#[tokio::test]
async fn closing_loses_what_is_unanswered_and_hangs_up() {
    let node = Node::start("node", limits()).await;
    let link = node.linked().await;
    let unanswered = link.call(&get("nothing")).unwrap();
    link.close();
    assert!(!link.is_up());
    assert_eq!(in_time(unanswered.answer()).await, Err(LinkLost));
    until(|| node.handler.gone.lock().len() == 1).await;
    assert_eq!(link.call(&Request::Ping).err(), Some(NotSent::Down));
    let dropped = node.linked().await;
    drop(dropped);
    until(|| node.handler.gone.lock().len() == 2).await;
}

#[tokio::test]
async fn nonsense_from_the_peer_loses_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (events, mut received) = mpsc::unbounded_channel();
    let target = LinkTarget { address: listener.local_addr().unwrap(), expected_node_id: None };
    let link = Link::spawn(target, Arc::new(local("caller")), limits(), events);
    let (mut socket, _) = in_time(listener.accept()).await.unwrap();
    let mut out = BytesMut::new();
    crate::wire::hello::encode_answer(&Ok(local("node").hello(0, false)), &mut out);
    socket.write_all(&out).await.unwrap();
    up(&mut received).await;
    let unanswered = link.call(&Request::Ping).unwrap();
    // An answer to nothing is skipped, one that announces 4 GiB is the end.
    let mut out = BytesMut::new();
    crate::wire::encode_response(77, &Response::Pong { vouches: true }, &mut out);
    out.extend_from_slice(b"\xff\xff\xff\xff");
    socket.write_all(&out).await.unwrap();
    assert_eq!(in_time(unanswered.answer()).await, Err(LinkLost));
    let Some(LinkEvent::Down { reason, was_up: true }) = in_time(received.recv()).await else { panic!("not down") };
    assert!(reason.starts_with("a frame of 4294967295 bytes"), "{reason}");
}

/// Run by hand in release: `cargo test --release -- --ignored --nocapture throughput`.
#[tokio::test]
#[ignore = "a measurement"]
async fn throughput() {
    const CALLS: u32 = 1_000_000;
    let node = Node::start("node", limits()).await;
    let link = node.linked().await;
    for window in [1_u32, 16, 256, 2_000] {
        let calls = if window == 1 { CALLS / 10 } else { CALLS };
        let start = std::time::Instant::now();
        for _ in 0..calls / window {
            let replies: Vec<_> = (0..window).map(|_| link.call(&incr(1)).unwrap()).collect();
            for reply in replies {
                assert!(matches!(reply.answer().await, Ok(Response::Reply(_))));
            }
        }
        let per_second = f64::from(calls / window * window) / start.elapsed().as_secs_f64();
        println!("{window} in flight: {per_second:.0} requests/s (both ends on one thread)");
    }
}
