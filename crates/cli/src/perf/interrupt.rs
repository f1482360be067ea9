//! The user's wish to stop: SIGINT or SIGTERM.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Set once the user interrupts; whoever waits looks at it now and then, so that peers learn of the
/// end.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    is_set: Arc<AtomicBool>,
    ends_at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches SIGINT and SIGTERM from now on; the second one ends the process at once.
    pub(crate) fn catch() -> io::Result<Self> {
        let (is_set, ends_at_once) = (Arc::default(), Arc::default());
        for signal in [SIGINT, SIGTERM] {
            let ends = Arc::clone(&ends_at_once);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, ends)?;
            signal_hook::flag::register(signal, Arc::clone(&is_set))?;
            signal_hook::flag::register(signal, Arc::clone(&ends_at_once))?;
        }
        Ok(Self { is_set, ends_at_once })
    }

    /// Lets the first signal end the process at once while `work` goes on: nobody has to learn of
    /// the end, and `work` does not look.
    pub(crate) fn ends_at_once<T>(&self, work: impl FnOnce() -> T) -> T {
        self.ends_at_once.store(true, Ordering::Relaxed);
        let done = work();
        self.ends_at_once.store(self.is_set(), Ordering::Relaxed);
        done
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }
}
