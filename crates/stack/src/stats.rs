//! Counters of the host below TCP, by the names that `nstat` prints.

use crate::drop_reason::Drops;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! ip_counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Counter of IP, ICMP or UDP events, by the names that `nstat` prints.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum IpCounter { $($(#[$doc])* $variant,)+ }

        impl IpCounter {
            /// All counters, in the order in which they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name that `nstat` prints.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl core::fmt::Display for IpCounter {
            /// Prints the name.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

ip_counters! {
    /// IPv4 packets received, super-packets counted once (after GRO).
    IpInReceives = "IpInReceives",
    /// IPv4 headers with errors.
    IpInHdrErrors = "IpInHdrErrors",
    /// IPv4 packets for other hosts or from impossible sources.
    IpInAddrErrors = "IpInAddrErrors",
    /// IPv4 packets of unknown protocols.
    IpInUnknownProtos = "IpInUnknownProtos",
    /// IPv4 packets handed to a transport.
    IpInDelivers = "IpInDelivers",
    /// IPv4 packets sent; a super-packet counts once, and so does a datagram in fragments.
    IpOutRequests = "IpOutRequests",
    /// IPv4 packets that had no route.
    IpOutNoRoutes = "IpOutNoRoutes",
    /// IPv4 fragments received.
    IpReasmReqds = "IpReasmReqds",
    /// IPv4 datagrams put together.
    IpReasmOKs = "IpReasmOKs",
    /// IPv4 datagrams and fragments given up.
    IpReasmFails = "IpReasmFails",
    /// IPv4 datagrams cut into fragments.
    IpFragOKs = "IpFragOKs",
    /// IPv4 datagrams of which not all fragments could be sent.
    IpFragFails = "IpFragFails",
    /// IPv4 fragments sent.
    IpFragCreates = "IpFragCreates",
    /// Bytes of IPv4 packets received.
    IpInOctets = "IpExtInOctets",
    /// Bytes of IPv4 packets sent.
    IpOutOctets = "IpExtOutOctets",
    /// IPv4 packets received with a congestion mark.
    IpInCEPkts = "IpExtInCEPkts",
    /// IPv4 headers with a bad checksum, which are among [`IpInHdrErrors`](Self::IpInHdrErrors).
    IpInCsumErrors = "IpExtInCsumErrors",
    /// IPv6 packets received, super-packets counted once.
    Ip6InReceives = "Ip6InReceives",
    /// IPv6 headers with errors.
    Ip6InHdrErrors = "Ip6InHdrErrors",
    /// IPv6 packets for other hosts or from impossible sources.
    Ip6InAddrErrors = "Ip6InAddrErrors",
    /// IPv6 packets of unknown protocols.
    Ip6InUnknownProtos = "Ip6InUnknownProtos",
    /// IPv6 packets handed to a transport.
    Ip6InDelivers = "Ip6InDelivers",
    /// IPv6 packets sent; a super-packet counts once, and so does a datagram in fragments.
    Ip6OutRequests = "Ip6OutRequests",
    /// IPv6 packets that had no route.
    Ip6OutNoRoutes = "Ip6OutNoRoutes",
    /// IPv6 fragments received.
    Ip6ReasmReqds = "Ip6ReasmReqds",
    /// IPv6 datagrams put together.
    Ip6ReasmOKs = "Ip6ReasmOKs",
    /// IPv6 datagrams and fragments given up.
    Ip6ReasmFails = "Ip6ReasmFails",
    /// IPv6 datagrams cut into fragments.
    Ip6FragOKs = "Ip6FragOKs",
    /// IPv6 datagrams of which not all fragments could be sent.
    Ip6FragFails = "Ip6FragFails",
    /// IPv6 fragments sent.
    Ip6FragCreates = "Ip6FragCreates",
    /// Bytes of IPv6 packets received.
    Ip6InOctets = "Ip6InOctets",
    /// Bytes of IPv6 packets sent.
    Ip6OutOctets = "Ip6OutOctets",
    /// ICMP messages received.
    IcmpInMsgs = "IcmpInMsgs",
    /// ICMP messages with errors.
    IcmpInErrors = "IcmpInErrors",
    /// ICMP checksums that were wrong.
    IcmpInCsumErrors = "IcmpInCsumErrors",
    /// Destination unreachable received.
    IcmpInDestUnreachs = "IcmpInDestUnreachs",
    /// Echo requests received.
    IcmpInEchos = "IcmpInEchos",
    /// ICMP messages sent.
    IcmpOutMsgs = "IcmpOutMsgs",
    /// Destination unreachable sent.
    IcmpOutDestUnreachs = "IcmpOutDestUnreachs",
    /// Time exceeded sent.
    IcmpOutTimeExcds = "IcmpOutTimeExcds",
    /// Echo replies sent.
    IcmpOutEchoReps = "IcmpOutEchoReps",
    /// ICMPv6 messages received.
    Icmp6InMsgs = "Icmp6InMsgs",
    /// ICMPv6 messages with errors.
    Icmp6InErrors = "Icmp6InErrors",
    /// ICMPv6 checksums that were wrong.
    Icmp6InCsumErrors = "Icmp6InCsumErrors",
    /// ICMPv6 messages sent.
    Icmp6OutMsgs = "Icmp6OutMsgs",
    /// ICMPv6 time exceeded sent.
    Icmp6OutTimeExcds = "Icmp6OutTimeExcds",
    /// UDP datagrams of IPv4 delivered.
    UdpInDatagrams = "UdpInDatagrams",
    /// UDP datagrams of IPv4 without a socket.
    UdpNoPorts = "UdpNoPorts",
    /// UDP datagrams of IPv4 to all hosts of a network that no socket takes.
    UdpIgnoredMulti = "UdpIgnoredMulti",
    /// UDP datagrams of IPv4 with errors, full buffers included.
    UdpInErrors = "UdpInErrors",
    /// UDP datagrams of IPv4 sent.
    UdpOutDatagrams = "UdpOutDatagrams",
    /// UDP datagrams of IPv4 dropped at a full receive buffer.
    UdpRcvbufErrors = "UdpRcvbufErrors",
    /// UDP datagrams of IPv4 that the way down refused.
    UdpSndbufErrors = "UdpSndbufErrors",
    /// UDP datagrams of IPv4 for which `udp_mem` left no memory.
    UdpMemErrors = "UdpMemErrors",
    /// UDP checksums over IPv4 that were wrong.
    UdpInCsumErrors = "UdpInCsumErrors",
    /// UDP datagrams of IPv6 delivered.
    Udp6InDatagrams = "Udp6InDatagrams",
    /// UDP datagrams of IPv6 without a socket.
    Udp6NoPorts = "Udp6NoPorts",
    /// UDP datagrams of IPv6 to a group that no socket takes.
    Udp6IgnoredMulti = "Udp6IgnoredMulti",
    /// UDP datagrams of IPv6 with errors, full buffers included.
    Udp6InErrors = "Udp6InErrors",
    /// UDP datagrams of IPv6 sent.
    Udp6OutDatagrams = "Udp6OutDatagrams",
    /// UDP datagrams of IPv6 dropped at a full receive buffer.
    Udp6RcvbufErrors = "Udp6RcvbufErrors",
    /// UDP datagrams of IPv6 that the way down refused.
    Udp6SndbufErrors = "Udp6SndbufErrors",
    /// UDP datagrams of IPv6 for which `udp_mem` left no memory.
    Udp6MemErrors = "Udp6MemErrors",
    /// UDP checksums over IPv6 that were wrong.
    Udp6InCsumErrors = "Udp6InCsumErrors",
    /// Own addresses that the kernel of the machine got while the stack had them.
    AddressesTaken = "NeapAddressesTaken",
    /// Segments that arrived at another shard than that of their connection, super-packets counted
    /// once. Each is handed from one thread to another. The first shard receives what the host
    /// sends to itself.
    CrossShard = "NeapCrossShard",
}

impl IpCounter {
    /// The counter of the same event for packets of IPv4 or of IPv6; `self` is that of IPv4. One
    /// that both share is the same.
    pub(crate) const fn of_family(self, is_v4: bool) -> Self {
        if is_v4 {
            return self;
        }
        match self {
            Self::IpOutNoRoutes => Self::Ip6OutNoRoutes,
            Self::IpReasmReqds => Self::Ip6ReasmReqds,
            Self::IpReasmOKs => Self::Ip6ReasmOKs,
            Self::IpReasmFails => Self::Ip6ReasmFails,
            Self::IpFragOKs => Self::Ip6FragOKs,
            Self::IpFragFails => Self::Ip6FragFails,
            Self::IpFragCreates => Self::Ip6FragCreates,
            Self::UdpInDatagrams => Self::Udp6InDatagrams,
            Self::UdpNoPorts => Self::Udp6NoPorts,
            Self::UdpIgnoredMulti => Self::Udp6IgnoredMulti,
            Self::UdpInErrors => Self::Udp6InErrors,
            Self::UdpOutDatagrams => Self::Udp6OutDatagrams,
            Self::UdpRcvbufErrors => Self::Udp6RcvbufErrors,
            Self::UdpSndbufErrors => Self::Udp6SndbufErrors,
            Self::UdpMemErrors => Self::Udp6MemErrors,
            Self::UdpInCsumErrors => Self::Udp6InCsumErrors,
            shared => shared,
        }
    }
}

/// Counters of one host. Adding is one relaxed atomic operation.
#[derive(Debug)]
pub struct IpCounters([AtomicU64; IpCounter::ALL.len()]);

impl Default for IpCounters {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl IpCounters {
    /// Adds `n` to a counter.
    pub(crate) fn add(&self, counter: IpCounter, n: u64) {
        self.0[counter as usize].fetch_add(n, Relaxed);
    }

    /// Returns the current value of a counter.
    pub fn get(&self, counter: IpCounter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Returns every counter with its value.
    pub fn iter(&self) -> impl Iterator<Item = (IpCounter, u64)> + '_ {
        IpCounter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }
}

/// What a host counts of packets: by protocol, and by the reason why they were dropped.
#[derive(Debug, Default)]
pub(crate) struct PacketCounters {
    pub(crate) ip: IpCounters,
    pub(crate) drops: Drops,
}
