//! Log lines that would repeat, at most one a minute.

use crate::clock::Clock;

const PERIOD_MS: u64 = 60_000;

/// Remembers when its line was last logged.
#[derive(Debug, Default)]
pub struct Quiet {
    last_ms: Option<u64>,
}

impl Quiet {
    /// Whether the line is due; then it counts as logged.
    pub fn due(&mut self) -> bool {
        let now_ms = Clock::System.now_ms();
        let due = self.last_ms.is_none_or(|last_ms| now_ms.saturating_sub(last_ms) >= PERIOD_MS);
        if due {
            self.last_ms = Some(now_ms);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_once_and_then_not_for_a_while() {
        let mut quiet = Quiet::default();
        assert!(quiet.due());
        assert!(!quiet.due());
    }
}
