//! What others see of a gateway that runs. It is made for each of them: O(flows).

use super::{Flow, Gateway, Near};
use crate::holdings::{FlowView, Holdings, RATE, Relays};
use crate::sending::Sending;
use neap::control::{RelayReport, SocketReport};
use std::time::Instant;

impl Gateway {
    /// What the gateway holds.
    pub(super) fn holdings(&self) -> Holdings {
        let flows = self.flows.iter();
        let flows = flows.map(|(_, flow)| FlowView { held: flow.relay.held(), ..flow.view });
        Holdings { flows: flows.collect(), mappings: self.datagrams.mappings() }
    }

    /// What each flow holds, and what it waits for. It costs some system calls for each of them.
    pub(super) fn relays(&self) -> Relays {
        let flows = self.flows.iter();
        flows.map(|(_, flow)| (flow.view.key(), self.report(flow))).collect()
    }

    /// The mappings of datagrams and of pings.
    pub(super) fn mappings(&self) -> Vec<SocketReport> {
        let now = Instant::now();
        self.datagrams.list(now).chain(self.echoes.list(now)).collect()
    }

    fn report(&self, flow: &Flow) -> RelayReport {
        let Near::Open(near) = &flow.near else { return flow.view.opening(flow.host) };
        if !flow.is_open {
            return flow.view.opening(flow.host);
        }
        let scheduled = flow.scheduled.zip(self.sending.as_ref());
        let sending = scheduled.and_then(|(own, all)| all.has_more(own.id).then_some(all));
        let mut goes_on = flow.is_due;
        goes_on[flow.host as usize] |= sending.is_some();
        let mut report = flow.view.open(flow.host, &flow.relay, (&**near, &*flow.far), goes_on);
        if sending.is_some_and(Sending::is_early) {
            report.waits_for.push(RATE.to_owned());
        }
        report
    }
}
