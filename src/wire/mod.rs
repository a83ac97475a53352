//! Frames and messages between hosts, and between a PHP process and its host's node.
//!
//! Nothing here does I/O or awaits: bytes go in and values come out, or the other way round. All integers are little
//! endian.

mod age;
mod body;
pub mod codec;
pub mod frame;
pub mod hello;
pub mod message;

pub use codec::{decode_request, decode_response, encode_request, encode_response};
pub use frame::{Frame, decode_frame, frame_cap};

/// Bytes that are no frame or no message. Nothing was applied; the connection they came on has lost its sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame announces more than is allowed; nothing was allocated for it.
    #[error("a frame of {len} bytes was announced, at most {cap} are allowed")]
    TooLong {
        /// Announced bytes after the length.
        len: u64,
        /// The cap.
        cap: u64,
    },
    /// A frame announces less than its own header.
    #[error("a frame of {len} bytes was announced, less than its header")]
    TooShort {
        /// Announced bytes after the length.
        len: u32,
    },
    /// The message ends before it is complete, or a count promises more than is there.
    #[error("the message of type {kind:#04x} is cut short")]
    Truncated {
        /// The frame's type.
        kind: u8,
    },
    /// Bytes are left over after the message.
    #[error("the message of type {kind:#04x} has {left} bytes too many")]
    Trailing {
        /// The frame's type.
        kind: u8,
        /// How many.
        left: usize,
    },
    /// No message has this type (or not in this direction). The frame itself is sound, so the next one can be read.
    #[error("unknown message type {0:#04x}")]
    UnknownType(u8),
    /// A field has a value that means nothing.
    #[error("the message of type {kind:#04x} has a bad {what}")]
    Invalid {
        /// The frame's type.
        kind: u8,
        /// The field.
        what: &'static str,
    },
}
