//! What others see of a tunnel with doors: the counters of both, the interface, and where
//! connections go.

use crate::gateway::tunnel;
use neap::control::{Application, Labelled};
use neap_gateway::doors::DoorsInspector;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The doors that there are, in any order.
pub(super) type Shown = Arc<Mutex<Vec<DoorsInspector>>>;

/// Looks at a tunnel and its doors from other threads.
#[derive(Debug)]
pub(super) struct Inspector {
    pub(super) tunnel: tunnel::Shown,
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
        let mut all = self.tunnel.counters();
        all.extend(self.sums(Application::counters));
        all
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        self.sums(Application::gauges)
    }

    fn labelled(&self) -> Vec<Labelled> {
        self.tunnel.labelled()
    }

    fn lines(&self, subject: &str) -> Option<Vec<String>> {
        self.tunnel.lines(subject)
    }

    fn far_addresses(&self) -> HashMap<(SocketAddr, SocketAddr), SocketAddr> {
        self.doors().iter().flat_map(Application::far_addresses).collect()
    }
}
