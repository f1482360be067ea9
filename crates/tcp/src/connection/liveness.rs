//! Whether the peer is there: when it was last heard, and the probes that it did not answer.

use crate::time::Instant;

/// What is known of the peer's silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    last_heard: Instant,
    /// First timeout of the row, or first probe of a closed window (`icsk_probes_tstamp`), for the
    /// user timeout; [`Instant::FAR_FUTURE`] while neither goes on. Only one of them can.
    stalled_since: Instant,
    /// Probes of a closed window or of an idle peer since it was last heard (`icsk_probes_out`).
    probes_out: u16,
    /// Probes of a closed window since it was last open.
    window_probes: u16,
    /// Of these, the ones that this host's own queues dropped: they lengthen no wait.
    dropped_probes: u16,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_heard: now,
            stalled_since: Instant::FAR_FUTURE,
            probes_out: 0,
            window_probes: 0,
            dropped_probes: 0,
        }
    }

    /// An ACK arrived that is not older than others (`rcv_tstamp` in `tcp_ack`).
    pub(super) fn on_heard(&mut self, now: Instant) {
        self.last_heard = now;
        self.probes_out = 0;
    }

    /// Something new was acknowledged.
    pub(super) fn on_progress(&mut self) {
        self.stalled_since = Instant::FAR_FUTURE;
    }

    /// The window of the peer is open, or nothing waits for it.
    pub(super) fn end_window_probes(&mut self) {
        if self.window_probes > 0 {
            (self.window_probes, self.dropped_probes) = (0, 0);
            self.stalled_since = Instant::FAR_FUTURE;
        }
    }

    /// A timeout found no answer to what was out at `since`, or a closed window is to be probed.
    /// Returns since when that is so.
    pub(super) fn stall(&mut self, since: Instant) -> Instant {
        self.stalled_since = self.stalled_since.min(since);
        self.stalled_since
    }

    /// Since when timeouts or probes of a closed window find no answer; [`Instant::FAR_FUTURE`]
    /// while there are none.
    pub(super) fn stalled_since(&self) -> Instant {
        self.stalled_since
    }

    /// A closed window is probed.
    pub(super) fn count_window_probe(&mut self) {
        self.window_probes = self.window_probes.saturating_add(1);
        self.count_probe();
    }

    /// The probe of a closed window that was just counted did not leave this host. As in Linux, it
    /// still counts as one without an answer.
    pub(super) fn drop_window_probe(&mut self) {
        self.dropped_probes = self.dropped_probes.saturating_add(1);
    }

    /// An idle peer is probed.
    pub(super) fn count_probe(&mut self) {
        self.probes_out = self.probes_out.saturating_add(1);
    }

    /// The probe of an idle peer that was just counted did not leave this host.
    pub(super) fn drop_probe(&mut self) {
        self.probes_out = self.probes_out.saturating_sub(1);
    }

    /// Probes without an answer.
    pub(super) fn probes_out(&self) -> u32 {
        self.probes_out.into()
    }

    /// How often the wait for the next probe of a closed window was doubled (`icsk_backoff`).
    pub(super) fn window_backoff(&self) -> u16 {
        self.window_probes.saturating_sub(self.dropped_probes)
    }

    /// When the peer was last heard; before the handshake, when the connection was made.
    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard
    }
}
