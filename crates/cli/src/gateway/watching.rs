//! What shows an operator what a gateway does: its log, its control socket and its metrics.

use super::{Failure, refused};
use crate::standard_error;
use clap::Args;
use neap::Stack;
use neap::control::{self, Application, Control, ControlListener};
use neap::metrics::{self, Metrics, MetricsAddress, MetricsListener};
use neap_gateway::Transport;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// Name of the stacks of gateways, for `neap ss --name`.
pub(super) const NAME: &str = "gateway";

/// Levels of a log.
pub(super) const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[derive(Args, Clone, Debug)]
pub(crate) struct Watching {
    /// Serve metrics for Prometheus: GET /metrics at unix:PATH, or at an address and port of this
    /// host such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// What is told on the standard error: error, warn, info (start, changes, end, flows that the
    /// policy is against) or debug (each flow)
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    #[arg(value_parser = LEVELS)]
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

/// The control sockets and the metrics of a gateway. They end with this.
#[derive(Debug)]
pub(crate) struct Watched {
    controls: Vec<Control>,
    _metrics: Option<Metrics>,
}

impl Watched {
    /// The control socket of another stack ends with this, too.
    pub(super) fn with(mut self, control: Option<Control>) -> Self {
        self.controls.extend(control);
        self
    }
}

/// Makes the control socket of a stack, before the gateway gives up its rights. A gateway without
/// one is one all the same, and the log says so. `name` is what `neap ss --name` finds the stack
/// by.
pub(super) fn listen(name: &str) -> Option<ControlListener> {
    let control = control::listen(name);
    control.inspect_err(|error| tracing::warn!(%error, "neap ss will not find {name}")).ok()
}

/// The folder of a control socket, which is removed from there in the end.
pub(super) fn folder(control: Option<&ControlListener>) -> Option<PathBuf> {
    control.and_then(|control| control.path().parent()).map(Path::to_owned)
}

/// The folder that a path is in.
pub(crate) fn folder_of(path: &Path) -> Option<PathBuf> {
    // The parent of a name alone is the current folder.
    path.parent().map(|folder| if folder == "" { Path::new(".") } else { folder }.to_owned())
}

impl Watching {
    /// Sends the log to the standard error from now on.
    pub(crate) fn start_log(&self, is_silent: bool) {
        let level = if self.quiet || is_silent { "off" } else { &self.log };
        let level: LevelFilter = level.parse().unwrap_or(LevelFilter::WARN);
        let log = tracing_subscriber::fmt()
            .with_writer(|| standard_error::Lines)
            .with_max_level(level)
            .with_target(false)
            // A line that cannot be written would be told of at the same place, by a panic.
            .log_internal_errors(false);
        // A second gateway of the process has the log of the first.
        let _ = log.try_init();
    }

    /// Makes the sockets, before the gateway gives up its rights. `name` is what `neap ss --name`
    /// finds the stack by.
    pub(crate) fn listen(&self, name: &str) -> Result<Listening, Failure> {
        Listening::new(listen(name), self.metrics.as_ref())
    }
}

/// Makes the socket of `--metrics`.
fn listen_for_metrics(address: &MetricsAddress) -> Result<MetricsListener, Failure> {
    metrics::listen(address).map_err(|error| {
        let why = match address {
            MetricsAddress::Tcp(port) => refused::port(Transport::Tcp, port, &error),
            MetricsAddress::Unix(path) => refused::path(path, &error),
            _ => error.to_string(),
        };
        Failure::System(format!("--metrics {address}: {why}"))
    })
}

impl Listening {
    /// A control socket, if there is one, and the socket of `--metrics`.
    pub(super) fn new(
        control: Option<ControlListener>,
        metrics: Option<&MetricsAddress>,
    ) -> Result<Self, Failure> {
        Ok(Self { control, metrics: metrics.map(listen_for_metrics).transpose()? })
    }

    /// The folders of its sockets, which are removed in the end.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let metrics = self.metrics.as_ref().and_then(|metrics| match metrics.address() {
            MetricsAddress::Unix(path) => folder_of(path),
            _ => None,
        });
        folder(self.control.as_ref()).into_iter().chain(metrics).collect()
    }

    /// Serves the figures of a stack, and those that its application adds for the control socket
    /// and for the metrics.
    pub(crate) fn serve(
        self,
        stack: &Stack,
        shown: Arc<dyn Application>,
        measured: Arc<dyn Application>,
    ) -> Result<Watched, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::System(error.to_string());
        let control = self.control.map(|control| control.serve(stack, Some(shown)));
        let control = control.transpose().map_err(|error| failed(&error))?;
        let metrics = self.metrics.map(|metrics| metrics.serve(stack, Some(measured)));
        let metrics = metrics.transpose().map_err(|error| failed(&error))?;
        if let Some(metrics) = &metrics {
            tracing::info!(address = %metrics.address(), "metrics are served");
        }
        Ok(Watched { controls: control.into_iter().collect(), _metrics: metrics })
    }
}
