//! What others see of a tunnel with doors: the counters of both, the interface, and where
//! connections go.

use crate::gateway::tunnel;
use neap::control::{Application, Labelled, RelayReport};
use neap_gateway::doors::DoorsInspector;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Looks at a tunnel and its doors from other threads.
#[derive(Debug)]
pub(super) struct Inspector {
    pub(super) tunnel: tunnel::Shown,
    pub(super) doors: DoorsInspector,
}

impl Application for Inspector {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.tunnel.counters();
        all.extend(self.doors.counters());
        all
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        self.doors.gauges()
    }

    fn labelled(&self) -> Vec<Labelled> {
        self.tunnel.labelled()
    }

    fn lines(&self, subject: &str) -> Option<Vec<String>> {
        self.tunnel.lines(subject)
    }

    fn relays(&self) -> HashMap<(SocketAddr, SocketAddr), RelayReport> {
        self.doors.relays()
    }
}
