//! What the system tells of a process that sends, and of its sockets.

use crate::lab::compare::measure::PATIENCE;
use crate::lab::compare::network::{ChildGuard, run};
use crate::perf::interrupt::Interrupt;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the process, and at the sockets, which a program of its own reads.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_SOCKETS: Duration = Duration::from_millis(200);

/// Context switches of all threads of a process: so far, or per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Switches {
    /// Each is a sleep, and ends by a wake-up (`ru_nvcsw` of `getrusage`).
    pub(super) voluntary: f64,
    /// With those by which others took the processor (`ru_nivcsw`).
    pub(super) all: f64,
}

impl Switches {
    /// Those of a process that runs.
    fn of(process: u32) -> Option<Self> {
        let mut sum = Self::default();
        for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
            // A thread may end meanwhile.
            let status = thread.map(|thread| thread.path().join("status"));
            sum.add(&status.and_then(std::fs::read_to_string).unwrap_or_default());
        }
        Some(sum)
    }

    /// Adds what the `status` of a thread says.
    fn add(&mut self, status: &str) {
        for (name, count) in status.lines().filter_map(|line| line.split_once(':')) {
            let count: f64 = count.trim().parse().unwrap_or(0.0);
            match name {
                "voluntary_ctxt_switches" => {
                    self.voluntary += count;
                    self.all += count;
                }
                "nonvoluntary_ctxt_switches" => self.all += count,
                _ => {}
            }
        }
    }
}

/// What the kernel's sockets of one namespace hold, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sockets {
    /// Bytes that are unsent or not acknowledged.
    pub(super) held_bytes: f64,
    /// Memory that the kernel accounts for.
    pub(super) memory_bytes: f64,
}

impl Sockets {
    /// Those of a namespace.
    fn of(namespace: &str) -> Result<Self, Box<dyn Error>> {
        Ok(Self::parse(&run(["ip", "netns", "exec", namespace, "ss", "-tmnHO"])?))
    }

    /// Reads lines of `ss -tmnHO`, such as
    /// `ESTAB 0 130966 10.0.0.1:36 10.0.0.2:52 skmem:(r0,rb131072,t0,tb87040,f2538,w132630,...)`.
    fn parse(text: &str) -> Self {
        let mut sum = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let ("ESTAB", Some(_), Some(held)) =
                (words.next().unwrap_or_default(), words.next(), words.next())
            else {
                continue;
            };
            sum.held_bytes += held.parse().unwrap_or(0.0);
            let memory = words.find_map(|word| word.strip_prefix("skmem:("));
            let memory = memory.unwrap_or_default().trim_end_matches(')').split(',');
            // `r` and `w` are what is there; `rb` and `tb` are bounds.
            let parts =
                memory.filter_map(|part| part.strip_prefix(['r', 'w'])?.parse::<f64>().ok());
            sum.memory_bytes += parts.sum::<f64>();
        }
        sum
    }

    fn mean(all: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
        Self { held_bytes: mean(|one| one.held_bytes), memory_bytes: mean(|one| one.memory_bytes) }
    }
}

/// Waits for the end of a process that sends for so many seconds. Its context switches per second
/// in the middle of the time, and what the sockets of `namespace` held on average in the second
/// half.
pub(super) fn watch(
    child: &mut ChildGuard,
    seconds: u32,
    namespace: Option<&str>,
    interrupt: &Interrupt,
) -> Result<(Switches, Sockets), Box<dyn Error>> {
    let (begin, time) = (Instant::now(), Duration::from_secs(seconds.into()));
    let mut seen: Vec<(Instant, Switches)> = Vec::new();
    let mut sockets = Vec::new();
    let mut next = begin + time / 2;
    while child.0.try_wait()?.is_none() {
        if interrupt.is_set() {
            return Err("interrupted".into());
        }
        let now = Instant::now();
        if now > begin + time + PATIENCE {
            return Err("the flow does not end".into());
        }
        if (time / 4..time * 9 / 10).contains(&now.duration_since(begin)) {
            seen.extend(Switches::of(child.0.id()).map(|count| (now, count)));
        }
        if let Some(namespace) = namespace
            && (next..begin + time).contains(&now)
        {
            sockets.push(Sockets::of(namespace)?);
            next = now + LOOK_AT_SOCKETS;
        }
        thread::sleep(LOOK);
    }
    Ok((per_second(&seen), Sockets::mean(&sockets)))
}

fn per_second(seen: &[(Instant, Switches)]) -> Switches {
    let (Some((from, first)), Some((to, last))) = (seen.first(), seen.last()) else {
        return Switches::default();
    };
    let rate = |before, after| (after - before) / to.duration_since(*from).as_secs_f64().max(1e-9);
    Switches { voluntary: rate(first.voluntary, last.voluntary), all: rate(first.all, last.all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_from_lines_of_ss() {
        let text = "\
ESTAB     0      0      10.99.0.2:48850 10.99.0.1:5201 skmem:(r0,rb131072,t0,tb87040,f0,w0,o0,bl0,d0) ato:40
ESTAB     0      130966 10.99.0.2:48852 10.99.0.1:5201 skmem:(r768,rb131072,t66315,tb4194304,f2538,w132630,o0,bl0,d0)
ESTAB     0      1000   10.99.0.2:48854 10.99.0.1:5201
TIME-WAIT 0      7      10.99.0.2:48856 10.99.0.1:5201
";
        let read = Sockets { held_bytes: 131_966.0, memory_bytes: 133_398.0 };
        assert_eq!(Sockets::parse(text), read);
        assert_eq!(Sockets::parse("no line of ss\n\n"), Sockets::default());
        let half = Sockets { held_bytes: 65_983.0, memory_bytes: 66_699.0 };
        assert_eq!(Sockets::mean(&[read, Sockets::default()]), half);
        assert_eq!(Sockets::mean(&[]), Sockets::default());
    }

    #[test]
    fn switches_are_those_of_all_threads() {
        let mut sum = Switches::default();
        sum.add("Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t5\n");
        sum.add("voluntary_ctxt_switches:\t50\nnonvoluntary_ctxt_switches:\t7\n");
        assert_eq!(sum, Switches { voluntary: 200.0, all: 212.0 });
        let begin = Instant::now();
        let seen = [(begin, Switches::default()), (begin + Duration::from_secs(4), sum)];
        assert_eq!(per_second(&seen), Switches { voluntary: 50.0, all: 53.0 });
        assert_eq!(per_second(&[]), Switches::default());
        assert!(Switches::of(std::process::id()).is_some_and(|own| own.all >= own.voluntary));
    }
}
