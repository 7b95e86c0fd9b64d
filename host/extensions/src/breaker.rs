//! Three faults in a minute put a parser aside for a while, twice as long each time.
//!
//! Streams that are open go on; new ones are told how long it lasts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Faults within `WINDOW` that trip the breaker.
const MAX_STRIKES: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// The first quarantine, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// Counts faults of one parser.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// At most `MAX_STRIKES`.
    strikes: VecDeque<Instant>,
    until: Option<Instant>,
    next_pause: Duration,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Breaker { strikes: VecDeque::new(), until: None, next_pause: FIRST_PAUSE }
    }

    /// Notes a fault. Returns the pause if this one begins a quarantine.
    pub(crate) fn strike(&mut self, now: Instant) -> Option<Duration> {
        if self.quarantine_left(now).is_some() {
            return None;
        }
        // A quiet spell as long as the last pause, at least a window: start over.
        let calm = WINDOW.max(self.next_pause);
        if self.strikes.back().is_some_and(|&last| now.saturating_duration_since(last) > calm) {
            self.next_pause = FIRST_PAUSE;
        }
        self.strikes.retain(|&strike| now.saturating_duration_since(strike) <= WINDOW);
        self.strikes.push_back(now);
        if self.strikes.len() < MAX_STRIKES {
            return None;
        }
        let pause = self.next_pause;
        self.next_pause = (pause * 2).min(MAX_PAUSE);
        self.until = Some(now + pause);
        // The last strike stays, for the spell; the next quarantine needs new ones.
        self.strikes.drain(..MAX_STRIKES - 1);
        Some(pause)
    }

    /// How long new sessions are refused; none: they are not.
    pub(crate) fn quarantine_left(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn three_strikes_in_a_minute_and_longer_each_time() {
        let start = Instant::now();
        let mut breaker = Breaker::new();
        assert_eq!(breaker.strike(start), None);
        assert_eq!(breaker.strike(start + s(1)), None);
        assert_eq!(breaker.quarantine_left(start + s(2)), None);
        assert_eq!(breaker.strike(start + s(2)), Some(s(10)));
        assert_eq!(breaker.quarantine_left(start + s(5)), Some(s(7)));
        assert_eq!(breaker.strike(start + s(6)), None, "open streams may still fail");
        assert_eq!(breaker.quarantine_left(start + s(12)), None);
        breaker.strike(start + s(13));
        assert_eq!(breaker.strike(start + s(14)), Some(s(20)));
    }

    #[test]
    fn rare_faults_never_trip_it() {
        let start = Instant::now();
        let mut breaker = Breaker::new();
        for i in 0..100 {
            assert_eq!(breaker.strike(start + s(31 * i)), None);
        }
    }

    #[test]
    fn a_quiet_spell_forgives() {
        let start = Instant::now();
        let mut breaker = Breaker::new();
        for i in 0..3 {
            breaker.strike(start + s(i));
        }
        let later = start + s(100);
        breaker.strike(later);
        breaker.strike(later);
        assert_eq!(breaker.strike(later), Some(s(10)));
    }

    #[test]
    fn the_pause_has_an_end() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new();
        let mut last = s(0);
        for _ in 0..50 {
            if let Some(pause) = breaker.strike(now) {
                last = pause;
                now += pause;
            }
        }
        assert_eq!(last, MAX_PAUSE);
    }
}
