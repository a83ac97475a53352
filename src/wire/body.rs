//! Fields of messages: integers, lists, keys, states and copies.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::WireError;
use super::frame::Frame;
use crate::error::Refusal;
use crate::record::{Body, Copy, Diverged, KeyBuf, Share, State, Window};

/// Room is made for this many items at first, however many a count promises.
const CAPACITY_FIRST: usize = 1_024;

const COUNTER: u8 = 0;
const BYTES: u8 = 1;
const TOMBSTONE: u8 = 2;
const ELSEWHERE: u8 = 3;

/// Least bytes of a share, a state and a copy: what a list's count is checked against.
pub(super) const SHARE_LEN: usize = 8 + WINDOW_LEN + 8 + 8;
const WINDOW_LEN: usize = 16;
const STATE_LEN_MIN: usize = 8 + 8 + WINDOW_LEN + 1 + 1 + 1 + 4;
pub(super) const KEY_LEN_MIN: usize = 1 + 2 + 1;
pub(super) const COPY_LEN_MIN: usize = KEY_LEN_MIN + STATE_LEN_MIN;

/// Reads the fields of one message off its frame, without copying bytes.
pub(super) struct Reader {
    kind: u8,
    left: Bytes,
}

impl Reader {
    pub(super) fn new(frame: Frame) -> Self {
        Self { kind: frame.kind, left: frame.body }
    }

    pub(super) fn invalid(&self, what: &'static str) -> WireError {
        WireError::Invalid { kind: self.kind, what }
    }

    fn truncated(&self) -> WireError {
        WireError::Truncated { kind: self.kind }
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.left.try_get_u8().map_err(|_| self.truncated())
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.left.try_get_u16_le().map_err(|_| self.truncated())
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.left.try_get_u32_le().map_err(|_| self.truncated())
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.left.try_get_u64_le().map_err(|_| self.truncated())
    }

    pub(super) fn i64(&mut self) -> Result<i64, WireError> {
        self.left.try_get_i64_le().map_err(|_| self.truncated())
    }

    pub(super) fn flag(&mut self) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.invalid("flag")),
        }
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    pub(super) fn take(&mut self, len: usize) -> Result<Bytes, WireError> {
        if len > self.left.len() {
            return Err(self.truncated());
        }
        Ok(self.left.split_to(len))
    }

    /// Bytes behind a 32-bit length.
    pub(super) fn blob(&mut self) -> Result<Bytes, WireError> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// UTF-8 behind a 16-bit length.
    pub(super) fn text(&mut self) -> Result<String, WireError> {
        let len = self.u16()?;
        let bytes = self.take(len.into())?;
        String::from_utf8(bytes.into()).map_err(|_| self.invalid("text"))
    }

    /// Items behind a 32-bit count, each of at least `len_min` bytes.
    pub(super) fn list<T>(
        &mut self,
        len_min: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.u32()? as usize;
        if count > self.left.len() / len_min {
            return Err(self.truncated());
        }
        let mut items = Vec::with_capacity(count.min(CAPACITY_FIRST));
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    pub(super) fn refusal(&mut self) -> Result<Refusal, WireError> {
        let code = self.u8()?;
        Refusal::from_code(code).ok_or_else(|| self.invalid("refusal"))
    }

    pub(super) fn key(&mut self) -> Result<KeyBuf, WireError> {
        let namespace_len = self.u8()?;
        let len = self.u16()?;
        let bytes = self.take(len.into())?;
        KeyBuf::from_parts(bytes, namespace_len.into()).ok_or_else(|| self.invalid("key"))
    }

    fn window(&mut self) -> Result<Window, WireError> {
        Ok(Window { stamp: self.u64()?, origin: self.u64()? })
    }

    fn share(&mut self) -> Result<Share, WireError> {
        Ok(Share { origin: self.u64()?, window: self.window()?, sequence: self.u64()?, amount: self.i64()? })
    }

    pub(super) fn state(&mut self) -> Result<State, WireError> {
        Ok(State {
            term: self.u64()?,
            stamp: self.u64()?,
            window: self.window()?,
            ttl_ms: self.option(Self::u64)?,
            diverged: self.option(|r| Ok(Diverged { at: r.u64()?, amount: r.i64()?, sets: r.flag()? }))?,
            body: match self.u8()? {
                COUNTER => Body::Counter(self.list(SHARE_LEN, Self::share)?),
                BYTES => Body::Bytes(self.blob()?),
                TOMBSTONE => Body::Tombstone(self.list(SHARE_LEN, Self::share)?),
                ELSEWHERE => Body::Elsewhere { len: self.u32()? },
                _ => return Err(self.invalid("body")),
            },
        })
    }

    pub(super) fn copy(&mut self) -> Result<Copy, WireError> {
        Ok(Copy { key: self.key()?, state: self.state()? })
    }

    /// How many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.left.len()
    }

    /// The message must be at its end.
    pub(super) fn end(self) -> Result<(), WireError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(WireError::Trailing { kind: self.kind, left }),
        }
    }
}

pub(super) fn put_option<T>(out: &mut BytesMut, value: Option<T>, put: impl FnOnce(&mut BytesMut, T)) {
    out.put_u8(value.is_some().into());
    if let Some(value) = value {
        put(out, value);
    }
}

pub(super) fn put_list<T>(out: &mut BytesMut, items: &[T], mut put: impl FnMut(&mut BytesMut, &T)) {
    out.put_u32_le(items.len() as u32);
    for item in items {
        put(out, item);
    }
}

pub(super) fn put_blob(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Longer texts are cut at a character boundary: they are for people, or were checked where they were configured.
pub(super) fn put_text(out: &mut BytesMut, text: &str) {
    let mut len = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    out.put_u16_le(len as u16);
    out.put_slice(&text.as_bytes()[..len]);
}

pub(super) fn put_key(out: &mut BytesMut, key: &KeyBuf) {
    out.put_u8(key.as_key().namespace.len() as u8);
    out.put_u16_le(key.as_bytes().len() as u16);
    out.put_slice(key.as_bytes());
}

fn put_window(out: &mut BytesMut, window: &Window) {
    out.put_u64_le(window.stamp);
    out.put_u64_le(window.origin);
}

fn put_share(out: &mut BytesMut, share: &Share) {
    out.put_u64_le(share.origin);
    put_window(out, &share.window);
    out.put_u64_le(share.sequence);
    out.put_i64_le(share.amount);
}

pub(super) fn put_ttl(out: &mut BytesMut, ttl_ms: Option<u64>) {
    put_option(out, ttl_ms, |out, ttl_ms| out.put_u64_le(ttl_ms));
}

pub(super) fn put_state(out: &mut BytesMut, state: &State) {
    out.put_u64_le(state.term);
    out.put_u64_le(state.stamp);
    put_window(out, &state.window);
    put_ttl(out, state.ttl_ms);
    put_option(out, state.diverged, |out, diverged| {
        out.put_u64_le(diverged.at);
        out.put_i64_le(diverged.amount);
        out.put_u8(diverged.sets.into());
    });
    match &state.body {
        Body::Counter(shares) => {
            out.put_u8(COUNTER);
            put_list(out, shares, put_share);
        }
        Body::Bytes(bytes) => {
            out.put_u8(BYTES);
            put_blob(out, bytes);
        }
        Body::Tombstone(shares) => {
            out.put_u8(TOMBSTONE);
            put_list(out, shares, put_share);
        }
        Body::Elsewhere { len } => {
            out.put_u8(ELSEWHERE);
            out.put_u32_le(*len);
        }
    }
}

pub(super) fn put_copy(out: &mut BytesMut, copy: &Copy) {
    put_key(out, &copy.key);
    put_state(out, &copy.state);
}
