//! Timer interrupts. The system counts them for the whole machine, so those of a flow are those of
//! its time less those of an idle stretch before it. A veth has no interrupts of its own.

use crate::perf::interrupt::Interrupt;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// The idle stretch is looked at so often, to see how much it varies.
const LOOK: Duration = Duration::from_millis(500);
/// Longest sleep of the stretch. The process of a flow is looked at as often.
const SLEEP: Duration = Duration::from_millis(20);

/// All timer interrupts of the machine so far, of all processors; none if it has no line of them.
fn count(interrupts: &str) -> Option<f64> {
    let is_timer = |line: &&str| {
        // That of x86, and that of ARM.
        line.starts_with("LOC:") || line.ends_with("arch_timer")
    };
    let of_processors = |line: &str| -> f64 {
        let words = line.split_whitespace().skip(1);
        words.map_while(|word| word.parse::<f64>().ok()).sum()
    };
    let lines: Vec<&str> = interrupts.lines().map(str::trim).filter(is_timer).collect();
    (!lines.is_empty()).then(|| lines.into_iter().map(of_processors).sum())
}

/// A stretch of time and the interrupts in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    begin: Instant,
    count: f64,
}

impl Stretch {
    /// Begins one.
    pub(super) fn begin() -> Option<Self> {
        let count = count(&std::fs::read_to_string("/proc/interrupts").ok()?)?;
        Some(Self { begin: Instant::now(), count })
    }

    /// Interrupts per second since this one began.
    pub(super) fn rate(self) -> Option<f64> {
        let now = Self::begin()?;
        let seconds = now.begin.duration_since(self.begin).as_secs_f64();
        Some((now.count - self.count) / seconds.max(1e-9))
    }
}

/// What the machine does without the flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Idle {
    per_second: f64,
    /// By how much the parts of the stretch differ.
    spread: f64,
}

impl Idle {
    /// Watches for so many seconds; nothing if the machine does not tell.
    ///
    /// # Errors
    /// The user's wish to stop.
    pub(super) fn watch(
        seconds: u32,
        interrupt: &Interrupt,
    ) -> Result<Option<Self>, Box<dyn Error>> {
        let Some(whole) = Stretch::begin() else { return Ok(None) };
        let end = whole.begin + Duration::from_secs(seconds.into());
        let (mut part, mut rates) = (whole, Vec::new());
        while Instant::now() < end {
            if interrupt.is_set() {
                return Err("interrupted".into());
            }
            thread::sleep(SLEEP);
            if part.begin.elapsed() >= LOOK {
                rates.extend(part.rate());
                part = Stretch::begin().unwrap_or(part);
            }
        }
        Ok(whole.rate().map(|per_second| Self { per_second, spread: spread(&rates) }))
    }
}

fn spread(rates: &[f64]) -> f64 {
    let most = rates.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    if rates.is_empty() { 0.0 } else { most - least }
}

/// Interrupts per second of the whole machine while a flow ran, and before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interrupts {
    running: f64,
    idle: Idle,
}

impl Interrupts {
    pub(super) const fn new(running: f64, idle: Idle) -> Self {
        Self { running, idle }
    }

    /// What the flow added.
    pub(super) const fn added(&self) -> f64 {
        self.running - self.idle.per_second
    }

    /// What is said of them beside the figure.
    pub(super) fn note(&self) -> String {
        let Self { running, idle: Idle { per_second, spread } } = self;
        let noise = if *spread > self.added().abs() {
            ", more than this figure, which therefore says nothing of the flow"
        } else {
            ""
        };
        format!(
            "timer interrupts are counted for the whole machine: {running:.0} per second, less \
             {per_second:.0} in an idle stretch as long before it, which varied by {spread:.0}{noise}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_interrupts_are_summed_over_processors() {
        let x86 = "\
           CPU0       CPU1
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
NMI:          0          0   Non-maskable interrupts
LOC:   34884716   34943723   Local timer interrupts
ERR:          0
";
        assert_eq!(count(x86), Some(69_828_439.0));
        let arm = "           CPU0       CPU1\n 11:       7000        500     GICv3  27 Level     arch_timer\n";
        assert_eq!(count(arm), Some(7500.0));
        assert_eq!(count("           CPU0\n 24: 1 IO-APIC 5-edge ACPI:Ged\n"), None);
    }

    #[test]
    fn a_figure_beneath_the_noise_says_so() {
        let idle = Idle { per_second: 900.0, spread: spread(&[850.0, 950.0, 900.0]) };
        let clear = Interrupts::new(1400.0, idle);
        assert_eq!(clear.added(), 500.0);
        let note = clear.note();
        assert!(note.ends_with("1400 per second, less 900 in an idle stretch as long before it, which varied by 100"), "{note}");
        let hidden = Interrupts::new(820.0, idle);
        assert_eq!(hidden.added(), -80.0);
        assert!(hidden.note().ends_with("says nothing of the flow"), "{}", hidden.note());
        assert_eq!(spread(&[]), 0.0);
    }
}
