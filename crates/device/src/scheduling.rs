//! How the kernel schedules a thread: nice value, slice, real-time classes (`sched(7)`).
//!
//! A thread that drives a stack works for some 100 us and then sleeps. On a busy machine it waits
//! for the processor each time, and paced frames, acknowledgements and timers wait with it.

use crate::sys;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use rustix::io::Errno;
use std::io;

/// Request to the kernel about the scheduling of a thread.
///
/// As text it is `nice:-10`, `slice:100us`, `fifo:10` or `rr:10`. Each request changes only what it
/// names, so several may follow one another.
///
/// Linux has autogroups, and containers have control groups of the processor. There a nice value
/// and a slice count among the threads of one group, and real-time priorities count among all
/// threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduling {
    /// Nice value, from -20 (most of the processor) to 19. A value below the present one needs
    /// `CAP_SYS_NICE`, or `RLIMIT_NICE` (`ulimit -e`).
    Nice(i8),
    /// Time of one turn on the processor, from 100 us to 100 ms. A thread with a short slice gets
    /// its turn sooner after a sleep, and no larger share. It needs no right, and Linux 6.12 or
    /// newer. It does nothing to a thread of a real-time class.
    Slice(Duration),
    /// Real-time class `SCHED_FIFO` with this priority, from 1 to 99. The thread goes before all
    /// threads without such a class, for as long as it computes. It needs `CAP_SYS_NICE`, or
    /// `RLIMIT_RTPRIO` (`ulimit -r`).
    Fifo(u8),
    /// Real-time class `SCHED_RR` with this priority, from 1 to 99: as [`Fifo`](Self::Fifo), but
    /// threads of one priority take turns.
    RoundRobin(u8),
}

/// Error of a [`Scheduling`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SchedulingError {
    /// The text names no request.
    #[error(
        "{text:?} is no scheduling: give nice:N (-20 to 19), slice:TIME (100us to 100ms), \
         fifo:N or rr:N (1 to 99)"
    )]
    Syntax {
        /// The text that was given.
        text: String,
    },
    /// The value is out of range.
    #[error("scheduling {scheduling} is out of range: it must be {range}")]
    OutOfRange {
        /// The request that was refused.
        scheduling: Scheduling,
        /// The values that the request takes.
        range: &'static str,
    },
    /// The thread lacks the right: the kernel answered `EPERM` or `EACCES`.
    #[error(
        "scheduling {scheduling} needs CAP_SYS_NICE: run as root, give the program the capability \
         (setcap cap_sys_nice+ep PROGRAM), or raise the user's limit ({limit})"
    )]
    Permission {
        /// The request that was refused.
        scheduling: Scheduling,
        /// The command that raises the limit.
        limit: &'static str,
    },
    /// The kernel does not know the request.
    #[error("scheduling {scheduling} needs Linux {since} or newer")]
    Unsupported {
        /// The request that was refused.
        scheduling: Scheduling,
        /// The first version of Linux that has it.
        since: &'static str,
    },
    /// The kernel refused it for another reason.
    #[error("cannot set scheduling {scheduling}: {source}")]
    System {
        /// The request that was refused.
        scheduling: Scheduling,
        /// What the kernel answered.
        source: io::Error,
    },
}

neap_tcp::debug_as_display!(SchedulingError);

/// The shortest and the longest slice that Linux takes (`__setparam_fair`).
const SLICES: core::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_millis(100);

impl Scheduling {
    /// Returns `self` if its value is in range.
    ///
    /// # Errors
    /// [`SchedulingError::OutOfRange`] says which values are.
    pub fn checked(self) -> Result<Self, SchedulingError> {
        let (is_fine, range) = match self {
            Self::Nice(nice) => ((-20..=19).contains(&nice), "-20 to 19"),
            Self::Slice(slice) => (SLICES.contains(&slice), "100us to 100ms"),
            Self::Fifo(priority) | Self::RoundRobin(priority) => {
                ((1..=99).contains(&priority), "1 to 99")
            }
        };
        is_fine.then_some(self).ok_or(SchedulingError::OutOfRange { scheduling: self, range })
    }

    /// Makes the kernel schedule the calling thread in this way (`setpriority`, `sched_setattr`).
    /// Threads that it starts from here on inherit it.
    ///
    /// # Errors
    /// [`SchedulingError`] says what is missing. Nothing has changed then.
    pub fn apply(self) -> Result<(), SchedulingError> {
        self.checked()?;
        self.request().map_err(|error| self.refused(error))
    }

    fn request(self) -> Result<(), Errno> {
        if let Self::Nice(nice) = self {
            return rustix::process::setpriority_process(None, nice.into());
        }
        let mut attributes = sys::scheduling(None)?;
        match self {
            Self::Nice(_) => {}
            Self::Slice(slice) => {
                attributes.sched_runtime = slice.as_nanos() as u64;
                sys::set_scheduling(None, &attributes)?;
                let has = sys::scheduling(None)?;
                let is_real_time =
                    [libc::SCHED_FIFO, libc::SCHED_RR].contains(&has.sched_policy.cast_signed());
                // An older kernel ignores it, and tells 0. Of a real-time class each tells 0.
                if has.sched_runtime == 0 && !is_real_time {
                    return Err(Errno::OPNOTSUPP);
                }
                return Ok(());
            }
            Self::Fifo(priority) => {
                attributes.sched_policy = libc::SCHED_FIFO.cast_unsigned();
                attributes.sched_priority = priority.into();
            }
            Self::RoundRobin(priority) => {
                attributes.sched_policy = libc::SCHED_RR.cast_unsigned();
                attributes.sched_priority = priority.into();
            }
        }
        sys::set_scheduling(None, &attributes)
    }

    /// The error for what the kernel answered.
    fn refused(self, error: Errno) -> SchedulingError {
        let scheduling = self;
        match (error, self) {
            (Errno::PERM | Errno::ACCESS, Self::Nice(_)) => {
                SchedulingError::Permission { scheduling, limit: "ulimit -e 40" }
            }
            (Errno::PERM | Errno::ACCESS, _) => {
                SchedulingError::Permission { scheduling, limit: "ulimit -r 99" }
            }
            (Errno::OPNOTSUPP, Self::Slice(_)) => {
                SchedulingError::Unsupported { scheduling, since: "6.12" }
            }
            _ => SchedulingError::System { scheduling, source: error.into() },
        }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nice(nice) => write!(f, "nice:{nice}"),
            Self::Slice(slice) => write!(f, "slice:{}us", slice.as_micros()),
            Self::Fifo(priority) => write!(f, "fifo:{priority}"),
            Self::RoundRobin(priority) => write!(f, "rr:{priority}"),
        }
    }
}

impl FromStr for Scheduling {
    type Err = SchedulingError;

    fn from_str(text: &str) -> Result<Self, SchedulingError> {
        let parsed = match text.split_once(':') {
            Some(("nice", value)) => value.parse().ok().map(Self::Nice),
            Some(("slice", value)) => duration(value).map(Self::Slice),
            Some(("fifo", value)) => value.parse().ok().map(Self::Fifo),
            Some(("rr", value)) => value.parse().ok().map(Self::RoundRobin),
            _ => None,
        };
        parsed.ok_or_else(|| SchedulingError::Syntax { text: text.to_owned() })?.checked()
    }
}

/// A whole number of microseconds or milliseconds.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = match text.strip_suffix("us") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix("ms")?, 1000),
    };
    Some(Duration::from_micros(digits.parse::<u64>().ok()?.checked_mul(unit)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_say_the_same() {
        for text in ["nice:-20", "nice:19", "slice:100us", "slice:100000us", "fifo:1", "rr:99"] {
            assert_eq!(text.parse::<Scheduling>().expect(text).to_string(), text);
        }
        let slice: Scheduling = "slice:3ms".parse().expect("a slice");
        assert_eq!(slice, Scheduling::Slice(Duration::from_millis(3)));
    }

    #[test]
    fn what_the_kernel_does_not_take_is_refused_with_the_range() {
        for (text, hint) in [
            ("", "is no scheduling"),
            ("nice", "is no scheduling"),
            ("nice:", "is no scheduling"),
            ("nice:200", "is no scheduling"),
            ("nice:20", "-20 to 19"),
            ("nice:-21", "-20 to 19"),
            ("slice:99us", "100us to 100ms"),
            ("slice:101ms", "100us to 100ms"),
            ("slice:5", "is no scheduling"),
            ("slice:99999999999999999999us", "is no scheduling"),
            ("slice:18446744073709551615ms", "is no scheduling"),
            ("fifo:0", "1 to 99"),
            ("rr:100", "1 to 99"),
            ("deadline:1", "is no scheduling"),
        ] {
            let error = text.parse::<Scheduling>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text:?}: {error}");
        }
        assert!(matches!(Scheduling::Nice(40).apply(), Err(SchedulingError::OutOfRange { .. })));
    }

    /// Applies the request in a thread of its own, and returns what the kernel has then.
    fn applied(scheduling: Scheduling) -> Result<libc::sched_attr, SchedulingError> {
        let thread = std::thread::spawn(move || {
            scheduling.apply()?;
            sys::scheduling(None).map_err(|error| scheduling.refused(error))
        });
        thread.join().expect("no panic")
    }

    #[test]
    fn the_kernel_has_what_was_applied() {
        let slice = Duration::from_micros(300);
        let before = sys::scheduling(None).expect("attributes");
        let nice = before.sched_nice.min(18) + 1;
        let own = applied(Scheduling::Nice(nice as i8)).expect("more of it needs no right");
        assert_eq!((own.sched_nice, own.sched_policy), (nice, before.sched_policy));
        match applied(Scheduling::Slice(slice)) {
            Ok(own) => {
                assert_eq!((own.sched_runtime, own.sched_nice), (300_000, before.sched_nice));
            }
            Err(error) => assert!(matches!(error, SchedulingError::Unsupported { .. }), "{error}"),
        }
        for (request, policy) in
            [(Scheduling::Fifo(3), libc::SCHED_FIFO), (Scheduling::RoundRobin(3), libc::SCHED_RR)]
        {
            match applied(request) {
                Ok(own) => {
                    let has = (own.sched_policy, own.sched_priority);
                    assert_eq!(has, (policy.cast_unsigned(), 3));
                }
                // Root without the capability, or an ordinary user.
                Err(error) => {
                    assert!(matches!(error, SchedulingError::Permission { .. }), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_slice_may_follow_a_real_time_class() {
        for (class, policy) in
            [(Scheduling::Fifo(3), libc::SCHED_FIFO), (Scheduling::RoundRobin(3), libc::SCHED_RR)]
        {
            let thread = std::thread::spawn(move || {
                // Without the right there is nothing to see.
                if class.apply().is_ok() {
                    Scheduling::Slice(Duration::from_millis(1)).apply().expect("it is accepted");
                    let has = sys::scheduling(None).expect("attributes");
                    assert_eq!(has.sched_policy, policy.cast_unsigned());
                }
            });
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn a_missing_right_is_told_from_other_errors() {
        for error in [Errno::PERM, Errno::ACCESS] {
            for request in [Scheduling::Nice(-5), Scheduling::Fifo(1), Scheduling::RoundRobin(1)] {
                let refused = request.refused(error);
                assert!(matches!(refused, SchedulingError::Permission { .. }), "{refused}");
            }
        }
        let refused = Scheduling::Fifo(1).refused(Errno::NOSYS);
        assert!(matches!(refused, SchedulingError::System { .. }), "{refused}");
        let refused = Scheduling::Slice(Duration::from_millis(1)).refused(Errno::OPNOTSUPP);
        assert!(refused.to_string().contains("Linux 6.12"), "{refused}");
    }
}
