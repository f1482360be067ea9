//! Looking at the flows of a running gateway from other threads.
//!
//! The gateway's thread has the flows to itself. Whoever wants to see them asks by a
//! [`GatewayHandle`], and the thread answers between two events.

use crate::counters::{Counters, Figures};
use crate::handle::GatewayHandle;
use neap::control::Application;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The longest that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A flow of a gateway, as the guest's side of the stack has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowView {
    /// Address of the stack's end of the guest's connection: what the guest wanted to reach, or
    /// the client of a published port.
    pub local: SocketAddr,
    /// The guest's address.
    pub guest: SocketAddr,
    /// The address that the other connection goes to, or comes from.
    pub far: SocketAddr,
    /// Bytes that the gateway has taken from one side and the other has not taken yet.
    pub held: usize,
}

/// What a gateway holds at a moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Holdings {
    /// TCP connections.
    pub flows: Vec<FlowView>,
    /// Addresses and ports of guests that have a UDP socket.
    pub mappings: usize,
}

/// Looks at a running [`Gateway`](crate::Gateway) from any thread. It is what a control socket and
/// metrics add to the figures of the stack ([`neap::control::ControlOptions::application`]).
#[derive(Clone, Debug)]
pub struct Inspector {
    handle: GatewayHandle,
    counters: Arc<Counters>,
}

impl Inspector {
    pub(crate) fn new(handle: GatewayHandle, counters: Arc<Counters>) -> Self {
        Self { handle, counters }
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

    fn far_addresses(&self) -> HashMap<(SocketAddr, SocketAddr), SocketAddr> {
        let flows = self.holdings().unwrap_or_default().flows;
        flows.into_iter().map(|flow| ((flow.local, flow.guest), flow.far)).collect()
    }
}

/// The counters of a gateway, by their names for `nstat`.
fn by_name(figures: &Figures) -> Vec<(&'static str, u64)> {
    let Figures {
        opened,
        denied,
        full,
        unreached,
        finished,
        lost,
        bytes_out,
        bytes_in,
        datagram_bytes_out,
        datagram_bytes_in,
        late_datagrams,
        mappings,
        full_mappings,
        datagrams_out,
        unsent_datagrams,
        denied_datagrams,
        datagrams_in,
        lost_datagrams,
        undelivered_datagrams,
        uncarried_datagrams,
        bad_datagrams,
        dns_questions,
        dns_answers,
        unanswered_dns,
        full_dns,
        bad_dns,
        given_up,
        echoes_out,
        echoes_in,
        unanswered_echoes,
        denied_echoes,
        full_echoes,
        unsent_echoes,
        lost_echoes,
        undelivered_echoes,
        dropped_icmp,
        dhcp_answers,
        dhcp_dropped,
    } = *figures;
    vec![
        ("GatewayOpened", opened),
        ("GatewayDenied", denied),
        ("GatewayFull", full),
        ("GatewayUnreached", unreached),
        ("GatewayFinished", finished),
        ("GatewayLost", lost),
        ("GatewayBytesOut", bytes_out),
        ("GatewayBytesIn", bytes_in),
        ("GatewayDatagramBytesOut", datagram_bytes_out),
        ("GatewayDatagramBytesIn", datagram_bytes_in),
        ("GatewayLateDatagrams", late_datagrams),
        ("GatewayMappingsMade", mappings),
        ("GatewayFullMappings", full_mappings),
        ("GatewayDatagramsOut", datagrams_out),
        ("GatewayUnsentDatagrams", unsent_datagrams),
        ("GatewayDeniedDatagrams", denied_datagrams),
        ("GatewayDatagramsIn", datagrams_in),
        ("GatewayLostDatagrams", lost_datagrams),
        ("GatewayUndeliveredDatagrams", undelivered_datagrams),
        ("GatewayUncarriedDatagrams", uncarried_datagrams),
        ("GatewayBadDatagrams", bad_datagrams),
        ("GatewayDnsQuestions", dns_questions),
        ("GatewayDnsAnswers", dns_answers),
        ("GatewayUnansweredDns", unanswered_dns),
        ("GatewayFullDns", full_dns),
        ("GatewayBadDns", bad_dns),
        ("GatewayGivenUp", given_up),
        ("GatewayEchoesOut", echoes_out),
        ("GatewayEchoesIn", echoes_in),
        ("GatewayUnansweredEchoes", unanswered_echoes),
        ("GatewayDeniedEchoes", denied_echoes),
        ("GatewayFullEchoes", full_echoes),
        ("GatewayUnsentEchoes", unsent_echoes),
        ("GatewayLostEchoes", lost_echoes),
        ("GatewayUndeliveredEchoes", undelivered_echoes),
        ("GatewayDroppedIcmp", dropped_icmp),
        ("GatewayDhcpAnswers", dhcp_answers),
        ("GatewayDhcpDropped", dhcp_dropped),
    ]
}
