//! After a pull: which requests show their effect in what was pulled.
//!
//! Changes travel in batches with the ids of the requests that made them, but a pull brings copies only. A host that is
//! asked what became of a request would deny what its own copy shows. So once a peer has pulled to the end, it is told
//! which requests have been applied here lately: in a batch after everything that had changed by then, so never before a
//! state that shows their effect.

use std::sync::Arc;

use super::Replicator;
use crate::wire::message::{AppliedIds, Batch};

/// Ids of each stream that are told, at the most: more than are on their way at a time. Those before them were answered.
const IDS_TOLD: u64 = 256;

/// Ids in one batch.
const IDS_PER_BATCH: usize = 8_192;

impl Replicator {
    /// `node_id` has pulled what this host has.
    pub(super) fn owe_marks(&self, node_id: &str) {
        if let Some(receiver) = self.inner.lock().receivers.get_mut(node_id) {
            receiver.owed_marks = true;
        }
    }

    /// What is to be told once all that has changed up to now is sent; `None`: nothing is owed, or a pass that began
    /// before is still under way.
    pub(super) fn owed_marks(&self) -> Option<Vec<AppliedIds>> {
        let inner = self.inner.lock();
        let due = inner.all_drained && inner.receivers.values().any(|receiver| receiver.owed_marks);
        drop(inner);
        let marks = due.then(|| self.store.applied_lately(IDS_TOLD)).flatten()?;
        Some(marks.into_iter().map(|(stream, ids)| AppliedIds { stream, ids }).collect())
    }

    /// Tells those who have pulled. `marks`: what was owed before a pass began that handed out everything.
    pub(super) fn tell_marks(self: &Arc<Self>, marks: Vec<AppliedIds>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        for (node_id, receiver) in inner.receivers.iter_mut().filter(|(_, receiver)| receiver.owed_marks) {
            receiver.owed_marks = false;
            for applied in in_batches(&marks) {
                // Whoever has missed something pulls again.
                if receiver.behind {
                    break;
                }
                inner.position += 1;
                let (position, after) = (inner.position, receiver.last);
                let batch = Batch { position, after, copies: Vec::new(), applied };
                self.put_off(&inner.scope, receiver, node_id, batch);
                self.post_waiting(&inner.scope, receiver, node_id);
            }
        }
    }
}

fn in_batches(marks: &[AppliedIds]) -> Vec<Vec<AppliedIds>> {
    let mut batches: Vec<Vec<AppliedIds>> = Vec::new();
    let mut ids = 0;
    for of_stream in marks {
        ids += of_stream.ids.len();
        match batches.last_mut().filter(|_| ids <= IDS_PER_BATCH) {
            Some(batch) => batch.push(of_stream.clone()),
            None => {
                batches.push(vec![of_stream.clone()]);
                ids = of_stream.ids.len();
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_in_one_batch_and_no_batch_is_too_long() {
        let marks: Vec<AppliedIds> =
            (0..1_000).map(|stream| AppliedIds { stream, ids: (0..stream % 257).collect() }).collect();
        let batches = in_batches(&marks);
        assert!(batches.concat() == marks);
        let ids = |batch: &Vec<AppliedIds>| batch.iter().map(|of_stream| of_stream.ids.len()).sum::<usize>();
        assert!(batches.iter().all(|batch| !batch.is_empty() && ids(batch) <= IDS_PER_BATCH));
        assert!(batches.len() <= 2 * 1_000 * 128 / IDS_PER_BATCH, "{}", batches.len());
        assert!(in_batches(&[]).is_empty());
    }
}
