//! What remains of a connection that needs no more than its numbers.

use super::deadlines::Deadline;
use super::{Connection, Fin};
use crate::orphan::{FinTimer, Orphan, Remains};
use crate::receiver::AckDue;
use crate::state::{State, Transition};
use crate::time::{Instant, Nanos};
use crate::time_wait::{Ends, TIME_WAIT, TimeWait};

impl Connection {
    /// Returns what remains of a connection that both sides have closed. It is `Some` once. Call
    /// this after [`transmit`](Self::transmit), which sends the last ACK. If the layers below have
    /// refused that ACK, it is lost as on the wire: the peer's FIN comes again, and is answered.
    pub fn take_time_wait(&mut self) -> Option<TimeWait> {
        self.rare.as_mut()?.time_wait.take()
    }

    /// Returns what the host may keep in place of a connection that has lost its application, and
    /// ends the connection then. To be called after [`transmit`](Self::transmit).
    ///
    /// That is in FIN-WAIT-2 if the peer's FIN is waited for no longer than [`TIME_WAIT`], as in
    /// Linux; and in FIN-WAIT-1, CLOSING and LAST-ACK if only the FIN is unacknowledged, and was
    /// sent again after a timeout. A socket that lingers is not given up, since somebody waits.
    pub fn take_remains(&mut self, now: Instant) -> Option<Remains> {
        let is_ready = self.is_orphan
            && self.owed.is_empty()
            && self.receiver.ack_due() != AckDue::Now
            && self.rare.as_ref().is_none_or(|rare| rare.stray_reset.is_none());
        if !is_ready {
            return None;
        }
        let remains = match self.state {
            State::FinWait2 => {
                let at = self.deadlines.get(Deadline::Orphan);
                (at <= now + TIME_WAIT)
                    .then(|| Remains::TimeWait(TimeWait::fin_wait_2(now, at, self.ends())))?
            }
            State::FinWait1 | State::Closing | State::LastAck => {
                let timer = self.fin_timer(now)?;
                Remains::Orphan(Orphan::new(self.state, self.ends(), &timer))
            }
            _ => return None,
        };
        self.turn(Transition::HandedOver);
        self.deadlines.clear_all();
        self.sender.clear();
        Some(remains)
    }

    /// The timer of a FIN that is all that is left to acknowledge, and was sent again.
    fn fin_timer(&self, now: Instant) -> Option<FinTimer> {
        let rtt = self.sender.rtt();
        let deadline = self.deadlines.get(Deadline::Retransmit);
        let is_alone = self.fin == Fin::Sent && self.sender.unacked() == 1;
        let lingers = self.options.linger.is_some_and(|time| time > Nanos::ZERO);
        if !is_alone || lingers || rtt.shift() == 0 || deadline == Instant::FAR_FUTURE {
            return None;
        }
        Some(FinTimer {
            rto: rtt.rto(),
            rto_max: rtt.rto_max(),
            deadline,
            end: self.liveness.stalled_since().min(now) + self.patience(),
            fin_timeout: self.config.tcp_fin_timeout,
        })
    }

    /// Where both ends are.
    pub(super) fn ends(&mut self) -> Ends {
        Ends {
            rcv_nxt: self.receiver.nxt(),
            snd_nxt: self.sender.nxt(),
            rcv_wnd: self.receiver.next_window().field,
            rcv_wscale: self.receiver.wscale(),
            ts_recent: self.opening.timestamps.then(|| self.receiver.ts_recent()),
            ts_offset: self.opening.ts_offset,
            ratelimit_ms: self.config.tcp_invalid_ratelimit,
            quiet_until: Instant::ZERO,
        }
    }

    /// The host no longer counts the connection among its orphans.
    pub(super) fn end_orphan(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.counters.memory.host().remove_orphan();
        }
    }
}
