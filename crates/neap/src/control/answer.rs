//! What a control socket answers.

use super::report::{CounterReport, SocketReport, StackReport};
use super::{Application, Labelled, VERSION};
use crate::clock;
use crate::engine::Engine;
use crate::host::Host;
use crate::info::Sockets;
use crate::serving::{Answer, Service, Stream};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::iter;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Unit in which stacks count memory, bytes.
const PAGE: u64 = 4096;

/// Answers of one stack.
pub(super) struct ControlService {
    engine: Weak<Engine>,
    name: String,
    application: Option<Arc<dyn Application>>,
}

/// What a request is expected to be.
const EXPECTED: &str = "expected a line such as {\"neap\":1,\"get\":\"sockets\"}; there are stack, \
                        sockets, counters, and what the application has";

#[derive(Deserialize)]
struct Request {
    neap: u32,
    get: String,
}

#[derive(Serialize)]
struct Failed<'a> {
    error: &'a str,
}

#[derive(Serialize)]
struct End {
    end: usize,
}

fn line(value: &impl Serialize) -> Vec<u8> {
    // Reports have no map with keys that are not text, and nothing that fails.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

fn failed(error: &str) -> Answer {
    Box::new(iter::once(line(&Failed { error })))
}

impl Service for ControlService {
    fn admits(&self, peer: &Stream) -> bool {
        // Not by rustix, whose number of a process is never 0: it is 0 for a peer that this process
        // does not see, outside of its PID namespace.
        getsockopt(peer, PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
    }

    fn answer(&self, received: &[u8]) -> Option<Answer> {
        let end = received.iter().position(|&byte| byte == b'\n')?;
        let Ok(Request { neap, get }) = serde_json::from_slice(&received[..end]) else {
            return Some(failed(EXPECTED));
        };
        if neap != VERSION {
            return Some(failed(&format!("this side speaks version {VERSION} of the protocol")));
        }
        let Some(engine) = self.engine.upgrade() else {
            return Some(failed("the stack is gone"));
        };
        let head = iter::once(line(&self.stack(Host::new(&engine))));
        Some(match get.as_str() {
            "stack" => Box::new(head.chain(iter::once(line(&End { end: 0 })))),
            "sockets" => Box::new(head.chain(self.sockets(Host::new(&engine)))),
            "counters" => {
                let mut counters = counters(Host::new(&engine), self.application.as_deref());
                counters.extend(self.labelled());
                let end = line(&End { end: counters.len() });
                let lines = counters.into_iter().map(|counter| line(&counter));
                Box::new(head.chain(lines).chain(iter::once(end)))
            }
            subject => {
                let application = self.application.as_ref();
                let Some(lines) = application.and_then(|one| one.lines(subject)) else {
                    return Some(failed(EXPECTED));
                };
                let end = line(&End { end: lines.len() });
                let lines = lines.into_iter().map(|line| (line + "\n").into_bytes());
                Box::new(head.chain(lines).chain(iter::once(end)))
            }
        })
    }

    fn too_long(&self) -> Answer {
        failed("a request is at most 4096 bytes")
    }
}

impl ControlService {
    pub(super) fn new(
        engine: &Arc<Engine>,
        name: String,
        application: Option<Arc<dyn Application>>,
    ) -> Self {
        Self { engine: Arc::downgrade(engine), name, application }
    }

    fn stack(&self, host: Host<'_>) -> StackReport {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default();
        let interfaces = host.interfaces();
        let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        StackReport {
            neap: VERSION,
            pid: std::process::id(),
            name: self.name.clone(),
            program: program.to_string_lossy().into_owned(),
            uid: geteuid().as_raw(),
            uptime: clock::now().as_nanos(),
            addresses: addresses.map(ToString::to_string).collect(),
        }
    }

    /// Those of several things, each by a name of its own.
    fn labelled(&self) -> impl Iterator<Item = CounterReport> + use<> {
        let labelled = self.application.as_ref().map(|application| application.labelled());
        labelled.unwrap_or_default().into_iter().map(|one| {
            let Labelled { name, of, value, gauge, .. } = one;
            CounterReport { name: format!("{name}.{of}"), value, gauge }
        })
    }

    /// The lines of a listing. The figures are of the time of the call, the text is made as it is
    /// taken.
    fn sockets(&self, host: Host<'_>) -> impl Iterator<Item = Vec<u8>> + Send + use<> {
        let Sockets { flows, listeners, buckets, udp, .. } = host.sockets();
        let relays = self.application.as_ref().map(|application| application.relays());
        let relays = Arc::new(relays.unwrap_or_default());
        let of_flows = relays.clone();
        let others = self.application.as_ref().map(|application| application.sockets());
        let others = others.unwrap_or_default();
        // In the order of the lines.
        let ends = udp.iter().map(|udp| (udp.local, udp.remote));
        let ends = ends.chain(listeners.iter().map(|one| (one.local, None)));
        let ends = ends.chain(flows.iter().map(|flow| (flow.local, Some(flow.remote))));
        let ends = ends.chain(buckets.iter().map(|bucket| (bucket.local, Some(bucket.remote))));
        let named: HashMap<_, Arc<str>> =
            host.interfaces().into_iter().map(|one| (one.id, one.name.into())).collect();
        let interfaces =
            ends.map(|(local, remote)| named.get(&host.interface_of(local, remote)?).cloned());
        let interfaces: Vec<_> = interfaces.collect();
        let end = line(&End { end: interfaces.len() + others.len() });
        let udp = udp.into_iter().map(|udp| SocketReport::of_udp(&udp));
        let listeners = listeners.into_iter().map(|one| SocketReport::of_listener(&one));
        let flows = flows.into_iter().map(move |flow| {
            let relay = of_flows.get(&(flow.local, flow.remote)).cloned();
            SocketReport::of_flow(&flow).relayed(relay)
        });
        let buckets = buckets.into_iter().map(move |bucket| {
            let relay = relays.get(&(bucket.local, bucket.remote)).cloned();
            SocketReport::of_bucket(&bucket).relayed(relay)
        });
        let all = udp.chain(listeners).chain(flows).chain(buckets);
        let lines = all.zip(interfaces).map(|(socket, interface)| {
            let interface = interface.map(|name| name.to_string());
            line(&SocketReport { interface, ..socket })
        });
        let others = others.into_iter().map(|socket| line(&socket));
        lines.chain(others).chain(iter::once(end))
    }
}

/// All counters and gauges of a stack and its application that are of no kind of things.
pub(crate) fn counters(
    host: Host<'_>,
    application: Option<&dyn Application>,
) -> Vec<CounterReport> {
    let report =
        |gauge| move |name: &str, value| CounterReport { name: name.to_owned(), value, gauge };
    let (counter, gauge) = (report(false), report(true));
    let mut all = Vec::new();
    all.extend(host.ip_counters().into_iter().map(|(which, n)| counter(which.name(), n)));
    all.extend(host.tcp_counters().into_iter().map(|(which, n)| counter(which.name(), n)));
    all.extend(host.drops().into_iter().map(|(why, n)| counter(&format!("drop.{why}"), n)));
    all.push(counter("drop.device", host.receive_drops()));
    let usage = host.usage();
    let gauges = [
        ("TcpConnections", usage.tcp.connections as u64),
        ("TcpListeners", usage.tcp.listeners as u64),
        ("TcpTimeWait", usage.tcp.time_wait as u64),
        ("TcpOrphans", usage.tcp.orphans as u64),
        ("TcpRequests", usage.tcp.requests as u64),
        ("TcpPending", usage.pending as u64),
        ("TcpMemoryBytes", usage.memory_pages * PAGE),
        ("UdpSockets", usage.udp as u64),
        ("UdpMemoryBytes", usage.udp_memory_pages * PAGE),
    ];
    all.extend(gauges.into_iter().map(|(name, n)| gauge(name, n)));
    if let Some(application) = application {
        all.extend(application.counters().into_iter().map(|(name, n)| counter(name, n)));
        all.extend(application.gauges().into_iter().map(|(name, n)| gauge(name, n)));
    }
    all
}
