//! The user's wish to stop: SIGINT or SIGTERM.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Set once the user interrupts. Whoever waits for a short time looks at it now and then, so that
/// peers learn of the end. Whoever waits for long waits for its descriptor too, which can be read
/// once the signal has come.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    /// The signal that came; 0 before.
    signal: Arc<AtomicUsize>,
    ends_at_once: Arc<AtomicBool>,
    /// Has a byte for each signal. Nobody reads them.
    bytes: Arc<UnixStream>,
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bytes.as_fd()
    }
}

impl Interrupt {
    /// Catches SIGINT and SIGTERM from now on; the second one ends the process at once.
    pub(crate) fn catch() -> io::Result<Self> {
        let caught = Arc::new(AtomicUsize::new(0));
        let ends_at_once = Arc::new(AtomicBool::new(false));
        let (bytes, writing) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            // In this order, a signal that comes while `ends_at_once` begins is seen there or ends
            // the process here. All of it is sequentially consistent.
            signal_hook::flag::register_usize(signal, Arc::clone(&caught), signal as usize)?;
            let ends = Arc::clone(&ends_at_once);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, ends)?;
            signal_hook::flag::register(signal, Arc::clone(&ends_at_once))?;
            // Last: whoever is woken by the byte sees the signal.
            signal_hook::low_level::pipe::register(signal, writing.try_clone()?)?;
        }
        Ok(Self { signal: caught, ends_at_once, bytes: Arc::new(bytes) })
    }

    /// Lets the first signal end the process at once while `work` goes on: nobody has to learn of
    /// the end, and `work` does not look. A signal that came before ends the process now.
    pub(crate) fn ends_at_once<T>(&self, work: impl FnOnce() -> T) -> T {
        self.ends_at_once.store(true, Ordering::SeqCst);
        let signal = self.signal.load(Ordering::SeqCst);
        if signal != 0 {
            process::exit(128 + signal as i32);
        }
        let done = work();
        self.ends_at_once.store(self.is_set(), Ordering::SeqCst);
        done
    }

    pub(crate) fn is_set(&self) -> bool {
        self.signal.load(Ordering::SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_signal_before_the_work_ends_the_process_too() {
        const NAME: &str = "perf::interrupt::tests::a_signal_before_the_work_ends_the_process_too";
        const INSIDE: &str = "NEAP_TEST_INTERRUPT";
        if env::var_os(INSIDE).is_some() {
            let interrupt = Interrupt::catch().unwrap();
            signal_hook::low_level::raise(SIGINT).unwrap();
            interrupt.ends_at_once(|| ());
            return;
        }
        let mut inside = Command::new(env::current_exe().unwrap());
        let output = inside.args(["--exact", NAME]).env(INSIDE, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
    }
}
