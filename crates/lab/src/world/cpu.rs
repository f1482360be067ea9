//! Processor of a host: its lateness, the cost of a turn, and who runs on it.

use crate::rng::{Ppm, Rng};
use neap_tcp::time::Nanos;

/// Lateness with which a host notices an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// Uniform from zero to this.
    UpTo(Nanos),
    /// Quantiles, linear in between: the share of all wake-ups that is no later.
    ///
    /// The first is reached from zero; beyond the last it is as late as the last.
    Quantiles(Vec<(Ppm, Nanos)>),
}

impl Lateness {
    pub(super) fn draw(&self, rng: &mut Rng) -> Nanos {
        let quantiles = match self {
            Self::UpTo(most) => return rng.time(*most),
            Self::Quantiles(quantiles) => quantiles,
        };
        let share = rng.below(1_000_000) as u32;
        let (mut low, mut early) = (0, 0);
        for &(Ppm(high), Nanos(late)) in quantiles {
            if share < high {
                let (part, whole) = (u128::from(share - low), u128::from(high - low));
                let span = u128::from(late.saturating_sub(early));
                return Nanos(early + (span * part / whole) as u64);
            }
            (low, early) = (high, late);
        }
        Nanos(early)
    }
}

/// The processor of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Time from an event to the host's turn.
    pub lateness: Lateness,
    /// Processor time of one turn. The host has no other turn before it is over.
    pub per_wakeup: Nanos,
    /// Processor time of one poll of the stack. Unless it is zero, a turn has one poll, and what
    /// arrives meanwhile is seen by the next.
    pub per_poll: Nanos,
    /// Time from the moment when a sleeping application has something to do to its turn.
    pub per_switch: Nanos,
    /// Whether each connection has a timer of its own for its next departure, as in Linux 4.13, so
    /// that each expiration is an interrupt. Only the count changes.
    pub timer_per_flow: bool,
}

impl Cpu {
    /// Returns a processor that costs nothing and is late by at most `lateness`.
    pub const fn up_to(lateness: Nanos) -> Self {
        let lateness = Lateness::UpTo(lateness);
        let zero = Nanos::ZERO;
        Self { lateness, per_wakeup: zero, per_poll: zero, per_switch: zero, timer_per_flow: false }
    }
}

/// Figures of a host's processor (`vmstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Number of turns of the host.
    pub turns: u64,
    /// Interrupts of timers: of the wheel, or of each connection by itself, and of qdiscs.
    pub timer_interrupts: u64,
    /// Frames that a connection held until a timer told it that they may depart.
    pub departures_timed: u64,
    /// Sleeping applications that were given a turn.
    pub wakeups: u64,
    /// Changes from one application, or from idling, to another (`cs`).
    pub context_switches: u64,
}

/// Counts who runs.
#[derive(Debug, Default)]
pub(super) struct SwitchCounter {
    thread: Option<u64>,
    pub(super) stats: CpuStats,
}

impl SwitchCounter {
    /// `thread` was asleep and runs now.
    pub(super) fn wake(&mut self, thread: u64) {
        self.stats.wakeups += 1;
        if self.thread != Some(thread) {
            self.thread = Some(thread);
            self.stats.context_switches += 1;
        }
    }

    /// Everybody sleeps.
    pub(super) fn idle(&mut self) {
        self.stats.context_switches += u64::from(self.thread.take().is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_follows_its_quantiles() {
        let micros = Nanos::from_micros;
        let quantiles = vec![
            (Ppm::percent(50), micros(43)),
            (Ppm::percent(99), micros(113)),
            (Ppm::percent(100), micros(4600)),
        ];
        let (lateness, mut rng) = (Lateness::Quantiles(quantiles), Rng::new(1));
        let mut drawn: Vec<Nanos> = (0..20_000).map(|_| lateness.draw(&mut rng)).collect();
        drawn.sort();
        let near = |at: usize, want: u64| drawn[at].as_micros().abs_diff(want) <= want / 20;
        assert!(near(10_000, 43) && near(19_600, 111), "{:?} {:?}", drawn[10_000], drawn[19_600]);
        assert!(drawn[19_999] > micros(4000) && drawn[19_999] <= micros(4600));
    }

    #[test]
    fn one_that_wakes_alone_costs_two_switches_and_ten_at_once_eleven() {
        let mut switches = SwitchCounter::default();
        switches.wake(1);
        switches.idle();
        assert_eq!(switches.stats.context_switches, 2);
        (0..10).for_each(|thread| switches.wake(thread));
        switches.idle();
        switches.idle();
        assert_eq!(switches.stats.context_switches, 13);
        (0..10).for_each(|_| switches.wake(7));
        switches.idle();
        assert_eq!((switches.stats.context_switches, switches.stats.wakeups), (15, 21));
    }
}
