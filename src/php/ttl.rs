//! TTLs as scripts give them: seconds, whole or with a fraction.

use std::ffi::CStr;

/// Longest TTL in seconds: ten years of 365.25 days.
pub const SECONDS_MAX: i64 = 315_576_000;

/// An `int|float`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// int
    Int(i64),
    /// float
    Float(f64),
}

/// What an argument that is not a TTL is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong(pub &'static CStr);

/// Milliseconds of a TTL for which 0 has a meaning of its own (`None`). A positive TTL is at least 1 ms.
pub fn milliseconds_or_none(ttl: Number) -> Result<Option<u64>, Wrong> {
    milliseconds(ttl, Wrong(c"must be greater than or equal to 0"))
}

/// Milliseconds of a TTL that must be positive. At least 1.
pub fn milliseconds_positive(ttl: Number) -> Result<u64, Wrong> {
    let wrong = Wrong(c"must be greater than 0");
    milliseconds(ttl, wrong)?.ok_or(wrong)
}

fn milliseconds(ttl: Number, negative: Wrong) -> Result<Option<u64>, Wrong> {
    const TOO_LONG: Wrong = Wrong(c"must be at most 315576000 seconds");
    match ttl {
        Number::Int(seconds) if seconds < 0 => Err(negative),
        Number::Int(seconds) if seconds > SECONDS_MAX => Err(TOO_LONG),
        Number::Int(seconds) => Ok(Some(seconds as u64 * 1000).filter(|ms| *ms > 0)),
        Number::Float(seconds) if !seconds.is_finite() => Err(Wrong(c"must be finite")),
        Number::Float(seconds) if seconds < 0.0 => Err(negative),
        Number::Float(seconds) if seconds > SECONDS_MAX as f64 => Err(TOO_LONG),
        Number::Float(0.0) => Ok(None),
        Number::Float(seconds) => Ok(Some(((seconds * 1000.0).round() as u64).max(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::Number::{Float, Int};
    use super::*;

    #[test]
    fn seconds_become_milliseconds() {
        for (ttl, ms) in [
            (Int(60), 60_000),
            (Float(0.2), 200),
            (Float(1.1), 1100),
            (Float(1e-9), 1),
            (Float(f64::MIN_POSITIVE), 1),
            (Int(SECONDS_MAX), 315_576_000_000),
            (Float(SECONDS_MAX as f64), 315_576_000_000),
        ] {
            assert_eq!(milliseconds_positive(ttl), Ok(ms), "{ttl:?}");
            assert_eq!(milliseconds_or_none(ttl), Ok(Some(ms)), "{ttl:?}");
        }
    }

    #[test]
    fn zero_is_none_or_wrong() {
        for ttl in [Int(0), Float(0.0), Float(-0.0)] {
            assert_eq!(milliseconds_or_none(ttl), Ok(None), "{ttl:?}");
            assert!(milliseconds_positive(ttl).is_err(), "{ttl:?}");
        }
    }

    #[test]
    fn nonsense_is_wrong_everywhere() {
        for ttl in [
            Int(-1),
            Int(i64::MIN),
            Int(i64::MAX),
            Int(SECONDS_MAX + 1),
            Float(-1e-9),
            Float(-1e300),
            Float(1e300),
            Float(f64::NAN),
            Float(f64::INFINITY),
            Float(f64::NEG_INFINITY),
        ] {
            assert!(milliseconds_or_none(ttl).is_err(), "{ttl:?}");
            assert!(milliseconds_positive(ttl).is_err(), "{ttl:?}");
        }
    }
}
