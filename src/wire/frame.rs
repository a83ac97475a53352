//! Frames: `len u32 | type u8 | id u64 | body`, where `len` counts the bytes after it.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::WireError;

/// Bytes of a frame before its body.
pub const HEADER_LEN: usize = 4 + AFTER_LEN;

/// Bytes of type and id, which `len` includes.
const AFTER_LEN: usize = 1 + 8;

/// Says what the sender's clock shows, to whoever reads the connection. No request and no response.
const TIME: u8 = 0x7f;

/// One frame. `body` shares the buffer it was read into: keeping it keeps that buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The message's type.
    pub kind: u8,
    /// The request's id, repeated by its response; 0 in the handshake.
    pub id: u64,
    /// The message.
    pub body: Bytes,
}

/// Largest allowed `len` for a cluster whose values have at most `value_max` bytes: 1 MiB more than the two values of a
/// compare-and-set.
pub fn frame_cap(value_max: u32) -> usize {
    (1 << 20) + 2 * value_max as usize
}

/// Takes one frame off the front of `buffer`; `None` when more bytes are needed.
///
/// Errors: [`WireError::TooLong`] when it announces more than `cap`, as soon as the length is there and before
/// anything is allocated; [`WireError::TooShort`]. `buffer` is unchanged then, and useless.
pub fn decode_frame(buffer: &mut BytesMut, cap: usize) -> Result<Option<Frame>, WireError> {
    let Some(len) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes(*len);
    if u64::from(len) > cap as u64 {
        return Err(WireError::TooLong { len: len.into(), cap: cap as u64 });
    }
    if (len as usize) < AFTER_LEN {
        return Err(WireError::TooShort { len });
    }
    if buffer.len() < 4 + len as usize {
        return Ok(None);
    }
    let mut frame = buffer.split_to(4 + len as usize).freeze();
    frame.advance(4);
    let (kind, id) = (frame.get_u8(), frame.get_u64_le());
    Ok(Some(Frame { kind, id, body: frame }))
}

/// Appends what the sender's clock shows, in milliseconds, the lower 32 bits.
pub fn encode_time(ms: u32, out: &mut BytesMut) {
    encode_frame(TIME, 0, out, |out| out.put_u32_le(ms));
}

/// What the sender's clock showed, if `frame` says so.
pub fn time_of(frame: &Frame) -> Option<u32> {
    let ms = frame.body.as_ref().try_into().ok()?;
    (frame.kind == TIME).then(|| u32::from_le_bytes(ms))
}

/// Appends a frame whose body `write` appends.
pub fn encode_frame(kind: u8, id: u64, out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.reserve(HEADER_LEN + 64);
    out.put_u32_le(0);
    out.put_u8(kind);
    out.put_u64_le(id);
    write(out);
    // More than 4 GiB cannot be said; the largest number that can is refused by every receiver.
    let len = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_whole_however_it_arrives() {
        let mut sent = BytesMut::new();
        encode_frame(7, 42, &mut sent, |out| out.put_slice(b"hello"));
        assert_eq!(&sent[..], b"\x0e\0\0\0\x07\x2a\0\0\0\0\0\0\0hello");
        let mut received = BytesMut::new();
        for (position, byte) in sent.iter().enumerate() {
            received.put_u8(*byte);
            let frame = decode_frame(&mut received, 14).unwrap();
            assert_eq!(frame.is_some(), position + 1 == sent.len());
            if let Some(frame) = frame {
                assert_eq!(frame, Frame { kind: 7, id: 42, body: Bytes::from_static(b"hello") });
            }
        }
        assert!(received.is_empty());
    }

    #[test]
    fn four_gib_are_refused_before_anything_is_allocated() {
        let mut buffer = BytesMut::from(&b"\xff\xff\xff\xff"[..]);
        let before = buffer.capacity();
        let error = decode_frame(&mut buffer, frame_cap(1 << 20)).unwrap_err();
        assert_eq!(error, WireError::TooLong { len: 0xffff_ffff, cap: 3 << 20 });
        assert_eq!(error.to_string(), "a frame of 4294967295 bytes was announced, at most 3145728 are allowed");
        assert_eq!(buffer.capacity(), before);
    }

    #[test]
    fn the_cap_is_exact_and_a_frame_has_a_header() {
        let mut buffer = BytesMut::from(&b"\x0f\0\0\0"[..]);
        assert_eq!(decode_frame(&mut buffer, 15), Ok(None));
        assert_eq!(decode_frame(&mut buffer, 14), Err(WireError::TooLong { len: 15, cap: 14 }));
        for len in 0..9 {
            let mut buffer = BytesMut::from(&[len, 0, 0, 0][..]);
            assert_eq!(decode_frame(&mut buffer, 100), Err(WireError::TooShort { len: len.into() }));
        }
    }
}
