//! Checks that everything in the store fits together. For tests: it takes every lock, one after the other, and expects
//! that nobody changes anything meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use super::Store;
use super::item::SHARE_LEN;
use super::layout::{
    CLASSES, ENTRY_CLASSES, Meta, PageState, SHARDS, Shape, class_size, entry_class, shard_of, tag_of, unpair,
};
use crate::record::Key;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl Store {
    /// Checks chains, keys, free lists, counts and pages. Errors: what does not fit, in words.
    pub fn verify(&self) -> Result<(), String> {
        let area = &self.inner.area;
        // Finishing what dead processes left may give pages back, so that comes first.
        for index in 0..=SHARDS {
            let mut locked = self.inner.lock(index).map_err(|error| error.to_string())?;
            locked.take_global().map_err(|error| error.to_string())?;
        }
        let mut seen: HashSet<u32> = HashSet::new();
        for index in 0..SHARDS {
            self.verify_shard(index, &mut seen)?;
        }
        let global = area.global();
        ensure!(global.holder.load(Ordering::Relaxed) == 0, "the global lock has a holder");
        let pool = global.pool.load(Ordering::Relaxed);
        let fresh = (pool >> 32) as usize;
        let (mut free, mut next) = (HashSet::new(), pool as u32);
        while next != 0 {
            let page = next as usize - 1;
            ensure!(page < fresh && free.insert(page), "page {page} is in the pool twice or was never used");
            ensure!(area.page_state(page).shard == 0, "page {page} is in the pool and has a shard");
            next = (area.page(page).links.load(Ordering::Relaxed) >> 32) as u32;
        }
        let pages_free = global.pages_free.load(Ordering::Relaxed) as usize;
        ensure!(pages_free == free.len() + area.page_count - fresh, "{pages_free} pages free, counted otherwise");
        let mut objects = 0;
        for page in 0..area.page_count {
            let state = area.page_state(page);
            let in_pool = page >= fresh || free.contains(&page);
            ensure!(in_pool == (state.shard == 0), "page {page} leaked");
            objects += state.used as usize;
        }
        ensure!(objects == seen.len(), "{objects} objects allocated, {} reachable", seen.len());
        Ok(())
    }

    fn verify_shard(&self, index: usize, seen: &mut HashSet<u32>) -> Result<(), String> {
        let area = &self.inner.area;
        let locked = self.inner.lock(index).map_err(|error| error.to_string())?;
        let shard = locked.shard;
        ensure!(shard.seq.load(Ordering::Relaxed) & 1 == 0, "shard {index}: sequence is odd");
        let mut counts = [0_u64; 3];
        let mut used_bytes = 0;
        let mut per_page: HashMap<usize, usize> = HashMap::new();
        let mut own = |reference: u32, class: Option<usize>| -> Result<(), String> {
            ensure!(area.in_arena(reference), "shard {index}: reference {reference} leads nowhere");
            let page = area.page_of(reference);
            let state = area.page_state(page);
            ensure!(state.shard as usize == index + 1, "shard {index}: page {page} is another's");
            ensure!(class.is_none_or(|class| class == state.class as usize), "page {page}: wrong class");
            let (_, object) = area.locate(reference);
            ensure!(area.reference(page, state.class as usize, object) == reference, "{reference} is between objects");
            ensure!(object < state.carved as usize, "{reference} was never carved");
            ensure!(seen.insert(reference), "{reference} is reachable twice");
            *per_page.entry(page).or_default() += 1;
            used_bytes += class_size(state.class as usize) as u64;
            Ok(())
        };
        let mut keys = HashSet::new();
        for bucket in 0..=area.bucket_mask as usize {
            let (cell, shift) = area.bucket_at(index * (area.bucket_mask as usize + 1) + bucket);
            let mut reference = (cell.load(Ordering::Relaxed) >> shift) as u32;
            while reference != 0 {
                let shape = Shape::decode(area.word(reference, 7).load(Ordering::Relaxed));
                own(reference, Some(entry_class(shape.key_len as usize)))?;
                let mut bytes = Vec::new();
                let namespace_len = area.read_key(reference, &mut bytes);
                let (namespace, name) = bytes.split_at(namespace_len);
                let hash = area.hash(Key { namespace, name });
                let word = area.word(reference, 2).load(Ordering::Relaxed);
                let placed = shard_of(hash) == index && (hash & area.bucket_mask) as usize == bucket;
                ensure!(placed && tag_of(hash) == (word >> 32) as u32, "{reference} is in the wrong chain");
                ensure!(keys.insert((namespace_len, bytes.clone())), "a key is there twice: {bytes:?}");
                let (_, meta) = unpair(area.pair(reference).load(Ordering::Relaxed));
                ensure!(!meta.has(Meta::CLAIMED), "{reference} is claimed");
                let live = meta.has(Meta::LIVE);
                counts[0] += u64::from(live);
                counts[1] += u64::from(meta.has_bytes());
                counts[2] += u64::from(!live);
                let item = locked.load(reference);
                let shares = item.records().len() * SHARE_LEN;
                let mut piece = shape.chain;
                let mut len = 0;
                while piece != 0 {
                    own(piece, None)?;
                    ensure!(
                        area.page_state(area.page_of(piece)).class as usize >= ENTRY_CLASSES,
                        "{piece} is no piece"
                    );
                    let word = area.word(piece, 0).load(Ordering::Relaxed);
                    len += (word >> 32) as usize;
                    piece = word as u32;
                }
                let bytes = match item.kind {
                    super::item::Kind::Bytes(len) => len as usize,
                    _ => 0,
                };
                // A delete leaves the chain as it is, the record of a change that is the owner's by then included.
                let left_over = if item.diverged.is_none() && bytes == 0 { SHARE_LEN } else { 0 };
                let fits = len == shares + bytes || len == shares + bytes + left_over;
                ensure!(fits, "{reference}: chain of {len} bytes, not {}", shares + bytes);
                reference = word as u32;
            }
        }
        let have = [&shard.live, &shard.live_bytes, &shard.tombstones].map(|cell| cell.load(Ordering::Relaxed));
        ensure!(have == counts, "shard {index}: counts {have:?}, found {counts:?}");
        let used = shard.used.load(Ordering::Relaxed);
        ensure!(used == used_bytes, "shard {index}: {used} bytes used, found {used_bytes}");
        let mut listed = HashSet::new();
        for class in 0..CLASSES {
            let (mut next, mut previous) = (shard.classes[class].load(Ordering::Relaxed) as u32, 0);
            while next != 0 {
                let page = next as usize - 1;
                ensure!(listed.insert(page), "page {page} is listed twice");
                let links = area.page(page).links.load(Ordering::Relaxed);
                ensure!(links as u32 == previous, "page {page}: wrong link back");
                ensure!(area.page_state(page).class as usize == class, "page {page} is in the wrong list");
                (previous, next) = (next, (links >> 32) as u32);
            }
        }
        for page in 0..area.page_count {
            let state = area.page_state(page);
            if state.shard as usize == index + 1 {
                self.verify_page(page, state, per_page.get(&page).copied().unwrap_or(0), listed.contains(&page))?;
            }
        }
        Ok(())
    }

    fn verify_page(&self, page: usize, state: PageState, reachable: usize, listed: bool) -> Result<(), String> {
        let area = &self.inner.area;
        let class = state.class as usize;
        ensure!(state.used as usize == reachable, "page {page}: {} allocated, {reachable} reachable", state.used);
        let (mut free, mut next) = (0, state.free as usize);
        while next != 0 {
            free += 1;
            ensure!(next <= state.carved as usize && free <= state.carved, "page {page}: bad free list");
            let link = if class < ENTRY_CLASSES { 2 } else { 0 };
            let reference = area.reference(page, class, next - 1);
            next = area.word(reference, link).load(Ordering::Relaxed) as u32 as usize;
        }
        ensure!(free + state.used == state.carved, "page {page}: objects leaked");
        let full = state.free == 0 && state.carved as usize == area.page_capacity(class);
        ensure!(full != listed, "page {page}: full {full}, listed {listed}");
        Ok(())
    }
}
