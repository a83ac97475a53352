//! Pages, objects and chains of pieces.
//!
//! A page belongs to a shard and has a class; per shard and class the pages with room form a list. Values and share
//! lists lie in chains of pieces, built and freed piece by piece in transactions of their own: a chain under
//! construction hangs on the shard's `building`, one to be freed on `freeing`, so a kill in between leaks nothing.

use std::sync::atomic::Ordering;

use super::layout::{ENTRY_CLASSES, PIECE_HEAD, PageState, class_size};
use super::shard::Locked;
use super::{Fail, Inner};
use crate::error::Refusal;

fn links(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn link(previous: u32, next: u32) -> u64 {
    u64::from(previous) | u64::from(next) << 32
}

/// Free objects hold the next free one's index plus one: entries in their word 2, because the pair must keep its
/// generation; pieces in word 0.
fn link_word(class: usize) -> usize {
    if class < ENTRY_CLASSES { 2 } else { 0 }
}

impl Inner {
    /// Pages that nobody has.
    pub(super) fn pages_free(&self) -> usize {
        self.area.global().pages_free.load(Ordering::Relaxed) as usize
    }
}

impl Locked<'_> {
    /// Makes sure that [`Locked::alloc`] of this class succeeds once. Commits; not to be called with writes pending.
    pub fn reserve(&mut self, class: usize) -> Result<(), Fail> {
        let head = &self.shard.classes[class];
        if head.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        self.take_global()?;
        let area = self.area;
        let global = area.global();
        let (free, fresh) = links(global.pool.load(Ordering::Acquire));
        let (index, pool) = if free != 0 {
            let next = links(area.page(free as usize - 1).links.load(Ordering::Acquire)).1;
            (free as usize - 1, link(next, fresh))
        } else if (fresh as usize) < area.page_count {
            (fresh as usize, link(0, fresh + 1))
        } else {
            self.forget();
            return Err(Fail::Need { class, pages: 1 });
        };
        let state = PageState { free: 0, carved: 0, used: 0, class: class as u8, shard: self.index as u8 + 1 };
        let pages_free = global.pages_free.load(Ordering::Acquire) - 1;
        self.put_global(&global.pool, pool);
        self.put_global(&global.pages_free, pages_free);
        self.put_global(&area.page(index).state, state.encode());
        self.put_global(&area.page(index).links, 0);
        self.put(head, index as u64 + 1);
        self.commit();
        Ok(())
    }

    /// Allocates an object of a class that has a page with room.
    pub fn alloc(&mut self, class: usize) -> u32 {
        let area = self.area;
        let head = &self.shard.classes[class];
        let page = self.get(head) as usize - 1;
        let mut state = PageState::decode(self.get(&area.page(page).state));
        let index = if state.free != 0 {
            let index = state.free as usize - 1;
            let next = self.get(area.word(area.reference(page, class, index), link_word(class)));
            state.free = next as u16;
            index
        } else {
            state.carved += 1;
            state.carved as usize - 1
        };
        state.used += 1;
        self.put(&area.page(page).state, state.encode());
        if state.free == 0 && state.carved as usize == area.page_capacity(class) {
            let next = links(self.get(&area.page(page).links)).1;
            self.put(head, u64::from(next));
            self.put(&area.page(page).links, 0);
            if next != 0 {
                let cell = &area.page(next as usize - 1).links;
                let (_, after) = links(self.get(cell));
                self.put(cell, link(0, after));
            }
        }
        let used = self.get(&self.shard.used) + class_size(class) as u64;
        self.put(&self.shard.used, used);
        area.reference(page, class, index)
    }

    /// Frees an object.
    pub fn free(&mut self, reference: u32) {
        let area = self.area;
        let (page, index) = area.locate(reference);
        let cell = &area.page(page).state;
        let mut state = PageState::decode(self.get(cell));
        let class = state.class as usize;
        let was_full = state.free == 0 && state.carved as usize == area.page_capacity(class);
        self.put(area.word(reference, link_word(class)), u64::from(state.free));
        state.free = index as u16 + 1;
        state.used -= 1;
        self.put(cell, state.encode());
        if was_full {
            let head = &self.shard.classes[class];
            let first = self.get(head) as u32;
            self.put(head, page as u64 + 1);
            self.put(&area.page(page).links, link(0, first));
            if first != 0 {
                let cell = &area.page(first as usize - 1).links;
                let (_, next) = links(self.get(cell));
                self.put(cell, link(page as u32 + 1, next));
            }
        }
        let used = self.get(&self.shard.used) - class_size(class) as u64;
        self.put(&self.shard.used, used);
    }

    /// Gives a page of pieces back to the pool if nothing in it is allocated.
    fn release_if_empty(&mut self, page: usize) {
        let area = self.area;
        let state = area.page_state(page);
        if state.used != 0 || (state.class as usize) < ENTRY_CLASSES || self.take_global().is_err() {
            return;
        }
        let (previous, next) = links(area.page(page).links.load(Ordering::Acquire));
        if previous != 0 {
            let cell = &area.page(previous as usize - 1).links;
            let (before, _) = links(self.get(cell));
            self.put(cell, link(before, next));
        } else {
            self.put(&self.shard.classes[state.class as usize], u64::from(next));
        }
        if next != 0 {
            let cell = &area.page(next as usize - 1).links;
            let (_, after) = links(self.get(cell));
            self.put(cell, link(previous, after));
        }
        let global = area.global();
        let (free, fresh) = links(global.pool.load(Ordering::Acquire));
        let pages_free = global.pages_free.load(Ordering::Acquire) + 1;
        self.put_global(&area.page(page).state, 0);
        self.put_global(&area.page(page).links, link(0, free));
        self.put_global(&global.pool, link(page as u32 + 1, fresh));
        self.put_global(&global.pages_free, pages_free);
        self.commit();
    }

    /// Builds a chain with `first` and then `second`, and leaves it on `building`. Its reference; 0 for no bytes.
    pub fn build(&mut self, first: &[u8], second: &[u8]) -> Result<u32, Fail> {
        let len = first.len() + second.len();
        let area = self.area;
        let piece_max = area.page_size() - PIECE_HEAD;
        // From the end to the start, so that each piece is put before the one built last.
        let mut end = len;
        let tail = len % piece_max;
        while end > 0 {
            let size = if end == len && tail != 0 { tail } else { piece_max };
            let class = area.piece_class(size);
            self.reserve(class).map_err(|fail| match fail {
                Fail::Need { .. } => Fail::Need { class, pages: len.div_ceil(piece_max) },
                other => other,
            })?;
            let reference = self.alloc(class);
            let start = end - size;
            let split = first.len().clamp(start, end);
            if start < split {
                area.write(reference, PIECE_HEAD, &first[start..split]);
            }
            if split < end {
                let data = &second[split - first.len()..end - first.len()];
                area.write(reference, PIECE_HEAD + (split - start), data);
            }
            let next = self.shard.building.load(Ordering::Relaxed);
            self.put(area.word(reference, 0), next | (size as u64) << 32);
            self.put(&self.shard.building, u64::from(reference));
            self.commit();
            end = start;
        }
        Ok(self.shard.building.load(Ordering::Relaxed) as u32)
    }

    /// Appends the bytes of a chain, piece by piece until there are at least `enough`.
    pub fn read_chain(&self, chain: u32, enough: usize, out: &mut Vec<u8>) {
        let mut piece = chain;
        while piece != 0 && out.len() < enough {
            let (next, len) = links(self.area.word(piece, 0).load(Ordering::Acquire));
            self.area.read(piece, PIECE_HEAD, len as usize, out);
            piece = next;
        }
    }

    /// Frees what hangs on `freeing`. Commits; not to be called with writes pending.
    pub fn drain_freeing(&mut self) -> Result<(), Refusal> {
        loop {
            let piece = self.shard.freeing.load(Ordering::Relaxed) as u32;
            if piece == 0 {
                return Ok(());
            }
            let (next, _) = links(self.area.word(piece, 0).load(Ordering::Acquire));
            self.free(piece);
            self.put(&self.shard.freeing, u64::from(next));
            self.commit();
            self.release_if_empty(self.area.page_of(piece));
        }
    }

    /// Frees what hangs on `building`. Commits; not to be called with writes pending.
    pub fn drop_building(&mut self) -> Result<(), Refusal> {
        let chain = self.shard.building.load(Ordering::Relaxed);
        if chain != 0 {
            self.put(&self.shard.freeing, chain);
            self.put(&self.shard.building, 0);
            self.commit();
            self.drain_freeing()?;
        }
        Ok(())
    }
}
