//! What a gateway counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that the thread of the gateway raises, and that others may read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) opened: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) full: AtomicU64,
    pub(crate) draining: AtomicU64,
    pub(crate) no_port: AtomicU64,
    pub(crate) no_address: AtomicU64,
    pub(crate) unreached: AtomicU64,
    pub(crate) finished: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) memory_pressures: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) datagram_bytes_out: AtomicU64,
    pub(crate) datagram_bytes_in: AtomicU64,
    pub(crate) late_datagrams: AtomicU64,
    pub(crate) mappings: AtomicU64,
    pub(crate) full_mappings: AtomicU64,
    pub(crate) datagrams_out: AtomicU64,
    pub(crate) unsent_datagrams: AtomicU64,
    pub(crate) denied_datagrams: AtomicU64,
    pub(crate) datagrams_in: AtomicU64,
    pub(crate) lost_datagrams: AtomicU64,
    pub(crate) overrun_datagrams: AtomicU64,
    pub(crate) undelivered_datagrams: AtomicU64,
    pub(crate) uncarried_datagrams: AtomicU64,
    pub(crate) bad_datagrams: AtomicU64,
    pub(crate) dns_questions: AtomicU64,
    pub(crate) dns_answers: AtomicU64,
    pub(crate) unanswered_dns: AtomicU64,
    pub(crate) full_dns: AtomicU64,
    pub(crate) bad_dns: AtomicU64,
    pub(crate) given_up: AtomicU64,
    pub(crate) echoes_out: AtomicU64,
    pub(crate) echoes_in: AtomicU64,
    pub(crate) unanswered_echoes: AtomicU64,
    pub(crate) denied_echoes: AtomicU64,
    pub(crate) full_echoes: AtomicU64,
    pub(crate) unsent_echoes: AtomicU64,
    pub(crate) lost_echoes: AtomicU64,
    pub(crate) late_echoes: AtomicU64,
    pub(crate) undelivered_echoes: AtomicU64,
    pub(crate) dropped_icmp: AtomicU64,
    pub(crate) dhcp_answers: AtomicU64,
    pub(crate) dhcp_dropped: AtomicU64,
}

/// Names one of the counters.
pub(crate) type Which = fn(&Counters) -> &AtomicU64;

/// Returns the counter of what is refused as new: that of the drain while the gateway drains, and
/// else `full`, as there is no room.
pub(crate) fn refused_as_new(is_draining: bool, full: Which) -> Which {
    if is_draining { |counters| &counters.draining } else { full }
}

/// What happened in a gateway so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Connections whose two halves were open.
    pub opened: u64,
    /// Connections that the policy was against.
    pub denied: u64,
    /// Connections that were refused since there were too many, or no descriptors or memory of the
    /// host were left.
    pub full: u64,
    /// Connections, datagrams and echo requests that were refused as new, while the gateway
    /// [drained](crate::GatewayHandle::drain).
    pub draining: u64,
    /// Connections that were refused since the host had no port left to connect from
    /// (`EADDRNOTAVAIL`): all of `net.ipv4.ip_local_port_range` have connections to the
    /// destination, those in TIME-WAIT included.
    pub no_port: u64,
    /// Connections, datagrams, echo requests and questions for names that were refused since the
    /// host does not have the address that they were to leave from
    /// ([`Outbound::v4`](crate::Outbound::v4) and [`v6`](crate::Outbound::v6)).
    pub no_address: u64,
    /// Connections whose other half could not be opened, and those to an
    /// [own address](crate::GatewayConfig::own_addresses) of the gateway.
    pub unreached: u64,
    /// Connections that both sides ended.
    pub finished: u64,
    /// Connections that one side lost, and the other was told by a reset.
    pub lost: u64,
    /// Times that the bytes which connections hold in the gateway came above the second value of
    /// `net.ipv4.tcp_mem`. Until they are at the first one, a connection takes one piece at a time.
    pub memory_pressures: u64,
    /// Bytes that guests sent over connections, as far as the other side has taken them.
    pub bytes_out: u64,
    /// Bytes that guests got over connections, as far as the stack has taken them.
    pub bytes_in: u64,
    /// Bytes of datagrams that the host took, without headers.
    pub datagram_bytes_out: u64,
    /// Bytes of datagrams that went to guests, without headers.
    pub datagram_bytes_in: u64,
    /// Datagrams of guests that were dropped since too many waited for the
    /// [rate](crate::GatewayConfig::rate), or waited too long.
    pub late_datagrams: u64,
    /// Addresses and ports of guests that got a UDP socket.
    pub mappings: u64,
    /// Datagrams that were dropped, as there were too many addresses and ports, or no descriptors
    /// or ports of the host.
    pub full_mappings: u64,
    /// Datagrams that the host took.
    pub datagrams_out: u64,
    /// Datagrams that the host refused, or whose upstream could not be reached, and those to an
    /// [own address](crate::GatewayConfig::own_addresses) of the gateway.
    pub unsent_datagrams: u64,
    /// Datagrams that the policy was against: those of guests, and those to them from addresses
    /// that they may not reach, published ports left out.
    pub denied_datagrams: u64,
    /// Datagrams that went to guests.
    pub datagrams_in: u64,
    /// Datagrams for guests that the stack did not take.
    pub lost_datagrams: u64,
    /// Datagrams that the host dropped, as too many waited in its socket for the gateway. They are
    /// known with the next one that comes.
    pub overrun_datagrams: u64,
    /// Datagrams of guests that ICMP says were not delivered, and of which the guest was told.
    pub undelivered_datagrams: u64,
    /// Datagrams that were refused, as the upstream carries none.
    pub uncarried_datagrams: u64,
    /// What came from the upstream and was no datagram, or a fragment of one; what came to the
    /// client of a [crossing](crate::Gateway::cross) from others than its server.
    pub bad_datagrams: u64,
    /// Questions that guests asked the resolver over UDP.
    pub dns_questions: u64,
    /// Answers that they got, also those that say that there is none.
    pub dns_answers: u64,
    /// Questions that no resolver answered.
    pub unanswered_dns: u64,
    /// Questions that were not asked, as there were too many, or no descriptors.
    pub full_dns: u64,
    /// Messages that were dropped: no questions, or no answers to what was asked.
    pub bad_dns: u64,
    /// Connections that were given up before their other half was open: by the guest, or by the
    /// client of a published port with a reset.
    pub given_up: u64,
    /// Echo requests that the host took.
    pub echoes_out: u64,
    /// Echo replies that went to guests.
    pub echoes_in: u64,
    /// Echo requests that were dropped since the host gives the gateway no ping sockets
    /// (`net.ipv4.ping_group_range`).
    pub unanswered_echoes: u64,
    /// Echo requests that the policy was against, or that are not to pass at all.
    pub denied_echoes: u64,
    /// Echo requests that were dropped, as there were too many identifiers, or no descriptors.
    pub full_echoes: u64,
    /// Echo requests that the host refused, or whose upstream could not be reached.
    pub unsent_echoes: u64,
    /// Echo replies that the stack did not take.
    pub lost_echoes: u64,
    /// Echo requests that were dropped since too many waited for the
    /// [rate](crate::GatewayConfig::rate), or waited too long.
    pub late_echoes: u64,
    /// Echo requests that ICMP says were not delivered, and of which the guest was told.
    pub undelivered_echoes: u64,
    /// Other ICMP messages of guests to other hosts, which do not go on.
    pub dropped_icmp: u64,
    /// DHCP messages of guests that were answered.
    pub dhcp_answers: u64,
    /// DHCP messages of guests that were not: what is malformed, for others, or beyond the pool.
    pub dhcp_dropped: u64,
}

impl Counters {
    pub(crate) fn count(&self, which: impl FnOnce(&Self) -> &AtomicU64) {
        self.add(which, 1);
    }

    pub(crate) fn add(&self, which: impl FnOnce(&Self) -> &AtomicU64, number: u64) {
        which(self).fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> Figures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            opened: get(&self.opened),
            denied: get(&self.denied),
            full: get(&self.full),
            draining: get(&self.draining),
            no_port: get(&self.no_port),
            no_address: get(&self.no_address),
            unreached: get(&self.unreached),
            finished: get(&self.finished),
            lost: get(&self.lost),
            memory_pressures: get(&self.memory_pressures),
            bytes_out: get(&self.bytes_out),
            bytes_in: get(&self.bytes_in),
            datagram_bytes_out: get(&self.datagram_bytes_out),
            datagram_bytes_in: get(&self.datagram_bytes_in),
            late_datagrams: get(&self.late_datagrams),
            mappings: get(&self.mappings),
            full_mappings: get(&self.full_mappings),
            datagrams_out: get(&self.datagrams_out),
            unsent_datagrams: get(&self.unsent_datagrams),
            denied_datagrams: get(&self.denied_datagrams),
            datagrams_in: get(&self.datagrams_in),
            lost_datagrams: get(&self.lost_datagrams),
            overrun_datagrams: get(&self.overrun_datagrams),
            undelivered_datagrams: get(&self.undelivered_datagrams),
            uncarried_datagrams: get(&self.uncarried_datagrams),
            bad_datagrams: get(&self.bad_datagrams),
            dns_questions: get(&self.dns_questions),
            dns_answers: get(&self.dns_answers),
            unanswered_dns: get(&self.unanswered_dns),
            full_dns: get(&self.full_dns),
            bad_dns: get(&self.bad_dns),
            given_up: get(&self.given_up),
            echoes_out: get(&self.echoes_out),
            echoes_in: get(&self.echoes_in),
            unanswered_echoes: get(&self.unanswered_echoes),
            denied_echoes: get(&self.denied_echoes),
            full_echoes: get(&self.full_echoes),
            unsent_echoes: get(&self.unsent_echoes),
            lost_echoes: get(&self.lost_echoes),
            late_echoes: get(&self.late_echoes),
            undelivered_echoes: get(&self.undelivered_echoes),
            dropped_icmp: get(&self.dropped_icmp),
            dhcp_answers: get(&self.dhcp_answers),
            dhcp_dropped: get(&self.dhcp_dropped),
        }
    }
}
