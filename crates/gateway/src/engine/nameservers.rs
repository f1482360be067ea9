//! Connections to nameservers: the next one is tried when one cannot be opened, or not in time.

use super::{CHANGES, Gateway, Near, too_late};
use crate::token::{Slot, Token};
use std::time::{Duration, Instant};

/// A nameserver that others follow has so long to take a connection.
const PATIENCE: Duration = Duration::from_secs(2);

impl Gateway {
    /// Waits for the far side of a flow to be open.
    pub(super) fn enter_far(&mut self, key: usize) {
        let flow = &mut self.flows[key];
        let slot = Slot { key, generation: flow.generation };
        if let Err(error) = flow.far.enter(&self.poller, Token::Far(slot).to_bits(), CHANGES) {
            return self.fail(key, &error);
        }
        if let Some(due) = flow.far.opens_until() {
            self.openings.set(due, slot);
        }
        flow.moves_on = (!flow.others.is_empty()).then(|| Instant::now() + PATIENCE);
        if let Some(due) = flow.moves_on {
            self.moves.set(due, slot);
        }
        // It may be open already, without an event that says so.
        self.visit(key);
    }

    /// Lets a flow that could not be opened go on to the next nameserver. Whether there is one.
    pub(super) fn moves_on(&mut self, key: usize) -> bool {
        let flow = &mut self.flows[key];
        if !matches!(flow.near, Near::Waits(Some(_))) || flow.others.is_empty() {
            return false;
        }
        let guest = flow.view.guest;
        let far = self.dns.connect_to_next(&*self.upstream, guest, &mut flow.others);
        let Ok(far) = far else { return false };
        (flow.far, flow.has_error) = (far, false);
        self.enter_far(key);
        true
    }

    /// Leaves nameservers that have not taken a connection until now.
    pub(super) fn leave_silent_nameservers(&mut self, now: Instant) {
        while let Some(slot) = self.moves.take(now) {
            let flow = self.flows.get(slot.key);
            // It may have gone to another one since then, which has a time of its own.
            let is_due = flow.is_some_and(|flow| {
                let is_it = flow.generation == slot.generation && !flow.is_open;
                is_it && flow.moves_on.is_some_and(|due| due <= now)
            });
            if is_due {
                self.fail(slot.key, &too_late());
            }
        }
    }
}
