//! How a new host comes to count for the quorum: it asks to before it becomes ready, and waits until a quorum of the
//! members has promised it. See [`Membership::add_voter`](crate::cluster::Membership::add_voter).
//!
//! Who has promised it tells the other members, and vouches for none that has not heard of it: what that one takes for a
//! quorum may be none any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::parts::Node;
use crate::cluster::membership::{ASKS, Added};
use crate::cluster::{View, Voice, Voters};
use crate::dataplane::Peer;
use crate::wire::message::{Request, Response};

/// How long a member may take to answer a newcomer.
const ASK_TIMEOUT: Duration = Duration::from_millis(250);

/// How long another may take to hear of it before it is answered.
const TELL_TIMEOUT: Duration = Duration::from_millis(100);

/// What has come of asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Admission {
    /// It has not asked yet.
    #[default]
    Open,
    /// Too few members have promised to count it.
    Waiting,
    /// It may become ready.
    Granted,
}

/// Asks all members in the view.
pub(super) async fn ask(node: &Arc<Node>, gossip: &dyn Voice, view: &View) -> Admission {
    if view.me().client {
        return Admission::Granted;
    }
    // Also those hear of it who are not asked, or do not answer in time.
    gossip.set_number(ASKS, 1).await;
    let mut asked = JoinSet::new();
    for member in view.members.iter().filter(|member| !member.is_me && !member.client) {
        let (node, node_id) = (node.clone(), member.node_id.clone());
        asked.spawn(async move {
            let answer = node.peers.ask(&node_id, Request::AddVoter, ASK_TIMEOUT).await;
            (node_id, answer)
        });
    }
    let (mut promised, mut was_voter) = (BTreeSet::new(), false);
    while let Some(answer) = asked.join_next().await {
        if let Ok((node_id, Ok(Response::Voters { voters, known }))) = answer {
            learn_voters(node, &voters);
            promised.insert(node_id);
            was_voter |= known;
        }
    }
    let promised = |node_id: &str| promised.contains(node_id);
    if was_voter || node.membership.lock().is_admitted_by(promised, node.now_ms()) {
        Admission::Granted
    } else {
        Admission::Waiting
    }
}

/// The answer to one who asks.
pub(super) async fn add_voter(node: Arc<Node>, peer: Peer) -> Response {
    let (added, voters) = {
        let mut membership = node.membership.lock();
        let added = if node.peers.is_member(&peer) { membership.add_voter(&peer.node_id) } else { None };
        let Some(added) = added else { return Response::Error("not in the view yet: ask again".to_string()) };
        let voters = membership.voters(node.now_ms());
        node.peers.set_voters(voters.clone());
        (added, list(&voters))
    };
    if added == Added::New {
        let view = node.peers.view();
        let others = view.members.iter().filter(|member| {
            let is_it = member.node_id == peer.node_id && member.generation == peer.generation;
            !member.is_me && !is_it
        });
        let mut asked = JoinSet::new();
        for (node_id, generation) in others.map(|member| (member.node_id.clone(), member.generation)) {
            let (node, request) = (node.clone(), Request::Voters(voters.clone()));
            asked.spawn(async move {
                let told = node.peers.ask(&node_id, request, TELL_TIMEOUT).await;
                matches!(told, Ok(Response::Done)).then_some((node_id, generation))
            });
        }
        let aware = asked.join_all().await.into_iter().flatten();
        node.peers.promise(aware.chain([(peer.node_id.clone(), peer.generation)]).collect());
        node.membership.lock().note_promise(&peer.node_id);
    }
    Response::Voters { voters, known: added == Added::Voter }
}

/// Tells members of the newcomers that this node has promised to count and that they may not know of.
pub(super) fn make_aware(node: &Arc<Node>) {
    let unaware = node.peers.unaware();
    if unaware.is_empty() {
        return;
    }
    // What is promised meanwhile they are told next time.
    let promises = node.peers.promises();
    let voters = list(&node.membership.lock().voters(node.now_ms()));
    for (node_id, generation) in unaware {
        let (node, request) = (node.clone(), Request::Voters(voters.clone()));
        tokio::spawn(async move {
            if let Ok(Response::Done) = node.peers.ask(&node_id, request, TELL_TIMEOUT).await {
                node.peers.note_aware(&node_id, generation, promises);
            }
        });
    }
}

/// Another member needs a quorum of these: so does this node, from now on.
pub(super) fn learn_voters(node: &Node, voters: &[(String, bool)]) {
    let mut membership = node.membership.lock();
    membership.learn_voters(voters.iter().map(|(node_id, votes)| (node_id.as_str(), *votes)), node.now_ms());
    node.peers.set_voters(membership.voters(node.now_ms()));
}

fn list(voters: &Voters) -> Vec<(String, bool)> {
    voters.iter().map(|(node_id, votes)| (node_id.to_owned(), votes)).collect()
}
