//! The user's wish to stop: SIGINT or SIGTERM.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Says what a signal does: it ends the process at once, or it is a wish that whoever waits looks
/// at now and then, so that peers learn of the end.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    is_set: Arc<AtomicBool>,
    ends_at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches SIGINT and SIGTERM. Both end the process at once until
    /// [`become_wish`](Self::become_wish).
    pub(crate) fn catch() -> io::Result<Self> {
        let (is_set, ends_at_once) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        for signal in [SIGINT, SIGTERM] {
            let ends = Arc::clone(&ends_at_once);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, ends)?;
            signal_hook::flag::register(signal, Arc::clone(&is_set))?;
            signal_hook::flag::register(signal, Arc::clone(&ends_at_once))?;
        }
        Ok(Self { is_set, ends_at_once })
    }

    /// Makes the next signal a wish. The one behind it ends the process at once.
    pub(crate) fn become_wish(&self) {
        self.ends_at_once.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }
}
