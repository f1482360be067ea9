//! Events of a flow.

use crate::relay::{Relay, Side};
use neap::Events;

/// What has changed at one side of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    pub(crate) side: Side,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    pub(crate) has_error: bool,
}

impl News {
    pub(crate) fn of(side: Side, events: Events) -> Self {
        let is_over = events.intersects(Events::ERR.union(Events::HUP));
        Self {
            side,
            is_readable: is_over || events.intersects(Events::IN.union(Events::RDHUP)),
            is_writable: is_over || events.contains(Events::OUT),
            has_error: events.contains(Events::ERR),
        }
    }

    /// Whether bytes to one side may move: the other one has some, or this one has room for those
    /// that wait. Who has no news is not asked, which would cost a system call.
    pub(crate) fn moves(self, to: Side, relay: &Relay) -> bool {
        if self.side == to { self.is_writable && relay.waits_for(to) } else { self.is_readable }
    }
}
