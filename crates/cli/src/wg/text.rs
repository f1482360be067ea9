//! Interfaces and peers in the words of wg(8).

use super::Field;
use super::report::{InterfaceReport, PeerReport};
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What stands for a secret.
const HIDDEN: &str = "(hidden)";
/// What stands for something that is not there.
const NONE: &str = "(none)";
/// What stands for a setting that is not in use.
const OFF: &str = "off";

/// Units of time, seconds.
const UNITS: [(&str, u64); 5] =
    [("year", 365 * 86_400), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)];

/// An interface with its peers, those first whose handshake is the latest.
pub(super) fn whole(interface: &InterfaceReport, now: SystemTime) -> String {
    let InterfaceReport { name, public_key, listen_port, fwmark, peers } = interface;
    let mut text = format!("interface: {name}\n");
    let mut line = |key: &str, value: &str| {
        // A `String` takes everything.
        let _ = writeln!(text, "  {key}: {value}");
    };
    line("public key", public_key);
    line("private key", HIDDEN);
    if *listen_port != 0 {
        line("listening port", &listen_port.to_string());
    }
    if let Some(mark) = fwmark {
        line("fwmark", &format!("{mark:#x}"));
    }
    let mut peers: Vec<_> = peers.iter().collect();
    peers.sort_by_key(|peer| std::cmp::Reverse(peer.latest_handshake));
    for one in peers {
        text += "\n";
        text += &peer(one, now);
    }
    text
}

fn peer(peer: &PeerReport, now: SystemTime) -> String {
    let mut text = format!("peer: {}\n", peer.public_key);
    let mut line = |key: &str, value: &str| {
        // A `String` takes everything.
        let _ = writeln!(text, "  {key}: {value}");
    };
    if peer.has_preshared_key {
        line("preshared key", HIDDEN);
    }
    if let Some(endpoint) = peer.endpoint {
        line("endpoint", &endpoint.to_string());
    }
    line("allowed ips", &joined(&peer.allowed_ips, ", "));
    if let Some((seconds, _)) = peer.latest_handshake {
        line("latest handshake", &ago(UNIX_EPOCH + Duration::from_secs(seconds), now));
    }
    if (peer.received, peer.sent) != (0, 0) {
        let (received, sent) = (bytes(peer.received), bytes(peer.sent));
        line("transfer", &format!("{received} received, {sent} sent"));
    }
    if let Some(seconds) = peer.persistent_keepalive {
        line("persistent keepalive", &format!("every {}", time(seconds)));
    }
    text
}

fn joined(parts: &[String], between: &str) -> String {
    if parts.is_empty() { NONE.to_owned() } else { parts.join(between) }
}

/// How long ago something was.
fn ago(then: SystemTime, now: SystemTime) -> String {
    match now.duration_since(then).map(|past| past.as_secs()) {
        Ok(0) => "Now".to_owned(),
        Ok(seconds) => format!("{} ago", time(seconds)),
        Err(_) => "(System clock wound backward; connection problems may ensue.)".to_owned(),
    }
}

/// A length of time in all units that it has.
fn time(mut seconds: u64) -> String {
    let mut parts = Vec::new();
    for (unit, length) in UNITS {
        let count = seconds / length;
        seconds %= length;
        if count > 0 {
            parts.push(format!("{count} {unit}{}", if count == 1 { "" } else { "s" }));
        }
    }
    parts.join(", ")
}

/// A number of bytes in the largest unit that it fills.
fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let power = (count.max(1).ilog2() / 10).min(4) as usize;
    let Some(unit) = power.checked_sub(1).and_then(|index| units.get(index)) else {
        return format!("{count} B");
    };
    format!("{:.2} {unit}", count as f64 / f64::from(1_u32 << 10).powi(power as i32))
}

/// One thing of an interface, or of each of its peers, in columns. The name is in front where all
/// interfaces are asked for.
pub(super) fn field(interface: &InterfaceReport, field: Field, is_all: bool) -> String {
    let prefix = if is_all { format!("{}\t", interface.name) } else { String::new() };
    let mark = interface.fwmark.map_or(OFF.to_owned(), |mark| format!("{mark:#x}"));
    let port = interface.listen_port;
    let mut lines = Vec::new();
    match field {
        Field::PublicKey => lines.push(interface.public_key.clone()),
        Field::PrivateKey => lines.push(HIDDEN.to_owned()),
        Field::ListenPort => lines.push(port.to_string()),
        Field::Fwmark => lines.push(mark),
        Field::Dump => {
            lines.push(format!("{HIDDEN}\t{}\t{port}\t{mark}", interface.public_key));
            lines.extend(interface.peers.iter().map(|peer| of_peer(peer, field)));
        }
        _ => lines.extend(interface.peers.iter().map(|peer| of_peer(peer, field))),
    }
    lines.iter().map(|line| format!("{prefix}{line}\n")).collect()
}

fn of_peer(peer: &PeerReport, field: Field) -> String {
    let shared = if peer.has_preshared_key { HIDDEN } else { NONE };
    let endpoint = peer.endpoint.map_or(NONE.to_owned(), |endpoint| endpoint.to_string());
    let handshake = peer.latest_handshake.map_or(0, |(seconds, _)| seconds);
    let keepalive = peer.persistent_keepalive;
    let keepalive = keepalive.map_or(OFF.to_owned(), |seconds| seconds.to_string());
    let columns = match field {
        Field::PresharedKeys => shared.to_owned(),
        Field::Endpoints => endpoint,
        Field::AllowedIps => joined(&peer.allowed_ips, " "),
        Field::LatestHandshakes => handshake.to_string(),
        Field::Transfer => format!("{}\t{}", peer.received, peer.sent),
        Field::PersistentKeepalive => keepalive,
        Field::Dump => {
            let allowed = joined(&peer.allowed_ips, ",");
            format!(
                "{shared}\t{endpoint}\t{allowed}\t{handshake}\t{}\t{}\t{keepalive}",
                peer.received, peer.sent
            )
        }
        _ => return peer.public_key.clone(),
    };
    format!("{}\t{columns}", peer.public_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface() -> InterfaceReport {
        let idle = PeerReport {
            public_key: "IDLE=".to_owned(),
            has_preshared_key: false,
            endpoint: None,
            allowed_ips: Vec::new(),
            latest_handshake: None,
            received: 0,
            sent: 0,
            persistent_keepalive: None,
            failed_handshakes: 0,
        };
        let busy = PeerReport {
            public_key: "BUSY=".to_owned(),
            has_preshared_key: true,
            endpoint: "[2001:db8::1]:51820".parse().ok(),
            allowed_ips: ["10.0.0.0/24", "fd00::/64"].map(str::to_owned).to_vec(),
            latest_handshake: Some((1000, 5)),
            received: 1_258_291,
            sent: 3 << 10,
            persistent_keepalive: Some(25),
            ..idle.clone()
        };
        InterfaceReport {
            name: "wg0".to_owned(),
            public_key: "OWN=".to_owned(),
            listen_port: 51820,
            fwmark: Some(0xca6c),
            peers: vec![idle, busy],
        }
    }

    #[test]
    fn an_interface_is_printed_as_wg_does() {
        let now = UNIX_EPOCH + Duration::from_secs(1063);
        let expected = "\
interface: wg0
  public key: OWN=
  private key: (hidden)
  listening port: 51820
  fwmark: 0xca6c

peer: BUSY=
  preshared key: (hidden)
  endpoint: [2001:db8::1]:51820
  allowed ips: 10.0.0.0/24, fd00::/64
  latest handshake: 1 minute, 3 seconds ago
  transfer: 1.20 MiB received, 3.00 KiB sent
  persistent keepalive: every 25 seconds

peer: IDLE=
  allowed ips: (none)
";
        assert_eq!(whole(&interface(), now), expected);
    }

    #[test]
    fn fields_are_printed_in_columns() {
        let dump = "\
(hidden)\tOWN=\t51820\t0xca6c
IDLE=\t(none)\t(none)\t(none)\t0\t0\t0\toff
BUSY=\t(hidden)\t[2001:db8::1]:51820\t10.0.0.0/24,fd00::/64\t1000\t1258291\t3072\t25
";
        assert_eq!(field(&interface(), Field::Dump, false), dump);
        assert_eq!(field(&interface(), Field::Peers, true), "wg0\tIDLE=\nwg0\tBUSY=\n");
        assert_eq!(field(&interface(), Field::ListenPort, true), "wg0\t51820\n");
        let allowed = "IDLE=\t(none)\nBUSY=\t10.0.0.0/24 fd00::/64\n";
        assert_eq!(field(&interface(), Field::AllowedIps, false), allowed);
    }

    #[test]
    fn peers_are_in_the_order_of_their_handshakes() {
        let InterfaceReport { peers, .. } = interface();
        let peer = |key: &str, latest| PeerReport {
            public_key: key.to_owned(),
            latest_handshake: latest,
            ..peers[0].clone()
        };
        let peers = vec![
            peer("NEVER=", None),
            peer("OLD=", Some((999, 999_999_999))),
            peer("SAME=", Some((1000, 5))),
            peer("LATEST=", Some((1000, 6))),
        ];
        let interface = InterfaceReport { peers, ..interface() };
        let text = whole(&interface, UNIX_EPOCH + Duration::from_secs(1000));
        let keys: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("peer: ")).collect();
        assert_eq!(keys, ["LATEST=", "SAME=", "OLD=", "NEVER="]);
        // For programs they stay as they are.
        let listed = field(&interface, Field::Peers, false);
        assert_eq!(listed, "NEVER=\nOLD=\nSAME=\nLATEST=\n");
    }

    #[test]
    fn sizes_have_the_largest_unit_that_they_fill() {
        let [kib, mib, gib, tib] = [10, 20, 30, 40].map(|power| 1_u64 << power);
        for (count, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (kib - 1, "1023 B"),
            (kib, "1.00 KiB"),
            (kib + 5, "1.00 KiB"),
            (kib + 6, "1.01 KiB"),
            (mib - 1, "1024.00 KiB"),
            (mib, "1.00 MiB"),
            (3 * mib / 2, "1.50 MiB"),
            (gib - 1, "1024.00 MiB"),
            (gib, "1.00 GiB"),
            (5 * gib / 2, "2.50 GiB"),
            (tib - 1, "1024.00 GiB"),
            (tib, "1.00 TiB"),
            (1024 * tib, "1024.00 TiB"),
            (u64::MAX, "16777216.00 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_have_all_units_that_are_not_zero() {
        let [minute, hour, day, year] = [60, 3600, 86_400, 365 * 86_400];
        let then = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (seconds, text) in [
            (1, "1 second"),
            (2, "2 seconds"),
            (minute - 1, "59 seconds"),
            (minute, "1 minute"),
            (minute + 1, "1 minute, 1 second"),
            (2 * minute, "2 minutes"),
            (hour - 1, "59 minutes, 59 seconds"),
            (hour, "1 hour"),
            (hour + 1, "1 hour, 1 second"),
            (day - 1, "23 hours, 59 minutes, 59 seconds"),
            (day, "1 day"),
            (day + hour + minute + 1, "1 day, 1 hour, 1 minute, 1 second"),
            (year - day, "364 days"),
            (year, "1 year"),
            (2 * year + 3 * day + 4 * hour, "2 years, 3 days, 4 hours"),
            (10 * year + 1, "10 years, 1 second"),
        ] {
            assert_eq!(time(seconds), text);
            let now = then + Duration::from_secs(seconds) + Duration::from_millis(999);
            assert_eq!(ago(then, now), format!("{text} ago"));
        }
        assert_eq!(ago(then, then + Duration::from_millis(999)), "Now");
        let backward = "(System clock wound backward; connection problems may ensue.)";
        assert_eq!(ago(then, then - Duration::from_nanos(1)), backward);
    }
}
