//! The end of a device that somebody else takes away, or the end of its namespace.

use neap::{Stack, StackEvent};
use neap_gateway::GatewayHandle;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The end of the device that a gateway serves, which may come or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceEnd(Arc<AtomicBool>);

impl DeviceEnd {
    /// Stops a gateway when the device of its stack goes, by a thread of its own.
    ///
    /// # Errors
    /// The stack has no events left to give.
    pub(crate) fn watch(stack: &Stack, handle: GatewayHandle) -> io::Result<Self> {
        Self::watch_by(stack, move |_| handle.stop())
    }

    /// Does this once the device of a stack is gone, or the stack has ended, by a thread of its
    /// own.
    ///
    /// # Errors
    /// The stack has no events left to give.
    pub(crate) fn watch_by(
        stack: &Stack,
        then: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<Self> {
        let (events, end) = (stack.events()?, Self::default());
        let told = end.clone();
        thread::spawn(move || {
            while let Ok(event) = events.recv() {
                if matches!(event, StackEvent::DeviceGone { .. }) {
                    told.0.store(true, Ordering::Relaxed);
                    break;
                }
            }
            then(&told);
        });
        Ok(end)
    }

    /// Whether the device has gone.
    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
