//! The end of a gateway, by signals or with its command, and behind it that of its tunnel.

use super::tunnel::KeptTunnel;
use clap::Args;
use neap_gateway::GatewayHandle;
use signal_hook::consts::SIGHUP;
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
///
/// The tunnel ends with this.
#[derive(Debug)]
pub(crate) struct Rest(Option<KeptTunnel>);

impl Drop for Rest {
    fn drop(&mut self) {
        drop(self.tunnel().and_then(KeptTunnel::take));
    }
}

impl Rest {
    /// What a gateway with this tunnel, or without one, leaves.
    pub(super) fn new(tunnel: Option<KeptTunnel>) -> Self {
        Self(tunnel)
    }

    /// The tunnel, whose file can be read again.
    pub(crate) fn tunnel(&self) -> Option<&KeptTunnel> {
        self.0.as_ref()
    }

    /// Lets the connections of the tunnel send what they have not sent yet, and their ends, until
    /// this time at the latest. The gateway is gone: what it has not finished, it has reset.
    pub(crate) fn send(self, until: Instant, at_once: AtOnce) {
        let tunnel = self.tunnel().and_then(KeptTunnel::take);
        let Some(stack) = tunnel.and_then(|tunnel| Arc::into_inner(tunnel.stack)) else { return };
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
    /// which the returned value tells. With a tunnel, `SIGHUP` ends nothing, and has the file of
    /// the tunnel read again.
    ///
    /// # Errors
    /// There is no thread left.
    pub(crate) fn by(
        self,
        mut signals: Signals,
        handle: GatewayHandle,
        tunnel: Option<&KeptTunnel>,
    ) -> io::Result<AtOnce> {
        let tunnel = tunnel.cloned();
        let is_reload = move |signal: i32| {
            let tunnel = tunnel.as_ref().filter(|_| signal == SIGHUP);
            tunnel.map(KeptTunnel::reload).is_some()
        };
        let drain = Duration::from_secs(self.drain.into());
        let at_once = AtOnce::new();
        let teller = at_once.teller();
        let end = move || {
            let mut signals = signals.forever().filter(|signal| !is_reload(*signal));
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
