//! Text for PHP on the stack. A call into Zend may `longjmp` away and would leak a `String`.

use std::ffi::c_char;
use std::fmt::{self, Write};

/// NUL-terminated text of at most `N - 1` bytes; what does not fit is cut.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// The formatted text.
    pub fn new(arguments: fmt::Arguments<'_>) -> Self {
        let mut text = Self { bytes: [0; N], len: 0 };
        // It fails where the text no longer fits, and then ends there.
        let _ = text.write_fmt(arguments);
        text
    }

    /// The text for C.
    pub fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// The text without its NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = N - 1 - self.len;
        let mut take = part.len().min(room);
        while !part.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.len..self.len + take].copy_from_slice(&part.as_bytes()[..take]);
        self.len += take;
        if take < part.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Longest part of a key that a message shows, in bytes of the key.
const SHOWN_MAX: usize = 64;

/// A key as a message shows it: bytes that are not printable ASCII as `\xNN`, cut after 64 bytes.
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter().take(SHOWN_MAX) {
            match byte {
                b'"' | b'\\' => write!(f, "\\{}", *byte as char)?,
                b' '..=b'~' => f.write_char(*byte as char)?,
                _ => write!(f, "\\x{byte:02X}")?,
            }
        }
        if self.0.len() > SHOWN_MAX { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_does_not_fit_is_cut_between_characters() {
        let text = Text::<8>::new(format_args!("{}{}{}", "abcdef", "é", "!"));
        assert_eq!(text.as_bytes(), b"abcdef", "the two bytes of é do not fit into one, and nothing follows a cut");
        assert_eq!(text.bytes[7], 0);
    }

    #[test]
    fn keys_are_shown_printable_and_short() {
        assert_eq!(Shown(b"a\0\xffb\"\\").to_string(), "a\\x00\\xFFb\\\"\\\\");
        let shown = Shown(&[0; 100]).to_string();
        assert_eq!(shown.len(), 64 * 4 + 3);
        assert!(shown.ends_with("\\x00..."));
    }
}
