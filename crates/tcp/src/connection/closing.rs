//! End of a connection: by a FIN, by a reset, or by an error.

use super::{Connection, ConnectionError, Fin, Owed};
use crate::counters::Counter;
use crate::state::{State, Transition};
use crate::time::{Instant, Nanos};

impl Connection {
    /// Ends the sending side (`SHUT_WR`): queued data is sent, then a FIN.
    pub fn shutdown_write(&mut self) {
        match self.state {
            State::SynSent => {
                self.turn(Transition::Shutdown);
                self.deadlines.clear_all();
            }
            // In SYN-RECEIVED the FIN waits for the handshake (RFC 9293 section 3.10.4).
            State::SynReceived | State::Established | State::CloseWait => {
                self.fin = Fin::Queued;
                self.turn(Transition::Shutdown);
            }
            _ => {}
        }
    }

    /// Closes the connection for the application (`close`): queued data and a FIN are still sent.
    ///
    /// Unread data or a linger time of zero make it a reset (RFC 9293 section 3.10.4, RFC 2525
    /// section 2.17). So do too many connections without an application, and one whose data the
    /// host has no memory for (`tcp_check_oom`).
    pub fn close(&mut self, now: Instant) {
        self.is_orphan = true;
        let lost_data = self.receiver.unread() > 0;
        let now_or_never = self.options.linger == Some(Nanos::ZERO);
        if self.has_peer() && (lost_data || now_or_never) {
            if lost_data {
                self.counters.add(Counter::AbortOnClose, 1);
                self.reset();
            } else {
                self.counters.add(Counter::AbortOnData, 1);
                self.abort();
            }
            return;
        }
        self.read_shut = true;
        self.shutdown_write();
        if self.state.is_over() {
            return;
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            self.counters.memory.host().add_orphan();
        }
        if self.state == State::FinWait2 {
            self.arm_orphan(now);
        } else {
            self.check_resources(0);
        }
    }

    /// Resets a connection without an application if there are too many, each counted 2^`shift`
    /// times, or if memory has run out (`tcp_out_of_resources`).
    pub(super) fn check_resources(&mut self, shift: u32) {
        if self.counters.memory.gives_up_orphan(self.memory(), shift) {
            self.counters.add(Counter::AbortOnMemory, 1);
            self.reset();
        }
    }

    /// Ends the connection at once; the RST leaves at the next [`transmit`](Self::transmit). A peer
    /// that has sent its FIN and was sent everything, our FIN too, needs none (`tcp_disconnect`).
    pub fn abort(&mut self) {
        let has_ended = matches!(self.state, State::Closing | State::LastAck);
        self.owed.set(Owed::RESET, self.has_peer() && (!has_ended || self.has_waiting()));
        self.fail(ConnectionError::Aborted);
    }

    /// Resets the connection in every state in which there is a peer.
    fn reset(&mut self) {
        self.owed.set(Owed::RESET, self.has_peer());
        self.fail(ConnectionError::Aborted);
    }

    /// Whether a peer believes that it has a connection, or soon will.
    fn has_peer(&self) -> bool {
        self.state == State::SynReceived
            || self.state.is_synchronized() && self.state != State::TimeWait
    }

    /// Ends the connection with `error`.
    pub(super) fn fail(&mut self, error: ConnectionError) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.counters.add(Counter::AttemptFails, 1);
        } else if self.state != State::Closed {
            self.counters.add(Counter::EstabResets, 1);
        }
        if self.state != State::Closed || !self.errors.is_set() {
            self.errors.set(error);
        }
        self.turn(Transition::Abort);
        self.deadlines.clear_all();
        self.sender.clear();
        self.fin = Fin::None;
        self.owed &= Owed::RESET;
    }
}
