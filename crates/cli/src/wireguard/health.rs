//! The pages of `-i`, as wireproxy has them: the interface in the words of WireGuard's
//! cross-platform interface, and whether all addresses of CheckAlive answer.

use super::alive::Alive;
use neap::metrics::{Page, Pages};
use neap_wireguard::{Status, WireguardHandle};
use std::fmt::Write;
use std::time::UNIX_EPOCH;

/// What stands for a secret.
const REDACTED: &str = "REDACTED";

/// What the pages are made from.
pub(super) struct Health {
    pub(super) handle: WireguardHandle,
    pub(super) alive: Alive,
}

impl Pages for Health {
    fn page(&self, path: &str) -> Option<Page> {
        match clean(path).as_str() {
            "/metrics" => Some(Page { status: 200, text: metrics(&self.handle.status()) }),
            "/readyz" => Some(readiness(&self.alive)),
            _ => None,
        }
    }
}

/// The shortest path to the same place, as wireproxy makes it.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn readiness(alive: &Alive) -> Page {
    let (answers, is_alive) = alive.answers();
    let answers = answers.into_iter().map(|(ip, second)| (ip.to_string(), second.into()));
    let answers = serde_json::Value::Object(answers.collect());
    Page { status: if is_alive { 200 } else { 503 }, text: format!("{answers}\n") }
}

/// The answer to `get=1` of the configuration protocol, secrets left out.
fn metrics(status: &Status) -> String {
    let mut text = format!("private_key={REDACTED}\n");
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        // A `String` takes everything.
        let _ = writeln!(text, "{key}={value}");
    };
    line("listen_port", &status.listen_port);
    if let Some(mark) = status.fwmark {
        line("fwmark", &mark);
    }
    for peer in &status.peers {
        line("public_key", &hex(peer.public_key.as_bytes()));
        line("preshared_key", &REDACTED);
        line("protocol_version", &1);
        if let Some(endpoint) = peer.endpoint {
            line("endpoint", &endpoint);
        }
        let latest = peer.latest_handshake.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let latest = latest.unwrap_or_default();
        line("last_handshake_time_sec", &latest.as_secs());
        line("last_handshake_time_nsec", &latest.subsec_nanos());
        line("tx_bytes", &peer.sent);
        line("rx_bytes", &peer.received);
        let keepalive = peer.persistent_keepalive.unwrap_or_default();
        line("persistent_keepalive_interval", &keepalive.as_secs());
        for prefix in &peer.allowed_ips {
            line("allowed_ip", prefix);
        }
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A `String` takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
