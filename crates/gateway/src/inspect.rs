//! Looking at the flows of a running gateway from other threads.
//!
//! The gateway's thread has the flows to itself. Whoever wants to see them asks by a
//! [`GatewayHandle`], and the thread answers between two events.

use crate::counters::{Counters, Figures};
use crate::guests::{GuestView, Guests};
use crate::handle::GatewayHandle;
use crate::holdings::Holdings;
use neap::control::{Application, Labelled, RelayReport, SocketReport};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The longest that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks at a running [`Gateway`](crate::Gateway) from any thread. It is what a control socket and
/// metrics add to the figures of the stack ([`neap::control::ControlOptions::application`]).
#[derive(Clone, Debug)]
pub struct Inspector {
    handle: GatewayHandle,
    counters: Arc<Counters>,
    guests: Guests,
}

impl Inspector {
    pub(crate) fn new(handle: GatewayHandle, counters: Arc<Counters>, guests: Guests) -> Self {
        Self { handle, counters, guests }
    }

    /// Returns what the gateway holds, or `None` if it does not run or is asked by too many.
    ///
    /// It waits for the gateway's thread for at most one second. The thread needs O(flows).
    pub fn holdings(&self) -> Option<Holdings> {
        self.handle.look(PATIENCE)
    }

    /// Returns what happened so far.
    pub fn figures(&self) -> Figures {
        self.counters.figures()
    }

    /// Returns the totals of each guest in the order of their addresses, and in the end those of
    /// all others. At most 1024 addresses have totals of their own.
    pub fn guests(&self) -> Vec<GuestView> {
        self.guests.list()
    }
}

impl Application for Inspector {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        by_name(&self.figures())
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        let Some(holdings) = self.holdings() else { return Vec::new() };
        vec![
            ("GatewayFlows", holdings.flows.len() as u64),
            ("GatewayMappings", holdings.mappings as u64),
            ("GatewayHeldBytes", holdings.flows.iter().map(|flow| flow.held as u64).sum()),
        ]
    }

    fn labelled(&self) -> Vec<Labelled> {
        let label = "guest";
        self.guests()
            .into_iter()
            .flat_map(|guest| {
                let GuestView { address, connections, flows, mappings, bytes_out, bytes_in } =
                    guest;
                let of = address.map_or_else(|| "others".to_owned(), |address| address.to_string());
                [
                    ("GatewayGuestConnections", connections, false),
                    ("GatewayGuestFlows", flows, true),
                    ("GatewayGuestMappings", mappings, true),
                    ("GatewayGuestBytesOut", bytes_out, false),
                    ("GatewayGuestBytesIn", bytes_in, false),
                ]
                .map(|(name, value, gauge)| Labelled {
                    name,
                    label,
                    of: of.clone(),
                    value,
                    gauge,
                })
            })
            .collect()
    }

    fn relays(&self) -> HashMap<(SocketAddr, SocketAddr), RelayReport> {
        self.handle.relays(PATIENCE).unwrap_or_default()
    }

    fn sockets(&self) -> Vec<SocketReport> {
        self.handle.mappings(PATIENCE).unwrap_or_default()
    }
}

/// Names for counters. A counter without a name does not compile.
macro_rules! by_name {
    ($figures:expr, $($name:literal = $field:ident,)+) => {{
        let Figures { $($field,)+ } = *$figures;
        vec![$(($name, $field),)+]
    }};
}

/// The counters of a gateway, by their names for `nstat`.
fn by_name(figures: &Figures) -> Vec<(&'static str, u64)> {
    by_name! { figures,
        "GatewayOpened" = opened,
        "GatewayDenied" = denied,
        "GatewayFull" = full,
        "GatewayDraining" = draining,
        "GatewayNoPort" = no_port,
        "GatewayNoAddress" = no_address,
        "GatewayUnreached" = unreached,
        "GatewayFinished" = finished,
        "GatewayLost" = lost,
        "GatewayMemoryPressures" = memory_pressures,
        "GatewayBytesOut" = bytes_out,
        "GatewayBytesIn" = bytes_in,
        "GatewayDatagramBytesOut" = datagram_bytes_out,
        "GatewayDatagramBytesIn" = datagram_bytes_in,
        "GatewayLateDatagrams" = late_datagrams,
        "GatewayMappingsMade" = mappings,
        "GatewayFullMappings" = full_mappings,
        "GatewayDatagramsOut" = datagrams_out,
        "GatewayUnsentDatagrams" = unsent_datagrams,
        "GatewayDeniedDatagrams" = denied_datagrams,
        "GatewayDatagramsIn" = datagrams_in,
        "GatewayLostDatagrams" = lost_datagrams,
        "GatewayOverrunDatagrams" = overrun_datagrams,
        "GatewayUndeliveredDatagrams" = undelivered_datagrams,
        "GatewayUncarriedDatagrams" = uncarried_datagrams,
        "GatewayBadDatagrams" = bad_datagrams,
        "GatewayDnsQuestions" = dns_questions,
        "GatewayDnsAnswers" = dns_answers,
        "GatewayUnansweredDns" = unanswered_dns,
        "GatewayFullDns" = full_dns,
        "GatewayBadDns" = bad_dns,
        "GatewayGivenUp" = given_up,
        "GatewayEchoesOut" = echoes_out,
        "GatewayEchoesIn" = echoes_in,
        "GatewayUnansweredEchoes" = unanswered_echoes,
        "GatewayDeniedEchoes" = denied_echoes,
        "GatewayFullEchoes" = full_echoes,
        "GatewayUnsentEchoes" = unsent_echoes,
        "GatewayLostEchoes" = lost_echoes,
        "GatewayLateEchoes" = late_echoes,
        "GatewayUndeliveredEchoes" = undelivered_echoes,
        "GatewayDroppedIcmp" = dropped_icmp,
        "GatewayDhcpAnswers" = dhcp_answers,
        "GatewayDhcpDropped" = dhcp_dropped,
    }
}
