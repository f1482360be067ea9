//! States of a connection (RFC 9293 section 3.3.2).
//!
//! LISTEN is the state of a listener, and SYN-RECEIVED of a passive open that of a
//! `handshake::Request`, or of a connection that answers a SYN without a listener.

use core::fmt;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// SYNs crossed (simultaneous open), or a SYN was answered without a listener.
    SynReceived,
    /// Data may flow both ways.
    Established,
    /// The FIN of this end is queued or sent, and not acknowledged.
    FinWait1,
    /// The FIN of this end is acknowledged, and the peer's has not come.
    FinWait2,
    /// The peer's FIN came, and this end may still send.
    CloseWait,
    /// Both FINs were sent, and that of this end is not acknowledged.
    Closing,
    /// The peer's FIN came, then that of this end was sent.
    LastAck,
    /// Both sides are closed; old segments may still arrive.
    TimeWait,
    /// The connection is over.
    Closed,
}

/// Event that moves a connection from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Transition {
    /// A SYN arrived together with the ACK of this end's SYN.
    SynAckArrived,
    /// A bare SYN arrived while this end's SYN is out.
    SynArrived,
    /// This end's SYN was acknowledged.
    SynAcked,
    /// The application has no more data to send.
    Shutdown,
    /// This end's FIN was acknowledged.
    FinAcked,
    /// The peer's FIN arrived in order.
    FinArrived,
    /// A reset, an abort or a timeout ended the connection.
    Abort,
    /// The host keeps what remains of the connection by itself.
    HandedOver,
}

impl State {
    /// Returns the state after `transition`, or the same state if the transition means nothing in
    /// it.
    ///
    /// In SYN-RECEIVED a shutdown waits for the handshake, and is repeated after it.
    #[must_use]
    pub(crate) const fn after(self, transition: Transition) -> Self {
        use Transition as T;
        match (self, transition) {
            (_, T::Abort | T::HandedOver) => Self::Closed,
            (Self::SynSent, T::SynAckArrived) | (Self::SynReceived, T::SynAcked) => {
                Self::Established
            }
            (Self::SynSent, T::SynArrived) => Self::SynReceived,
            (Self::SynSent, T::Shutdown) => Self::Closed,
            (Self::Established, T::Shutdown) => Self::FinWait1,
            (Self::Established, T::FinArrived) => Self::CloseWait,
            (Self::CloseWait, T::Shutdown) => Self::LastAck,
            (Self::FinWait1, T::FinAcked) => Self::FinWait2,
            (Self::FinWait1, T::FinArrived) => Self::Closing,
            (Self::FinWait2, T::FinArrived) | (Self::Closing, T::FinAcked) => Self::TimeWait,
            (Self::LastAck, T::FinAcked) => Self::Closed,
            _ => self,
        }
    }

    /// Returns whether the handshake is complete and the connection is not over.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }

    /// Returns whether only the wait for old segments remains.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::TimeWait | Self::Closed)
    }

    /// Returns whether all that the application wrote, and the FIN behind it, is acknowledged or
    /// given up.
    pub const fn has_no_more_to_send(self) -> bool {
        matches!(self, Self::FinWait2 | Self::TimeWait | Self::Closed)
    }

    /// Returns whether data that waits may be sent.
    pub const fn may_send(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }

    /// Returns whether the application may write.
    pub const fn may_write(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// Returns whether data may still arrive.
    pub const fn may_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "CLOSED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{State::*, Transition as T, *};

    #[test]
    fn the_table_is_that_of_rfc_9293() {
        let walks: [(&[T], State); 8] = [
            (&[T::SynAckArrived], Established),
            (&[T::SynArrived, T::SynAcked], Established),
            (&[T::SynAckArrived, T::Shutdown, T::FinAcked, T::FinArrived], TimeWait),
            (&[T::SynAckArrived, T::Shutdown, T::FinArrived, T::FinAcked], TimeWait),
            (&[T::SynAckArrived, T::FinArrived, T::Shutdown, T::FinAcked], Closed),
            (&[T::SynArrived, T::Shutdown, T::SynAcked, T::Shutdown], FinWait1),
            (&[T::SynAckArrived, T::Abort], Closed),
            (&[T::SynAckArrived, T::FinAcked, T::SynArrived], Established),
        ];
        for (walk, end) in walks {
            assert_eq!(walk.iter().fold(SynSent, |state, &t| state.after(t)), end, "{walk:?}");
        }
    }

    #[test]
    fn nothing_leads_out_of_closed() {
        for t in [T::SynAckArrived, T::SynArrived, T::Shutdown, T::FinArrived, T::FinAcked] {
            assert_eq!(Closed.after(t), Closed);
            assert_eq!(TimeWait.after(t), TimeWait);
        }
    }
}
