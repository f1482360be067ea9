//! The end of a gateway, by signals or with its command, and behind it that of its tunnel.

use clap::Args;
use neap::Stack;
use neap_gateway::GatewayHandle;
use signal_hook::iterator::Signals;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long what was taken from guests has to arrive after the end, unless an option says it.
pub(crate) const TIME: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// After a signal that ends the network, refuse new flows and let the others go on for so long;
    /// a second signal ends it at once
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=86_400))]
    drain: u32,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AfterCommand {
    /// After the end of the command let connections that are open go on for so long at most, so
    /// that what it has sent arrives; a signal ends them at once, and 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=86_400))]
    drain: u32,
}

impl AfterCommand {
    /// How long connections may go on.
    pub(crate) fn time(self) -> Duration {
        Duration::from_secs(self.drain.into())
    }
}

/// Ends the gateway of a command that has ended. What the command has sent arrives, if that takes
/// no longer than `time`.
pub(crate) fn finish(handle: &GatewayHandle, time: Duration) {
    if time.is_zero() || handle.finish(time).is_err() {
        handle.stop();
    }
}

/// Whether a process that ends is to end at once.
#[derive(Debug)]
pub(crate) struct AtOnce {
    tell: Sender<()>,
    told: Receiver<()>,
}

impl AtOnce {
    pub(crate) fn new() -> Self {
        let (tell, told) = channel();
        Self { tell, told }
    }

    /// What tells it.
    pub(crate) fn teller(&self) -> Sender<()> {
        self.tell.clone()
    }
}

/// What a gateway leaves: the stack of its tunnel, which has taken bytes that are not acknowledged
/// yet. The kernel has such bytes of its own sockets, and sends them behind the end of a process.
#[derive(Debug)]
pub(crate) struct Rest(Option<Arc<Stack>>);

impl Rest {
    /// What a gateway with this tunnel, or without one, leaves.
    pub(super) fn new(tunnel: Option<Arc<Stack>>) -> Self {
        Self(tunnel)
    }

    /// Lets the connections of the tunnel send what they have not sent yet, and their ends, until
    /// this time at the latest. The gateway is gone: what it has not finished, it has reset.
    pub(crate) fn send(self, until: Instant, at_once: AtOnce) {
        let Some(stack) = self.0.and_then(Arc::into_inner) else { return };
        let AtOnce { tell, told } = at_once;
        thread::spawn(move || {
            let time = until.saturating_duration_since(Instant::now());
            if !time.is_zero() {
                stack.close(time);
            }
            // A signal may have come before.
            let _ = tell.send(());
        });
        // It is closed, or there was a signal.
        let _ = told.recv();
    }
}

impl Ending {
    /// Ends the gateway by a signal, in a thread of its own, and all at once by a signal behind it,
    /// which the returned value tells.
    ///
    /// # Errors
    /// There is no thread left.
    pub(crate) fn by(self, mut signals: Signals, handle: GatewayHandle) -> io::Result<AtOnce> {
        let drain = Duration::from_secs(self.drain.into());
        let at_once = AtOnce::new();
        let teller = at_once.teller();
        let end = move || {
            let mut signals = signals.forever();
            // Where the run has ended, its tunnel alone is left.
            if signals.next().is_some() && handle.drain(drain).is_ok() {
                signals.next();
            }
            handle.stop();
            // Nobody may wait for it.
            let _ = teller.send(());
        };
        thread::Builder::new().name("signals".to_owned()).spawn(end).map(|_| at_once)
    }
}
