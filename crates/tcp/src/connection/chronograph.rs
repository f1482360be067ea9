//! Time of a flow by what it waited for, and its retransmission timeouts.

use crate::info::Timeouts;
use crate::time::{Instant, Nanos};
use crate::transmit::TxBlocked;

/// Counts [`Timeouts`]. O(1).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeoutTally {
    timeouts: Timeouts,
    /// First timeout of a row that goes on.
    since: Option<Instant>,
}

impl TimeoutTally {
    /// `row` timeouts, the first of a row, that took `time` altogether.
    pub(super) fn after_row(row: u32, time: Nanos) -> Self {
        Self { timeouts: Timeouts { total: row, rows: 1, time }, since: None }
    }

    /// A timeout (`tcp_update_rto_stats`).
    pub(super) fn count(&mut self, now: Instant, is_first_of_row: bool) {
        let timeouts = &mut self.timeouts;
        timeouts.total = timeouts.total.saturating_add(1);
        if is_first_of_row {
            timeouts.rows = timeouts.rows.saturating_add(1);
            self.since = Some(now);
        }
    }

    /// The loss is repaired (`tcp_update_rto_time`).
    pub(super) fn end_row(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.timeouts.time = self.timeouts.time + now.since(since);
        }
    }

    /// The figures at `now`.
    pub(super) fn totals(&self, now: Instant) -> Timeouts {
        let running = self.since.map_or(Nanos::ZERO, |since| now.since(since));
        Timeouts { time: self.timeouts.time + running, ..self.timeouts }
    }
}

/// What the time of a busy flow is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Spent {
    Sending,
    Rwnd,
    Sndbuf,
    SmallQueue,
    Pacing,
    Cwnd,
}

/// Sums of time by [`TxBlocked`] (Linux's chronographs, and finer ones).
///
/// O(1) per change; no memory before the first data.
#[derive(Clone, Debug, Default)]
pub(super) struct Chronograph(Option<Box<Integrals>>);

#[derive(Clone, Debug)]
struct Integrals {
    since: Instant,
    /// `None` while idle.
    now_on: Option<Spent>,
    totals: [Nanos; 6],
}

impl Integrals {
    /// The totals at `now`.
    fn totals(&self, now: Instant) -> [Nanos; 6] {
        let mut totals = self.totals;
        if let Some(spent) = self.now_on {
            totals[spent as usize] = totals[spent as usize] + now.since(self.since);
        }
        totals
    }
}

/// What a chronograph has measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Time that was not idle.
    pub(super) busy: Nanos,
    /// Time limited by the peer's window.
    pub(super) rwnd: Nanos,
    /// Time limited by the send buffer.
    pub(super) sndbuf: Nanos,
    /// Time held back by the small-queue limit.
    pub(super) small_queue: Nanos,
    /// Time held back by pacing.
    pub(super) pacing: Nanos,
    /// Time limited by the congestion window.
    pub(super) cwnd: Nanos,
}

impl Chronograph {
    /// From `now` on the flow is blocked by `blocked`; `in_flight` says whether anything is out,
    /// `starved` whether the application was refused room while the window has some.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        blocked: TxBlocked,
        in_flight: bool,
        starved: bool,
    ) {
        let next = match blocked {
            TxBlocked::NoData if starved => Some(Spent::Sndbuf),
            TxBlocked::NoData if in_flight => Some(Spent::Sending),
            TxBlocked::NoData | TxBlocked::NotOpen => None,
            TxBlocked::Rwnd => Some(Spent::Rwnd),
            TxBlocked::Memory => Some(Spent::Sndbuf),
            TxBlocked::SmallQueue | TxBlocked::Autocork => Some(Spent::SmallQueue),
            TxBlocked::Pacing(_) => Some(Spent::Pacing),
            TxBlocked::Cwnd => Some(Spent::Cwnd),
            TxBlocked::Nagle | TxBlocked::Defer | TxBlocked::Egress | TxBlocked::Yield => {
                Some(Spent::Sending)
            }
        };
        if next.is_none() && self.0.is_none() {
            return;
        }
        let start = || Box::new(Integrals { since: now, now_on: next, totals: [Nanos::ZERO; 6] });
        let running = self.0.get_or_insert_with(start);
        if next != running.now_on {
            running.totals = running.totals(now);
            running.since = now;
            running.now_on = next;
        }
    }

    /// The totals at `now`.
    pub(super) fn times(&self, now: Instant) -> Times {
        let Some(running) = &self.0 else { return Times::default() };
        let totals = running.totals(now);
        let of = |spent: Spent| totals[spent as usize];
        Times {
            busy: totals.iter().fold(Nanos::ZERO, |sum, &part| sum + part),
            rwnd: of(Spent::Rwnd),
            sndbuf: of(Spent::Sndbuf),
            small_queue: of(Spent::SmallQueue),
            pacing: of(Spent::Pacing),
            cwnd: of(Spent::Cwnd),
        }
    }
}
