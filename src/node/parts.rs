//! What a running node consists of.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::cluster::{Me, Membership, View};
use crate::config::Config;
use crate::dataplane::link::Dialer;
use crate::handoff::shares::Homeward;
use crate::handoff::slots::Ownership;
use crate::peers::{PeerEvent, Peers};
use crate::replicator::Replicator;
use crate::replicator::scope::Rules;
use crate::router::Router;
use crate::segment::Segment;
use crate::segment::table::{Owner, SLOTS};
use crate::store::Store;
use crate::wire::message::{Request, Response};

/// The parts, for the tasks and handlers that work on them.
pub(super) struct Node {
    pub(super) config: Config,
    pub(super) segment: Arc<Segment>,
    pub(super) store: Store,
    pub(super) peers: Arc<Peers>,
    pub(super) router: Arc<Router>,
    pub(super) replicator: Arc<Replicator>,
    pub(super) homeward: Arc<Homeward>,
    pub(super) ownership: Arc<Ownership>,
    pub(super) membership: Mutex<Membership>,
    /// The node hands over what it has.
    pub(super) leaving: watch::Sender<bool>,
    /// The node takes no more calls.
    pub(super) closing: AtomicBool,
}

impl Node {
    /// Puts a node together over the host's `store`, with `dialer` for its connections; nothing runs yet. `seeds_others`:
    /// there is somebody to join. The receiver gets the news of its links.
    pub(super) fn over(
        config: Config,
        store: Store,
        me: Me,
        dialer: Arc<dyn Dialer>,
        seeds_others: bool,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<(String, PeerEvent)>) {
        let segment = store.segment().clone();
        let mut membership = Membership::new(me, seeds_others);
        let view = membership.view(store.clock().now_ms());
        let (events, news) = mpsc::unbounded_channel();
        let peers = Arc::new(Peers::new(segment.clone(), dialer, view.clone(), events));
        peers.set_view(view);
        let replicator = Arc::new(Replicator::new(store.clone(), peers.clone(), Rules::of(&config)));
        let homeward = Arc::new(Homeward::new(store.clone(), peers.clone()));
        let ownership = Arc::new(Ownership::new(store.clone(), peers.clone(), replicator.clone(), homeward.clone()));
        let node = Self {
            router: Arc::new(Router::new(
                store.clone(),
                peers.clone(),
                replicator.clone(),
                Duration::from_millis(config.timeout_ms),
            )),
            segment,
            store,
            peers,
            replicator,
            homeward,
            ownership,
            membership: Mutex::new(membership),
            leaving: watch::channel(false).0,
            closing: AtomicBool::new(false),
            config,
        };
        (Arc::new(node), news)
    }

    /// Coarse monotonic milliseconds.
    pub(super) fn now_ms(&self) -> u64 {
        self.store.clock().now_ms()
    }

    /// Ends every window of `namespace` at every owner; `false`: one was out of reach.
    pub(super) async fn flush_everywhere(self: &Arc<Self>, namespace: Vec<u8>, deadline: Instant) -> bool {
        let timeout = deadline.saturating_duration_since(Instant::now());
        let view: Arc<View> = self.peers.view();
        let mut asked = tokio::task::JoinSet::new();
        for member in view.members.iter().filter(|member| !member.is_me && !member.client) {
            let (peers, node_id) = (self.peers.clone(), member.node_id.clone());
            let request = Request::Flush { namespace: namespace.clone().into() };
            asked.spawn(async move { matches!(peers.ask(&node_id, request, timeout).await, Ok(Response::Done)) });
        }
        let table = self.segment.table();
        // A slot whose owner is gone has nobody to ask.
        let asked_of = |slot: u16| match table.owner(slot) {
            Owner::Member(index) => table.member(index).is_present(),
            Owner::Nobody | Owner::Frozen => false,
        };
        let mut all = view.joined && view.quorum && (0..SLOTS as u16).all(asked_of);
        all &= self.homeward.flush_owned(&namespace).await;
        while let Some(done) = asked.join_next().await {
            all &= done.unwrap_or(false);
        }
        all
    }

    /// How soon a pong must come for calls to be sent: as soon as an answer must.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.config.timeout_ms)
    }

    /// News of the link to `node_id`.
    pub(super) async fn link_news(self: &Arc<Self>, node_id: String, event: PeerEvent) {
        match event {
            PeerEvent::Up => {
                self.replicator.connected(&node_id);
                self.ownership.link_up(&node_id);
                if self.peers.ping(&node_id, self.patience()).await {
                    self.membership.lock().ping(&node_id, true, self.now_ms());
                }
            }
            PeerEvent::Lost | PeerEvent::Down => self.peers.no_connection(&node_id),
        }
    }
}
