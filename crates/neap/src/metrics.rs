//! The figures of a stack for Prometheus.
//!
//! [`serve`] answers `GET /metrics` (HTTP/1.1, one request for each connection) with all counters
//! and gauges of a stack in the text format of OpenMetrics, which Prometheus reads. One thread
//! serves; it sleeps until somebody asks, and answers at most 16 at the same time. A request has
//! at most 4096 bytes and has to be there within 5 seconds.
//!
//! Counters that the kernel's `nstat` has as well, whose names begin with `Ip`, `Icmp`, `Tcp` or
//! `Udp`, are named `neap_netstat_TcpInSegs_total` and so on. All others have their names behind
//! `neap_`: neap's own, such as `neap_NeapTCPNoControlFlag_total`, those of the [`Application`],
//! and gauges, such as `neap_TcpConnections`. Dropped packets are `neap_drops_total` with the
//! label `reason`. What waits in the qdisc of each queue is `neap_qdisc_backlog_bytes`.
//!
//! ```no_run
//! # let stack = neap::Stack::builder().build()?;
//! let metrics = neap::metrics::serve(&stack, &"127.0.0.1:9100".parse()?, None)?;
//! // curl http://127.0.0.1:9100/metrics
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod http;

use crate::control::{Application, CounterReport, Labelled, counters, is_refused};
use crate::engine::Engine;
use crate::host::Host;
use crate::serving::{Answer, Listener, Server, Service, Stream};
use crate::workers::Stack;
use http::Asked;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::io::{self, ErrorKind};
use std::iter;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Weak};
use thiserror::Error;

/// Where metrics are served: `unix:PATH`, or an address and port such as `127.0.0.1:9100`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricsAddress {
    /// A Unix socket. Its mode is what the umask leaves. A file that a killed process left is
    /// replaced.
    Unix(PathBuf),
    /// A TCP socket of the kernel.
    Tcp(SocketAddr),
}

/// Text that is no [`MetricsAddress`].
#[derive(Clone, PartialEq, Eq, Error)]
#[error("expected unix:PATH, or an address and port such as 127.0.0.1:9100")]
pub struct ParseMetricsAddressError(());

neap_tcp::debug_as_display!(ParseMetricsAddressError);

impl FromStr for MetricsAddress {
    type Err = ParseMetricsAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some("") => Err(ParseMetricsAddressError(())),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| ParseMetricsAddressError(())),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// Served metrics. They end when this is dropped.
#[derive(Debug)]
pub struct Metrics {
    /// Ends before the file is removed.
    _server: Server,
    place: Place,
}

impl Metrics {
    /// Returns where they are served, with the port that the kernel has chosen.
    pub fn address(&self) -> &MetricsAddress {
        &self.place.0
    }
}

/// Where metrics are served, or will be.
#[derive(Debug)]
struct Place(MetricsAddress);

impl Drop for Place {
    fn drop(&mut self) {
        if let MetricsAddress::Unix(path) = &self.0 {
            // A sandbox may deny it by now. Then the next start replaces the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Serves the figures of a stack, and those that its application adds, until the returned value is
/// dropped. The stack may be dropped before.
///
/// # Errors
/// The address is taken, or the system refuses a socket or a thread.
pub fn serve(
    stack: &Stack,
    address: &MetricsAddress,
    application: Option<Arc<dyn Application>>,
) -> io::Result<Metrics> {
    listen(address)?.serve(stack, application)
}

/// A socket for metrics that is not served yet: whoever asks waits.
#[derive(Debug)]
pub struct MetricsListener {
    listener: Listener,
    place: Place,
}

impl MetricsListener {
    /// Returns where they will be served, with the port that the kernel has chosen.
    pub fn address(&self) -> &MetricsAddress {
        &self.place.0
    }

    /// Serves the figures of a stack, and those that its application adds, as [`serve`] does.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub fn serve(
        self,
        stack: &Stack,
        application: Option<Arc<dyn Application>>,
    ) -> io::Result<Metrics> {
        let Self { listener, place } = self;
        let service = MetricsService { engine: Arc::downgrade(stack.engine()), application };
        Ok(Metrics { _server: Server::start("neap-metrics", listener, service)?, place })
    }

    /// Serves pages of the application instead, until the returned value is dropped.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub fn serve_pages(self, pages: Arc<dyn Pages>) -> io::Result<Metrics> {
        let Self { listener, place } = self;
        let server = Server::start("neap-pages", listener, PagesService(pages))?;
        Ok(Metrics { _server: server, place })
    }
}

/// Makes the socket for metrics, for a program that gives up the right to do so before it has the
/// stack.
///
/// # Errors
/// The address is taken, or the system refuses the socket.
pub fn listen(address: &MetricsAddress) -> io::Result<MetricsListener> {
    let (listener, address) = match address {
        MetricsAddress::Unix(path) => {
            let listener = listen_at(path)?;
            (Listener::Unix(listener), MetricsAddress::Unix(path.clone()))
        }
        MetricsAddress::Tcp(wanted) => {
            let listener = TcpListener::bind(wanted)?;
            let address = listener.local_addr()?;
            (Listener::Tcp(listener), MetricsAddress::Tcp(address))
        }
    };
    Ok(MetricsListener { listener, place: Place(address) })
}

/// A listener in the place of one whose process was killed.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let taken = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => error,
        bound => return bound,
    };
    let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
    if !is_socket || !is_refused(path) {
        return Err(taken);
    }
    std::fs::remove_file(path)?;
    UnixListener::bind(path)
}

struct MetricsService {
    engine: Weak<Engine>,
    application: Option<Arc<dyn Application>>,
}

impl Service for MetricsService {
    fn admits(&self, _: &Stream) -> bool {
        true
    }

    fn answer(&self, received: &[u8]) -> Option<Answer> {
        answer(received, |path, with_body| match self.engine.upgrade() {
            _ if path != "/metrics" => None,
            Some(engine) => Some(http::ok(&self.text(&engine), with_body)),
            None => Some(http::refuse("503 Service Unavailable", "the stack is gone", with_body)),
        })
    }

    fn too_long(&self) -> Answer {
        too_long()
    }
}

/// The answer to a request, if it is whole. A page is found by its path.
fn answer(received: &[u8], page: impl FnOnce(&str, bool) -> Option<Vec<u8>>) -> Option<Answer> {
    let whole = match http::asked(received)? {
        Asked::Page { path, with_body } => page(&path, with_body)
            .unwrap_or_else(|| http::refuse("404 Not Found", "there is no such page", with_body)),
        Asked::OtherMethod => http::refuse("405 Method Not Allowed", "there is only GET", true),
        Asked::Nonsense => http::refuse("400 Bad Request", "this is no request of HTTP", true),
    };
    Some(Box::new(iter::once(whole)))
}

fn too_long() -> Answer {
    let why = "a request has at most 4096 bytes";
    Box::new(iter::once(http::refuse("431 Request Header Fields Too Large", why, true)))
}

/// Pages of an application, which are served as metrics are.
pub trait Pages: Send + Sync {
    /// The page at a path such as `/readyz`; `None` if there is none.
    fn page(&self, path: &str) -> Option<Page>;
}

/// A page of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Status of HTTP, such as 200.
    pub status: u16,
    /// The text.
    pub text: String,
}

struct PagesService(Arc<dyn Pages>);

impl Service for PagesService {
    fn admits(&self, _: &Stream) -> bool {
        true
    }

    fn answer(&self, received: &[u8]) -> Option<Answer> {
        answer(received, |path, with_body| {
            let Page { status, text } = self.0.page(path)?;
            Some(http::page(status, &text, with_body))
        })
    }

    fn too_long(&self) -> Answer {
        too_long()
    }
}

impl MetricsService {
    fn text(&self, engine: &Engine) -> String {
        let host = Host::new(engine);
        let figures = Figures {
            counters: counters(host, self.application.as_deref()),
            backlogs: backlogs(host),
            labelled: self.application.as_ref().map(|one| one.labelled()).unwrap_or_default(),
        };
        let mut registry = Registry::with_prefix("neap");
        registry.register_collector(Box::new(figures));
        let mut text = String::new();
        // A `String` takes everything.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

/// What waits in the qdisc of each queue.
fn backlogs(host: Host<'_>) -> Vec<Backlog> {
    let mut all = Vec::new();
    for interface in host.interfaces() {
        for (queue, report) in host.qdiscs(interface.id).into_iter().enumerate() {
            let name = interface.name.clone();
            let queue = queue.to_string();
            all.push(Backlog { interface: name, queue, bytes: report.stats.backlog_bytes });
        }
    }
    all
}

#[derive(Debug)]
struct Backlog {
    interface: String,
    queue: String,
    bytes: u64,
}

#[derive(Debug)]
struct Figures {
    counters: Vec<CounterReport>,
    backlogs: Vec<Backlog>,
    labelled: Vec<Labelled>,
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (drops, others): (Vec<_>, Vec<_>) =
            self.counters.iter().partition(|one| one.name.starts_with("drop."));
        for CounterReport { name, value, gauge } in others {
            let netstat = ["Ip", "Icmp", "Tcp", "Udp"].iter().any(|of| name.starts_with(of));
            let name: String =
                name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            if *gauge {
                let number = i64::try_from(*value).unwrap_or(i64::MAX);
                encode(&mut encoder, &name, "as neap nstat prints it", &ConstGauge::new(number))?;
            } else {
                let name = if netstat { format!("netstat_{name}") } else { name };
                let counter = ConstCounter::new(*value);
                encode(&mut encoder, &name, "as neap nstat prints it", &counter)?;
            }
        }
        let help = "Packets that were dropped, by reason";
        let mut drops_encoder =
            encoder.encode_descriptor("drops", help, None, MetricType::Counter)?;
        for CounterReport { name, value, .. } in drops {
            let reason = name.trim_start_matches("drop.");
            let labels = [("reason", reason)];
            ConstCounter::new(*value).encode(drops_encoder.encode_family(&labels)?)?;
        }
        let help = "Bytes that wait in a qdisc";
        let mut waiting =
            encoder.encode_descriptor("qdisc_backlog_bytes", help, None, MetricType::Gauge)?;
        for Backlog { interface, queue, bytes } in &self.backlogs {
            let labels = [("interface", interface.as_str()), ("queue", queue.as_str())];
            let number = i64::try_from(*bytes).unwrap_or(i64::MAX);
            ConstGauge::new(number).encode(waiting.encode_family(&labels)?)?;
        }
        encode_labelled(&mut encoder, &self.labelled)
    }
}

/// Each name once, with a line for each thing.
fn encode_labelled(encoder: &mut DescriptorEncoder<'_>, all: &[Labelled]) -> fmt::Result {
    let mut names: Vec<_> = all.iter().map(|one| (one.name, one.gauge)).collect();
    names.sort_unstable();
    names.dedup();
    for (name, is_gauge) in names {
        let kind = if is_gauge { MetricType::Gauge } else { MetricType::Counter };
        let mut family = encoder.encode_descriptor(name, "as neap nstat prints it", None, kind)?;
        for one in all.iter().filter(|one| one.name == name) {
            let labels = [(one.label, one.of.as_str())];
            let line = family.encode_family(&labels)?;
            if is_gauge {
                ConstGauge::new(i64::try_from(one.value).unwrap_or(i64::MAX)).encode(line)?;
            } else {
                ConstCounter::new(one.value).encode(line)?;
            }
        }
    }
    Ok(())
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    let one: MetricEncoder<'_> =
        encoder.encode_descriptor(name, help, None, metric.metric_type())?;
    metric.encode(one)
}
