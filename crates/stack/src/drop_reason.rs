//! Reasons for which the stack drops packets, with one counter each (Linux's `skb_drop_reason`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Reason why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum DropReason { $($(#[$doc])* $variant,)+ }

        impl DropReason {
            /// All reasons, in the order in which they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name of the reason in listings.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

drop_reasons! {
    /// The link header is cut off or addressed to another station.
    LinkHeader = "LINK_HEADER",
    /// The EtherType or IP version is not supported.
    UnhandledProtocol = "UNHANDLED_PROTO",
    /// The IP header is cut off, contradicts itself or has a bad checksum.
    IpHeader = "IP_INHDR",
    /// The source address is impossible (multicast, loopback from outside, unspecified).
    IpMartian = "IP_INVALID_SOURCE",
    /// The packet is for another host, and the stack does not forward.
    IpOtherHost = "OTHERHOST",
    /// The IP protocol is not supported.
    IpProtocol = "IP_NOPROTO",
    /// An IPv6 extension header demands that the packet is dropped.
    Ipv6Extension = "IPV6_BAD_EXTHDR",
    /// A fragment does not fit, overlaps or exceeds the limits of reassembly.
    Fragment = "DUP_FRAG",
    /// A fragment waited too long for the others of its datagram.
    FragmentTimeout = "FRAG_REASM_TIMEOUT",
    /// There is no route to the destination of a packet to send.
    NoRoute = "IP_OUTNOROUTES",
    /// The neighbour did not answer, or too many packets wait for it.
    Neighbor = "NEIGH_FAILED",
    /// The ARP packet is malformed.
    Arp = "ARP_INVALID",
    /// The ICMP message is malformed or unauthentic.
    Icmp = "ICMP_INVALID",
    /// The ICMP checksum is wrong.
    IcmpChecksum = "ICMP_CSUM",
    /// The TCP checksum is wrong.
    TcpChecksum = "TCP_CSUM",
    /// The TCP header is cut off or contradicts itself.
    TcpHeader = "TCP_INVALID_HEADER",
    /// No connection and no listener has these addresses and ports.
    NoSocket = "NO_SOCKET",
    /// The backlog of a socket that another thread used is full.
    SocketBacklog = "SOCKET_BACKLOG",
    /// The listener had no room, or refused the request.
    ListenerFull = "TCP_OVERFLOW",
    /// The segment belongs to no open handshake.
    ListenerState = "TCP_LISTEN_STATE",
    /// The UDP checksum is wrong.
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
    /// The rate limit of answers withheld an answer.
    RateLimited = "RATE_LIMITED",
    /// The stack was shut down.
    ShutDown = "SHUT_DOWN",
}

/// Counts of dropped packets by reason. Adding is one relaxed atomic operation.
#[derive(Debug)]
pub struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    /// Counts one packet.
    pub(crate) fn count(&self, reason: DropReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts `n` packets.
    pub(crate) fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].fetch_add(n, Relaxed);
    }

    /// Returns how many packets were dropped for this reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }

    /// Returns every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }
}
