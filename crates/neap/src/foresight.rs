//! Whether the next event tends to come so soon that a thread had better not sleep.

use neap_tcp::time::Nanos;
use std::sync::atomic::{AtomicU8, Ordering};

/// How long a thread looks for the event before it sleeps: about what a sleep and its wake-up cost
/// on a virtual machine, so that a look in vain costs no more than it would have saved.
const LOOK: Nanos = Nanos::from_micros(30);
/// An event that ended a sleep of at most this length was soon. It is longer than a look by the
/// wake-up.
const SOON: Nanos = Nanos::from_micros(60);
/// From this score on a thread looks.
const LOOKS: u8 = 8;
/// The highest score: so many events have to be late until threads sleep at once.
const MOST: u8 = 16;
/// What an event that is late takes from the score. One that is soon adds 1.
const LATE: u8 = 3;

/// What ended the sleep before, or that the application called. Each has its own history: behind a
/// paced frame there is an ACK at once, and behind that ACK there is nothing for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The thread has not slept since the application called.
    Call,
    /// An event of a device, or of another thread.
    Event,
    /// The alarm.
    Alarm,
}

impl After {
    /// After a sleep that `only_alarm` says nothing but its alarm has ended.
    pub(crate) fn sleep(only_alarm: bool) -> Self {
        if only_alarm { Self::Alarm } else { Self::Event }
    }
}

/// How a sleep passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// The thread saw an event before it slept.
    Seen,
    /// An event ended the sleep after so long.
    Woken(Nanos),
    /// There was no event, or only after a look in vain.
    Nothing,
}

/// Whether events tend to come soon after a thread would sleep. Kernels of hosts do the same for
/// the processors of virtual machines (`halt_poll_ns` of KVM).
///
/// A thread looks where at least three of four events come soon. So the looks of a stack cost at
/// most what its sleeps would cost, and where no processor is free, or nothing answers, they end
/// after three events. Cost: a load and a store per sleep, and a reading of the clock per wake-up.
/// Threads that note at once may lose one note.
#[derive(Debug, Default)]
pub(crate) struct Foresight {
    scores: [AtomicU8; 3],
}

impl Foresight {
    /// How long to look before a sleep.
    pub(crate) fn look(&self, after: After) -> Nanos {
        match self.scores[after as usize].load(Ordering::Relaxed) >= LOOKS {
            true => LOOK,
            false => Nanos::ZERO,
        }
    }

    /// Learns from a sleep.
    pub(crate) fn note(&self, after: After, passed: Passed) {
        let score = &self.scores[after as usize];
        let was = score.load(Ordering::Relaxed);
        let is_soon = match passed {
            Passed::Seen => true,
            Passed::Woken(time) => time <= SOON,
            Passed::Nothing => false,
        };
        let is = if is_soon { (was + 1).min(MOST) } else { was.saturating_sub(LATE) };
        if is != was {
            score.store(is, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(foresight: &Foresight, after: After, soon: usize, late: usize) {
        (0..soon).for_each(|_| foresight.note(after, Passed::Woken(SOON)));
        (0..late).for_each(|_| foresight.note(after, Passed::Woken(SOON + Nanos(1))));
    }

    #[test]
    fn a_thread_looks_where_events_come_soon() {
        let foresight = Foresight::default();
        assert_eq!(foresight.look(After::Event), Nanos::ZERO, "nothing is known yet");
        learn(&foresight, After::Event, LOOKS.into(), 0);
        assert_eq!(foresight.look(After::Event), LOOK);
        assert_eq!(foresight.look(After::Alarm), Nanos::ZERO, "each has its own history");
        (0..1000).for_each(|_| foresight.note(After::Event, Passed::Seen));
        (0..3).for_each(|_| foresight.note(After::Event, Passed::Nothing));
        assert_eq!(foresight.look(After::Event), Nanos::ZERO, "three in vain are enough");
    }

    #[test]
    fn a_thread_does_not_look_where_every_other_event_is_late() {
        let foresight = Foresight::default();
        for _ in 0..100 {
            learn(&foresight, After::Call, 1, 1);
            assert_eq!(foresight.look(After::Call), Nanos::ZERO);
        }
        for _ in 0..100 {
            learn(&foresight, After::Call, 7, 1);
        }
        assert_eq!(foresight.look(After::Call), LOOK, "one of eight is late");
    }
}
