//! The end of a gateway, by signals or with its command.

use clap::Args;
use neap_gateway::GatewayHandle;
use signal_hook::iterator::Signals;
use std::io;
use std::thread;
use std::time::Duration;

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

    /// Ends the gateway of a command that has ended.
    pub(crate) fn end(self, handle: &GatewayHandle) {
        if self.drain == 0 || handle.finish(self.time()).is_err() {
            handle.stop();
        }
    }
}

impl Ending {
    /// Ends the gateway by signals, in a thread of its own.
    ///
    /// # Errors
    /// There is no thread left.
    pub(crate) fn by(self, mut signals: Signals, handle: GatewayHandle) -> io::Result<()> {
        let drain = Duration::from_secs(self.drain.into());
        let end = move || {
            let mut signals = signals.forever();
            if signals.next().is_some() && !drain.is_zero() && handle.drain(drain).is_ok() {
                signals.next();
            }
            handle.stop();
        };
        thread::Builder::new().name("signals".to_owned()).spawn(end).map(drop)
    }
}
