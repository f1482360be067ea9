//! Hostile peers: actors that speak TCP badly on purpose, and what a host that they attack does.

mod attacker;
mod connection;
mod packet;

pub(crate) use attacker::{AttackPlan, Attacker, SessionAddresses};

use serde::Deserialize;

macro_rules! attacks {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// What a hostile peer does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
        pub enum Attack { $($(#[$doc])* #[serde(rename = $name)] $variant,)+ }

        impl Attack {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name in scenario files.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

attacks! {
    /// Each segment is acknowledged in many parts (Savage et al. 1999).
    AckDivision = "ack-division",
    /// What has not arrived, or was never sent, is acknowledged.
    OptimisticAck = "optimistic-ack",
    /// SACK blocks of what never arrived, turned round, far off.
    SackLies = "sack-lies",
    /// What was SACKed is thrown away.
    Reneging = "reneging",
    /// The window is taken back, down to nothing.
    WindowShrink = "window-shrink",
    /// The SYN asks for segments of a few bytes.
    TinyMss = "tiny-mss",
    /// Timestamps from the past.
    OldTimestamps = "old-timestamps",
    /// Timestamps from the future.
    FutureTimestamps = "future-timestamps",
    /// Bytes that have arrived come again with other contents.
    Overlap = "overlap",
    /// Somebody off the path forges RST, SYN and data of a session.
    Blind = "blind",
    /// SYNs of many addresses.
    SynFlood = "syn-flood",
    /// Segments of any kind on open connections.
    SegmentFlood = "segment-flood",
    /// Single bytes with holes between them.
    TinySegments = "tiny-segments",
    /// Asks for much, and never reads.
    NeverReads = "never-reads",
    /// Does not answer a SYN.
    DiesInSynSent = "dies-in-syn-sent",
    /// Never completes its handshake.
    DiesInSynReceived = "dies-in-syn-received",
    /// Vanishes while data is in flight.
    DiesInEstablished = "dies-in-established",
    /// Vanishes before it acknowledges a FIN.
    DiesInFinWait1 = "dies-in-fin-wait-1",
    /// Vanishes behind its ACK of a FIN.
    DiesInFinWait2 = "dies-in-fin-wait-2",
    /// Sends a FIN and does not acknowledge the other one.
    DiesInClosing = "dies-in-closing",
    /// Closes and vanishes while it is being written to.
    DiesInCloseWait = "dies-in-close-wait",
    /// Closes and vanishes before it acknowledges the last FIN.
    DiesInLastAck = "dies-in-last-ack",
}

impl Attack {
    /// The host that is attacked connects to the attacker.
    pub(crate) const fn is_called(self) -> bool {
        matches!(
            self,
            Self::DiesInSynSent | Self::DiesInFinWait1 | Self::DiesInFinWait2 | Self::DiesInClosing
        )
    }
}
