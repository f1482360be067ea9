//! Processor time of this process.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::report::Cpu;

/// Processor time from a moment on.
pub(crate) struct CpuClock {
    wall: Instant,
    total: Duration,
    ticks: (u64, u64),
}

impl CpuClock {
    pub(crate) fn start() -> Self {
        Self { wall: Instant::now(), total: process_time(), ticks: ticks() }
    }

    /// Per cent of the wall time since the start. The sum is exact, user and system split it by
    /// clock ticks.
    pub(crate) fn stop(self) -> Cpu {
        let wall = self.wall.elapsed().as_secs_f64().max(1e-9);
        let total = process_time().saturating_sub(self.total).as_secs_f64() / wall * 100.0;
        let (user, system) = ticks();
        let (user, system) =
            (user.saturating_sub(self.ticks.0), system.saturating_sub(self.ticks.1));
        let share = if user + system == 0 { 0.0 } else { user as f64 / (user + system) as f64 };
        Cpu { total, user: total * share, system: total * (1.0 - share) }
    }
}

fn process_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// User and system ticks of the process; zero where /proc is not mounted.
fn ticks() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before the last parenthesis may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut times =
        fields.split_ascii_whitespace().skip(11).map(|field| field.parse().unwrap_or(0));
    (times.next().unwrap_or(0), times.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_has_used_time() {
        let clock = CpuClock::start();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(60) {
            std::hint::spin_loop();
        }
        let cpu = clock.stop();
        assert!(cpu.total > 1.0, "{cpu:?}");
        assert!((cpu.user + cpu.system - cpu.total).abs() < 1e-6, "{cpu:?}");
    }
}
