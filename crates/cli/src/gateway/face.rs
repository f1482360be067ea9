//! What the faces of other programs have beside the options of those: options of the gateway's own,
//! and what the engine tells.

use super::ending::Ending;
use super::options::Limits;
use super::watching::LEVELS;
use super::way_out::FaceWayOut;
use clap::Args;
use neap::metrics::MetricsAddress;
use std::io::{self, Write};
use tracing::level_filters::LevelFilter;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) limits: Limits,
    #[command(flatten)]
    pub(crate) ending: Ending,
    #[command(flatten)]
    pub(crate) way_out: FaceWayOut,
    /// Serve metrics for Prometheus: GET /metrics at unix:PATH, or at an address and port of this
    /// host such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<MetricsAddress>,
    /// What is told of the gateway: error, warn, info (start, end, flows that the policy is
    /// against) or debug (each flow) [default: warn]
    #[arg(long, value_name = "LEVEL", value_parser = LEVELS)]
    log: Option<String>,
}

/// What is told if no option says otherwise.
pub(crate) const LEVEL: LevelFilter = LevelFilter::WARN;

impl Options {
    /// What the user wants to be told.
    pub(crate) fn level(&self) -> Option<LevelFilter> {
        self.log.as_ref().and_then(|level| level.parse().ok())
    }
}

/// Hands what the engine tells to `say`, each event as one line.
pub(crate) fn start_log(level: LevelFilter, say: impl Fn(&str) + Clone + Send + Sync + 'static) {
    let log = tracing_subscriber::fmt()
        .with_writer(move || Lines(say.clone()))
        .with_max_level(level)
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
