//! The states of a connection (RFC 9293 section 3.3.2). LISTEN is a listener's, not a connection's;
//! SYN-RECEIVED of a passive open is a `handshake::Request`.

use core::fmt;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// SYNs crossed (simultaneous open).
    SynReceived,
    /// Data may flow both ways.
    Established,
    /// Our FIN is queued or sent, not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged, the peer's has not come.
    FinWait2,
    /// The peer's FIN came; we may still send.
    CloseWait,
    /// Both FINs are out, ours is not acknowledged.
    Closing,
    /// The peer's FIN came, then ours was sent.
    LastAck,
    /// Both sides are closed; old segments may still arrive.
    TimeWait,
    /// Over.
    Closed,
}

/// What moves a connection from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transition {
    /// SYN and the ACK of ours arrived.
    SynAckArrived,
    /// A bare SYN arrived while ours is out.
    SynArrived,
    /// Our SYN was acknowledged.
    SynAcked,
    /// The application has no more to send.
    Shutdown,
    /// Our FIN was acknowledged.
    FinAcked,
    /// The peer's FIN arrived in order.
    FinArrived,
    /// Reset, abort or timeout.
    Abort,
}

impl State {
    /// The state after `transition`; itself where the transition means nothing. In SYN-RECEIVED a
    /// shutdown waits for the handshake: it comes once more after it.
    #[must_use]
    pub const fn after(self, transition: Transition) -> Self {
        use Transition as T;
        match (self, transition) {
            (_, T::Abort) => Self::Closed,
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

    /// Whether the handshake is complete and the connection is not over.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }

    /// Whether nothing more happens but the wait for old segments.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::TimeWait | Self::Closed)
    }

    /// Whether all that the application wrote, and the FIN behind it, is acknowledged or given up.
    pub const fn has_no_more_to_send(self) -> bool {
        matches!(self, Self::FinWait2 | Self::TimeWait | Self::Closed)
    }

    /// Whether data that waits may be sent.
    pub const fn may_send(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }

    /// Whether the application may write.
    pub const fn may_write(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// Whether data may still arrive.
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
