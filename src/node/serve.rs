//! What the node answers: to peers over TCP, and to the host's other processes over its socket.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::absence::was_together;
use super::parts::Node;
use crate::dataplane::{Answer, Handler, Peer};
use crate::router::is_conditional;
use crate::wire::message::{Request, Response};

/// How much earlier the node answers than its caller gives up, so that the answer is there in time.
const MARGIN: Duration = Duration::from_millis(5);

/// Answers peers.
pub(super) struct PeerHandler(pub(super) Arc<Node>);

impl Handler for PeerHandler {
    fn handle(&self, peer: &Peer, id: u64, request: Request) -> Answer {
        let node = &self.0;
        match request {
            Request::Ping => Answer::Now(Response::Pong { vouches: node.peers.vouches_for(peer) }),
            Request::Call(call) if is_conditional(&call.op) => {
                let (router, served) = (node.router.clone(), node.router.serve(peer, id, &call));
                to_the_end(async move { router.confirm_served(&call, served).await })
            }
            Request::Call(call) => Answer::Now(node.router.serve(peer, id, &call).response),
            Request::Replicate(batch) => Answer::Now(node.replicator.take_batch(peer, batch)),
            Request::Sync { cursor, slots, owned, wants } => {
                Answer::Now(node.replicator.page(&peer.node_id, cursor, &slots, owned, wants))
            }
            Request::Fetch { keys, older } => Answer::Now(node.replicator.fetch(&keys, older)),
            Request::Claim { slots, synced_to } => {
                to_the_end(node.ownership.clone().hand_over(peer.clone(), slots, synced_to))
            }
            Request::Announce { slots, term } => Answer::Now(node.ownership.take_announcement(peer, &slots, term)),
            Request::Share(copies) => Answer::Now(node.homeward.receive(copies)),
            Request::Replay(copies) => Answer::Now(node.homeward.replay(copies)),
            Request::Resolve { stream, ids, of: (node_id, origin) } => {
                let fates = ids.iter().map(|id| node.store.resolve(stream, *id)).collect();
                Answer::Now(Response::Fates { fates, left: node.peers.has_left(&node_id, origin) })
            }
            Request::Digest { small_max, slots } => {
                node.replicator.take_digest(peer, small_max, slots);
                Answer::Now(Response::Done)
            }
            Request::Offer(copies) => Answer::Now(node.replicator.take_offer(copies)),
            Request::Standing => Answer::Now(Response::Standing { together: was_together(node) }),
            Request::Flush { namespace } => {
                let (node, caller) = (node.clone(), peer.node_id.clone());
                Answer::Later(Box::pin(async move {
                    if node.homeward.flush_owned(&namespace).await {
                        // The caller's copies are gone before its call returns.
                        let (_, foreign) = node.replicator.flush_to(&caller, u64::MAX, node.patience()).await;
                        node.homeward.take(foreign);
                        Response::Done
                    } else {
                        Response::Error("slots are changing hands".to_string())
                    }
                }))
            }
        }
    }

    fn connected(&self, peer: &Peer) -> Result<(), String> {
        self.0.replicator.connected(&peer.node_id);
        Ok(())
    }

    fn disconnected(&self, _: &Peer) {}
}

/// An answer that is worked out in a task of its own: a connection that is lost must not leave slots frozen, or an
/// operation half decided.
fn to_the_end(answer: impl Future<Output = Response> + Send + 'static) -> Answer {
    let answered = tokio::spawn(answer);
    Answer::Later(Box::pin(async move {
        answered.await.unwrap_or_else(|_| Response::Error("the node is ending".to_string()))
    }))
}

/// Answers processes of the segment.
pub(super) struct HostHandler(pub(super) Arc<Node>);

impl Handler for HostHandler {
    fn handle(&self, _: &Peer, _: u64, request: Request) -> Answer {
        let node = self.0.clone();
        let deadline = Instant::now() + deadline_of(node.config.timeout_ms);
        match request {
            Request::Ping => Answer::Now(Response::Pong { vouches: true }),
            _ if node.closing.load(Ordering::Relaxed) => Answer::Now(Response::Error("the node is ending".to_string())),
            Request::Call(call) => {
                let (done, reply) = tokio::sync::oneshot::channel();
                node.router.submit(call, deadline, Box::new(move |reply| drop(done.send(reply))));
                Answer::Later(Box::pin(async move {
                    match reply.await {
                        Ok(reply) => Response::Reply(reply),
                        Err(_) => Response::Error("the node is ending".to_string()),
                    }
                }))
            }
            Request::Flush { namespace } => Answer::Later(Box::pin(async move {
                if node.flush_everywhere(namespace.to_vec(), deadline).await {
                    Response::Done
                } else {
                    Response::Error("an owner is out of reach".to_string())
                }
            })),
            _ => Answer::Now(Response::Error("not a request of a host's process".to_string())),
        }
    }

    fn connected(&self, _: &Peer) -> Result<(), String> {
        Ok(())
    }

    fn disconnected(&self, _: &Peer) {}
}

/// The node's share of a caller's `timeout_ms`.
pub(super) fn deadline_of(timeout_ms: u64) -> Duration {
    let timeout = Duration::from_millis(timeout_ms);
    timeout.saturating_sub(MARGIN).max(timeout / 2)
}
