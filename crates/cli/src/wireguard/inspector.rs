//! What others see of a tunnel: its counters and those of its doors, its interface, and where
//! connections go.

use crate::wg::report::{InterfaceReport, SUBJECT};
use neap::control::{Application, Labelled};
use neap_gateway::doors::DoorsInspector;
use neap_wireguard::WireguardHandle;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The doors that there are, in any order.
pub(super) type Shown = Arc<Mutex<Vec<DoorsInspector>>>;

/// Looks at a tunnel from other threads.
#[derive(Debug)]
pub(super) struct Inspector {
    /// Name of the interface.
    pub(super) name: String,
    pub(super) handle: WireguardHandle,
    pub(super) doors: Shown,
}

impl Inspector {
    fn doors(&self) -> Vec<DoorsInspector> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The sums of what all doors count by the same names.
    fn sums(
        &self,
        figures: impl Fn(&DoorsInspector) -> Vec<(&'static str, u64)>,
    ) -> Vec<(&'static str, u64)> {
        let mut sums = BTreeMap::new();
        for (name, value) in self.doors().iter().flat_map(figures) {
            *sums.entry(name).or_default() += value;
        }
        sums.into_iter().collect()
    }
}

impl Application for Inspector {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.handle.status().counters;
        all.extend(self.sums(Application::counters));
        all
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        self.sums(Application::gauges)
    }

    fn labelled(&self) -> Vec<Labelled> {
        let peers = self.handle.status().peers;
        let of_peer = peers.iter().flat_map(|peer| {
            [("WireguardPeerReceived", peer.received), ("WireguardPeerSent", peer.sent)].map(
                |(name, value)| {
                    let of = peer.public_key.to_string();
                    Labelled { name, label: "peer", of, value, gauge: false }
                },
            )
        });
        of_peer.collect()
    }

    fn lines(&self, subject: &str) -> Option<Vec<String>> {
        let report = InterfaceReport::new(&self.name, &self.handle.status());
        (subject == SUBJECT).then(|| serde_json::to_string(&report).into_iter().collect())
    }

    fn far_addresses(&self) -> HashMap<(SocketAddr, SocketAddr), SocketAddr> {
        self.doors().iter().flat_map(Application::far_addresses).collect()
    }
}
