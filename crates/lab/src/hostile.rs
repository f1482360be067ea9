//! Hostile peers: actors that speak TCP badly on purpose, and the hosts that they attack.
//!
//! An [`Attacker`] is an actor of a world. Its packets are whole, so it attacks a host over a real
//! device too.

mod attacker;
mod connection;
pub mod packet;

pub use attacker::{AttackPlan, Attacker, SessionAddresses};

use serde::Deserialize;

macro_rules! attacks {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Attack of a hostile peer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
        pub enum Attack { $($(#[$doc])* #[serde(rename = $name)] $variant,)+ }

        impl Attack {
            /// All attacks.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name of the attack in scenario files.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

attacks! {
    /// Each segment is acknowledged in many parts (Savage et al. 1999).
    AckDivision = "ack-division",
    /// Data that has not arrived, or was never sent, is acknowledged.
    OptimisticAck = "optimistic-ack",
    /// SACK blocks name data that never arrived, are turned round, or are far off.
    SackLies = "sack-lies",
    /// SACKed data is thrown away.
    Reneging = "reneging",
    /// The window is taken back, down to zero.
    WindowShrink = "window-shrink",
    /// The SYN asks for segments of a few bytes.
    TinyMss = "tiny-mss",
    /// Timestamps come from the past.
    OldTimestamps = "old-timestamps",
    /// Timestamps come from the future.
    FutureTimestamps = "future-timestamps",
    /// Bytes that have arrived come again with other contents.
    Overlap = "overlap",
    /// A host off the path forges RST, SYN and data of a session.
    Blind = "blind",
    /// SYNs come from many addresses.
    SynFlood = "syn-flood",
    /// Segments of any kind come on open connections.
    SegmentFlood = "segment-flood",
    /// Single bytes come with holes between them.
    TinySegments = "tiny-segments",
    /// The peer asks for much and never reads.
    NeverReads = "never-reads",
    /// The peer does not answer a SYN.
    DiesInSynSent = "dies-in-syn-sent",
    /// The peer never completes its handshake.
    DiesInSynReceived = "dies-in-syn-received",
    /// The peer vanishes while data is in flight.
    DiesInEstablished = "dies-in-established",
    /// The peer vanishes before it acknowledges a FIN.
    DiesInFinWait1 = "dies-in-fin-wait-1",
    /// The peer vanishes after its ACK of a FIN.
    DiesInFinWait2 = "dies-in-fin-wait-2",
    /// The peer sends a FIN and does not acknowledge the other one.
    DiesInClosing = "dies-in-closing",
    /// The peer closes and vanishes while data is sent to it.
    DiesInCloseWait = "dies-in-close-wait",
    /// The peer closes and vanishes before it acknowledges the last FIN.
    DiesInLastAck = "dies-in-last-ack",
    /// Every second byte of a window comes, each in a segment of its own.
    Holes = "holes",
    /// New peers come all the time, and each does as those of `dies-in-last-ack`.
    OrphanChurn = "orphan-churn",
}

impl Attack {
    /// The attacks of random worlds. It grows no more: with other lists the seeds would have other
    /// worlds. Attacks that are about the limits of a whole host are of no use in a small world.
    pub(crate) fn of_random_worlds() -> &'static [Self] {
        &Self::ALL[..=Self::DiesInLastAck as usize]
    }

    /// The host that is attacked connects to the attacker.
    pub(crate) const fn is_called(self) -> bool {
        matches!(
            self,
            Self::DiesInSynSent | Self::DiesInFinWait1 | Self::DiesInFinWait2 | Self::DiesInClosing
        )
    }
}
