//! CPU time of guests: one call's deadline and a stream's total.
//!
//! Reading a thread's CPU clock costs as much as a whole call, so short calls never do: the epoch
//! callback takes the first reading once a call has outlived `FIRST_SLICE`, and what came before
//! is charged as the wall time since the call began, at most one slice.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::engine::TICK;

/// Epochs until the callback first looks.
pub(crate) const FIRST_SLICE_TICKS: u64 = 2;

/// The most that a call can have run before the callback looks, and the most that being
/// descheduled in a short call can cost a stream.
const FIRST_SLICE: Duration = TICK.saturating_mul(FIRST_SLICE_TICKS as u32);

/// A machine under load may leave a thread waiting this long.
const MIN_WALL_CAP: Duration = Duration::from_millis(500);

/// A deadline passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overrun {
    /// The guest computed too long.
    #[error("{used_ms} ms of CPU, over the limit of {limit_ms} ms")]
    Cpu { used_ms: u64, limit_ms: u64 },
    /// The call lasted too long, whatever it did.
    #[error("{used_ms} ms on the clock, over the cap of {limit_ms} ms")]
    Wall { used_ms: u64, limit_ms: u64 },
}

/// Lives in a store; the epoch callback asks it.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Duration,
    wall_cap: Duration,
    started: Instant,
    /// The thread's CPU clock when the call began, as far as known.
    baseline: Option<Duration>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Budget {
            limit: Duration::ZERO,
            wall_cap: Duration::ZERO,
            started: Instant::now(),
            baseline: None,
        }
    }

    /// A call begins on this thread.
    pub(crate) fn begin(&mut self, limit: Duration, wall_factor: u32) {
        self.limit = limit;
        self.wall_cap = limit.saturating_mul(wall_factor).max(MIN_WALL_CAP);
        self.started = Instant::now();
        self.baseline = None;
    }

    /// The epoch passed; may the call go on?
    pub(crate) fn on_epoch(&mut self) -> Result<(), Overrun> {
        self.judge(thread_cpu(), self.started.elapsed())
    }

    /// The call ended: what it is charged.
    pub(crate) fn end(&mut self) -> Duration {
        match self.baseline.take() {
            Some(baseline) => thread_cpu().saturating_sub(baseline),
            None => self.started.elapsed().min(FIRST_SLICE),
        }
    }

    fn judge(&mut self, cpu: Duration, wall: Duration) -> Result<(), Overrun> {
        let baseline =
            *self.baseline.get_or_insert_with(|| cpu.saturating_sub(wall.min(FIRST_SLICE)));
        let used = cpu.saturating_sub(baseline);
        if used > self.limit {
            return Err(Overrun::Cpu { used_ms: millis(used), limit_ms: millis(self.limit) });
        }
        if wall > self.wall_cap {
            return Err(Overrun::Wall { used_ms: millis(wall), limit_ms: millis(self.wall_cap) });
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn begun(limit: Duration) -> Budget {
        let mut budget = Budget::new();
        budget.begin(limit, 20);
        budget
    }

    #[test]
    fn a_descheduled_thread_is_not_over_its_limit() {
        let mut budget = begun(ms(5));
        // 90 ms passed, but the thread ran for 1 ms of them.
        assert_eq!(budget.judge(ms(1_000), ms(90)), Ok(()));
        assert_eq!(budget.judge(ms(1_001), ms(180)), Ok(()));
        assert_eq!(budget.judge(ms(1_003), ms(190)), Ok(()), "two before and three since");
    }

    #[test]
    fn a_spinning_thread_is_stopped_by_its_cpu() {
        let mut budget = begun(ms(5));
        assert_eq!(budget.judge(ms(1_002), ms(2)), Ok(()));
        assert_eq!(budget.judge(ms(1_005), ms(5)), Ok(()));
        assert_eq!(budget.judge(ms(1_006), ms(6)), Err(Overrun::Cpu { used_ms: 6, limit_ms: 5 }));
    }

    #[test]
    fn the_wall_cap_holds_without_any_cpu() {
        let mut budget = begun(ms(50));
        assert_eq!(budget.judge(ms(7), ms(999)), Ok(()));
        assert_eq!(
            budget.judge(ms(7), ms(1_001)),
            Err(Overrun::Wall { used_ms: 1_001, limit_ms: 1_000 })
        );
        let mut short = begun(ms(5));
        assert_eq!(short.judge(ms(7), ms(499)), Ok(()), "the cap is at least half a second");
    }

    #[test]
    fn a_short_call_is_charged_at_most_one_slice() {
        let mut budget = begun(ms(5));
        budget.started = Instant::now().checked_sub(ms(300)).unwrap();
        assert_eq!(budget.end(), FIRST_SLICE);
        budget.begin(ms(5), 20);
        assert!(budget.end() < FIRST_SLICE);
    }
}
