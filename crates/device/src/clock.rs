//! The clock of the kernel's devices, and of the stacks that run over them.

use neap_tcp::time::{Instant, Nanos};
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_MONOTONIC`. Its epoch is that of the kernel, so departure times mean
/// the same to both. It costs about 25 ns (vDSO).
pub fn now() -> Instant {
    read(ClockId::Monotonic)
}

/// Two looks at a clock with another one in between are over within this time, unless the thread
/// was interrupted.
const LONGEST_LOOK: Nanos = Nanos::from_millis(100);

/// Returns how long the machine has slept since its start: the clock of [`now`] stands still
/// meanwhile. `None` if the thread was interrupted while it looked. It costs three looks at a
/// clock.
pub fn asleep() -> Option<Nanos> {
    let (before, with_sleep, after) = (now(), read(ClockId::Boottime), now());
    (after.since(before) < LONGEST_LOOK).then(|| with_sleep.since(after))
}

fn read(clock: ClockId) -> Instant {
    let time = clock_gettime(clock);
    let nanos = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
    Instant::from_nanos(nanos)
}

/// A call is over within this time.
const LONGEST_CALL: Nanos = Nanos::from_secs(10);

/// Returns the present time for a call that began at `now`: everything that was received by then
/// had come, and everything that was sent had left.
///
/// A program that drives a stack by itself may have a clock with another epoch. A difference of
/// more than ten seconds shows it, and `now` is returned.
pub fn present(now: Instant) -> Instant {
    let time = self::now();
    if time.since(now) < LONGEST_CALL { time.max(now) } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_awake_has_not_slept_meanwhile() {
        let look = || (0..100).find_map(|_| asleep()).expect("a look without an interruption");
        let first = look();
        assert!(look() <= first + LONGEST_LOOK);
    }

    #[test]
    fn what_was_received_has_come_by_now_unless_the_driver_has_another_clock() {
        let start = now();
        let arrived = present(start);
        assert!(start <= arrived && arrived <= now());
        for other in [start - LONGEST_CALL - LONGEST_CALL, start + LONGEST_CALL] {
            assert_eq!(present(other), other);
        }
    }
}
