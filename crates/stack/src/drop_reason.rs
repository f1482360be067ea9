//! Why a packet died inside the stack: one counter each (Linux's `skb_drop_reason`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum DropReason { $($(#[$doc])* $variant,)+ }

        impl DropReason {
            /// All reasons, in the order in which they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name in listings.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

drop_reasons! {
    /// The link header is cut off or addressed to another station.
    LinkHeader = "LINK_HEADER",
    /// An EtherType or IP version that nobody handles.
    UnhandledProtocol = "UNHANDLED_PROTO",
    /// The IP header is cut off, contradicts itself or has a bad checksum.
    IpHeader = "IP_INHDR",
    /// A source address that cannot be one (multicast, loopback from outside, unspecified).
    IpMartian = "IP_INVALID_SOURCE",
    /// Not one of the host's addresses; the stack does not forward.
    IpOtherHost = "OTHERHOST",
    /// An IP protocol that nobody handles.
    IpProtocol = "IP_NOPROTO",
    /// An IPv6 extension header that demands to be dropped.
    Ipv6Extension = "IPV6_BAD_EXTHDR",
    /// A fragment that does not fit, overlaps or exceeds the limits of reassembly.
    Fragment = "DUP_FRAG",
    /// A fragment that waits for its siblings too long.
    FragmentTimeout = "FRAG_REASM_TIMEOUT",
    /// No route to the destination of a packet to send.
    NoRoute = "IP_OUTNOROUTES",
    /// The neighbour did not answer, or too many packets wait for it.
    Neighbor = "NEIGH_FAILED",
    /// A malformed ARP packet.
    Arp = "ARP_INVALID",
    /// A malformed or unauthentic ICMP message.
    Icmp = "ICMP_INVALID",
    /// A bad ICMP checksum.
    IcmpChecksum = "ICMP_CSUM",
    /// A bad TCP checksum.
    TcpChecksum = "TCP_CSUM",
    /// The TCP header is cut off or contradicts itself.
    TcpHeader = "TCP_INVALID_HEADER",
    /// No connection and no listener has this address.
    NoSocket = "NO_SOCKET",
    /// The backlog of an owned socket is full.
    SocketBacklog = "SOCKET_BACKLOG",
    /// A listener had no room, or the request was refused.
    ListenerFull = "TCP_OVERFLOW",
    /// A segment that is no part of an open handshake.
    ListenerState = "TCP_LISTEN_STATE",
    /// A bad UDP checksum.
    UdpChecksum = "UDP_CSUM",
    /// The UDP header is cut off or contradicts itself.
    UdpHeader = "UDP_INVALID_HEADER",
    /// The receive buffer of a UDP socket is full.
    SocketReceiveBuffer = "SOCKET_RCVBUFF",
    /// The error queue of a socket is full (`IP_RECVERR`).
    ErrorQueue = "SOCKET_ERRQUEUE",
    /// The qdisc refused the frame.
    QdiscDrop = "QDISC_DROP",
    /// The loopback queue is full.
    LoopbackFull = "LOOPBACK_FULL",
    /// The link was down, or its device was taken away while the packet waited.
    LinkDown = "DEV_READY",
    /// An answer was withheld by its rate limit.
    RateLimited = "RATE_LIMITED",
    /// The stack is shut down.
    ShutDown = "SHUT_DOWN",
}

/// One count per reason. Adding is one relaxed atomic add.
#[derive(Debug)]
pub struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    /// Counts one packet.
    pub fn count(&self, reason: DropReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts `n` packets.
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].fetch_add(n, Relaxed);
    }

    /// Packets dropped for this reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }
}
