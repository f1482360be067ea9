//! What shows an operator what a gateway does: its log, its control socket and its metrics.

use super::Failure;
use clap::Args;
use neap::Stack;
use neap::control::{self, Control, ControlOptions};
use neap::metrics::{self, Metrics, MetricsAddress};
use neap_gateway::Gateway;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// Name of the stacks of gateways, for `neap ss --name`.
const NAME: &str = "gateway";

#[derive(Args, Clone, Debug)]
pub(super) struct Watching {
    /// Serve metrics for Prometheus: GET /metrics at unix:PATH, or at an address and port of this
    /// host such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// What is told on the standard error: error, warn, info (start, end, refused flows) or debug
    /// (each flow)
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    #[arg(value_parser = ["off", "error", "warn", "info", "debug", "trace"])]
    log: String,
    /// Tell nothing while the gateway runs, as --log off
    #[arg(long, conflicts_with = "log")]
    quiet: bool,
}

/// The control socket and the metrics of a gateway. They end with this.
#[derive(Debug)]
pub(super) struct Watched {
    _control: Option<Control>,
    _metrics: Option<Metrics>,
}

impl Watching {
    /// Sends the log to the standard error from now on.
    pub(super) fn start_log(&self) {
        let level = if self.quiet { "off" } else { &self.log };
        let level: LevelFilter = level.parse().unwrap_or(LevelFilter::WARN);
        let log = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_max_level(level)
            .with_target(false);
        // A second gateway of the process has the log of the first.
        let _ = log.try_init();
    }

    /// Serves the figures of a gateway and its stack.
    ///
    /// A gateway without a control socket is one all the same, and the log says so.
    pub(super) fn serve(&self, stack: &Stack, gateway: &Gateway) -> Result<Watched, Failure> {
        let inspector = Arc::new(gateway.inspector());
        let mut options = ControlOptions::new(NAME);
        options.application = Some(inspector.clone());
        let control = match control::serve(stack, options) {
            Ok(control) => Some(control),
            Err(error) => {
                tracing::warn!(%error, "neap ss will not find this gateway");
                None
            }
        };
        let metrics =
            match &self.metrics {
                Some(address) => {
                    let served = metrics::serve(stack, address, Some(inspector));
                    Some(served.map_err(|error| {
                        Failure::System(format!("--metrics {address}: {error}"))
                    })?)
                }
                None => None,
            };
        if let Some(metrics) = &metrics {
            tracing::info!(address = %metrics.address(), "metrics are served");
        }
        Ok(Watched { _control: control, _metrics: metrics })
    }
}
