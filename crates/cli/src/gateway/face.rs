//! What the faces of other programs have beside the options of those: options of the gateway's own,
//! the end by a signal, and what the engine tells.

use super::options::Limits;
use clap::Args;
use neap::metrics::MetricsAddress;
use neap_gateway::GatewayHandle;
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) limits: Limits,
    /// After a signal that ends the network, refuse new flows and let the others go on for so long;
    /// a second signal ends it at once
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=86_400))]
    drain: u32,
    /// Serve metrics for Prometheus: GET /metrics at unix:PATH, or at an address and port of this
    /// host such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<MetricsAddress>,
}

impl Options {
    /// Ends the gateway by signals, in a thread of its own, as `--drain` says.
    ///
    /// # Errors
    /// There is no thread left.
    pub(crate) fn end_by(&self, mut signals: Signals, handle: GatewayHandle) -> io::Result<()> {
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

/// Hands the warnings of the engine to `say`, each as one line.
pub(crate) fn start_log(say: impl Fn(&str) + Clone + Send + Sync + 'static) {
    let log = tracing_subscriber::fmt()
        .with_writer(move || Lines(say.clone()))
        .with_max_level(LevelFilter::WARN)
        .with_level(false)
        .with_target(false)
        .without_time()
        .log_internal_errors(false);
    // A second gateway of the process has the log of the first.
    let _ = log.try_init();
}

/// Says what is written. An event comes as one write.
struct Lines<S>(S);

impl<S: Fn(&str)> Write for Lines<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        String::from_utf8_lossy(bytes).lines().for_each(&self.0);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
