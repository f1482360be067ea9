//! Figures of an interface. Every drop has one.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counts, each by its name.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: Count,)+
        }

        impl Counters {
            /// All counts with their names.
            pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }
        }
    };
}

counters! {
    /// Super-frames and packets that were sealed.
    frames_sealed,
    /// Datagrams with data that were sealed.
    datagrams_sealed,
    /// Frames that were sealed a second time, because a helper was late.
    sealed_again,
    /// Datagrams with data that were opened.
    datagrams_opened,
    /// Calls that carried datagrams to the host.
    sends,
    /// Calls that brought datagrams from the host.
    receives,
    /// Initiations of handshakes that were sent.
    initiations_sent,
    /// Initiations of peers that were answered.
    initiations_answered,
    /// Handshakes of ours that were answered.
    handshakes_completed,
    /// Demands for a cookie that were sent, because of too many handshakes.
    cookies_demanded,
    /// Cookies that were received.
    cookies_received,
    /// Keepalives that were sent.
    keepalives_sent,
    /// Keepalives that were received.
    keepalives_received,
    /// Peers whose address has changed.
    roamed,
    /// Datagrams for which the host's socket had no room. The host tells of them with the next one
    /// that it has room for. `Status::receive_buffer` says how much room there is.
    lost_in_socket,
    /// Received datagrams that are none of the protocol.
    dropped_malformed,
    /// Received datagrams of no session.
    dropped_no_session,
    /// Received datagrams that are not authentic.
    dropped_not_authentic,
    /// Received datagrams that were there before, or are too old.
    dropped_replayed,
    /// Initiations with keys of no peer.
    dropped_unknown_peer,
    /// Handshakes of sources that had used up theirs.
    dropped_rate_limited,
    /// Handshakes that came when others had used up the share of the time that they may take.
    dropped_busy,
    /// Opened packets from addresses that are not their peer's.
    dropped_not_allowed,
    /// Opened packets that are no IP packets.
    dropped_not_ip,
    /// Opened packets that a router had marked with CE and must not have (RFC 6040).
    dropped_ecn,
    /// Frames to addresses of no peer.
    dropped_no_peer,
    /// Frames that waited for the endpoint of their peer, which nobody has told.
    dropped_no_endpoint,
    /// Frames beyond those that may wait for a handshake or an endpoint: the oldest ones.
    dropped_waiting,
    /// Frames that waited for a handshake that did not come.
    dropped_unanswered,
    /// Frames whose headers contradict themselves.
    dropped_bad_frame,
    /// Datagrams that the host refused for good.
    dropped_send_error,
    /// Times that the host's socket was full, and the datagrams waited.
    socket_full,
    /// Super-datagrams that left one by one, because the way out cannot cut them.
    sent_one_by_one,
    /// Frames that were too large for a path, as the host or their losses have told. They left
    /// without DF, a datagram at a time.
    sent_fragmentable,
    /// Times that the host was asked what the paths take.
    path_looks,
    /// Times that the path was found to take less, or more.
    path_mtu_changes,
    /// Times that a path seemed to lose large packets without a word.
    black_holes,
    /// Errors of ICMP that the host told. What the host itself refused is not among them.
    icmp_errors,
}

/// One figure, counted by several threads.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
