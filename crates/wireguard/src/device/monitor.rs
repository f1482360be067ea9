//! What becomes of the link: the paths to the peers, and so the MTU.

use crate::device::shared::Shared;
use neap_device::clock;
use neap_stack::device::{LinkMonitor, LinkState, LinkStatus};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Looks at the socket's error queue, and at the paths if there is a reason.
#[derive(Debug)]
pub(crate) struct Monitor {
    shared: Arc<Shared>,
}

impl Monitor {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl LinkMonitor for Monitor {
    fn look(&mut self) -> LinkStatus {
        let mut rung = [0; 8];
        // It fails if nobody has rung.
        let _ = rustix::io::read(self.shared.bell(), &mut rung);
        let mut status = LinkStatus::new(LinkState::Up);
        status.mtu = Some(self.shared.look_at_path(clock::now()));
        status
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(self.shared.bell().clone())
    }
}
