//! What shows an operator what a gateway does: its log, its control socket and its metrics.

use super::Failure;
use clap::Args;
use neap::Stack;
use neap::control::{self, Application, Control, ControlListener};
use neap::metrics::{self, Metrics, MetricsAddress, MetricsListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// Name of the stacks of gateways, for `neap ss --name`.
pub(super) const NAME: &str = "gateway";

#[derive(Args, Clone, Debug)]
pub(crate) struct Watching {
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

/// The sockets for who looks, which are not served yet.
#[derive(Debug)]
pub(crate) struct Listening {
    control: Option<ControlListener>,
    metrics: Option<MetricsListener>,
}

/// The control socket and the metrics of a gateway. They end with this.
#[derive(Debug)]
pub(crate) struct Watched {
    _control: Option<Control>,
    _metrics: Option<Metrics>,
}

impl Watching {
    /// Sends the log to the standard error from now on.
    pub(crate) fn start_log(&self, is_silent: bool) {
        let level = if self.quiet || is_silent { "off" } else { &self.log };
        let level: LevelFilter = level.parse().unwrap_or(LevelFilter::WARN);
        let log = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_max_level(level)
            .with_target(false);
        // A second gateway of the process has the log of the first.
        let _ = log.try_init();
    }

    /// Makes the sockets, before the gateway gives up its rights.
    ///
    /// A gateway without a control socket is one all the same, and the log says so. `name` is what
    /// `neap ss --name` finds the stack by.
    pub(crate) fn listen(&self, name: &str) -> Result<Listening, Failure> {
        let control = control::listen(name);
        let control = control.inspect_err(|error| {
            tracing::warn!(%error, "neap ss will not find {name}");
        });
        let metrics = self.metrics.as_ref().map(|address| {
            metrics::listen(address)
                .map_err(|error| Failure::System(format!("--metrics {address}: {error}")))
        });
        Ok(Listening { control: control.ok(), metrics: metrics.transpose()? })
    }
}

impl Listening {
    /// The folders of its sockets, which are removed in the end.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let control = self.control.as_ref().map(ControlListener::path);
        let metrics = self.metrics.as_ref().and_then(|metrics| match metrics.address() {
            MetricsAddress::Unix(path) => Some(path.as_path()),
            _ => None,
        });
        let parents = control.into_iter().chain(metrics).filter_map(Path::parent);
        // The parent of a name alone is the current folder.
        let named = |folder: &Path| if folder == "" { Path::new(".") } else { folder }.to_owned();
        parents.map(named).collect()
    }

    /// Serves the figures of a stack, and those that its application adds.
    pub(crate) fn serve(
        self,
        stack: &Stack,
        application: &Arc<dyn Application>,
    ) -> Result<Watched, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::System(error.to_string());
        let control = self.control;
        let control = control.map(|control| control.serve(stack, Some(application.clone())));
        let control = control.transpose().map_err(|error| failed(&error))?;
        let metrics = self.metrics;
        let metrics = metrics.map(|metrics| metrics.serve(stack, Some(application.clone())));
        let metrics = metrics.transpose().map_err(|error| failed(&error))?;
        if let Some(metrics) = &metrics {
            tracing::info!(address = %metrics.address(), "metrics are served");
        }
        Ok(Watched { _control: control, _metrics: metrics })
    }
}
