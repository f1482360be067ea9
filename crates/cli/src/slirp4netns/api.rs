//! The API socket: ports are published, listed and closed while the network is there.
//!
//! One request in JSON per connection, and one answer. A request has at most [`MOST_BYTES`] bytes
//! and [`PATIENCE`] to arrive; beyond [`MOST_CLIENTS`] connections at the same time, those that
//! come are closed. Requests reach the gateway through its handle, so that no client holds up
//! flows.

use super::Failure;
use super::network::Network;
use neap_gateway::{GatewayHandle, Publication, PublishedId, PublishedPort, Transport};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a request that is too long.
const MOST_BYTES: usize = 4096;
/// Time for a request, and for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at the same time.
const MOST_CLIENTS: usize = 16;
/// Pause after a connection that could not be accepted, as when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that nobody serves yet.
#[derive(Debug)]
pub(super) struct Api {
    listener: UnixListener,
    path: PathBuf,
}

/// The file of a socket, which is removed in the end.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A sandbox keeps the file; the next start replaces it.
        let _ = fs::remove_file(&self.0);
    }
}

/// What a client may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Add(Publication),
    List,
    Remove(PublishedId),
}

impl Api {
    /// Makes a socket for the own user, in the place of one that a program has left behind.
    pub(super) fn listen(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                fs::remove_file(path).map_err(|error| {
                    Failure::System(format!("--api-socket {shown}: an old one stays: {error}"))
                })?;
            }
            Ok(_) => {
                let why = format!("--api-socket {shown}: there is a file that is no socket");
                return Err(Failure::Arguments(why));
            }
            Err(_) => {}
        }
        let failed = |error: io::Error| Failure::System(format!("--api-socket {shown}: {error}"));
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Serves it by threads that wait for clients.
    pub(super) fn serve(self, handle: GatewayHandle, network: &Network) -> SocketFile {
        let Self { listener, path } = self;
        let (guest, gateway) = (network.guest(), network.gateway());
        // Each client has a clone.
        let clients = Arc::new(());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    thread::sleep(PAUSE);
                    continue;
                };
                if Arc::strong_count(&clients) > MOST_CLIENTS {
                    continue;
                }
                let (client, handle) = (clients.clone(), handle.clone());
                let serve = move || {
                    // A client that has gone needs no answer.
                    let _ = converse(stream, &handle, guest, gateway);
                    drop(client);
                };
                // Without a thread the connection is closed.
                let _ = thread::Builder::new().spawn(serve);
            }
        });
        SocketFile(path)
    }
}

/// Answers one request.
fn converse(
    mut stream: UnixStream,
    handle: &GatewayHandle,
    guest: Ipv4Addr,
    gateway: Ipv4Addr,
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read(&mut stream)?;
    let answer = match request.and_then(|value| parse(&value, guest, gateway)) {
        Ok(request) => carry_out(request, handle),
        Err(why) => refusal(why),
    };
    stream.write_all(answer.to_string().as_bytes())
}

/// Reads until there is a whole value, or the client has no more to say.
fn read(stream: &mut UnixStream) -> io::Result<Result<Value, &'static str>> {
    let (mut bytes, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    let mut part = [0; MOST_BYTES];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let count = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..count]);
        if bytes.len() >= MOST_BYTES {
            return Ok(Err("too large message"));
        }
        match serde_json::from_slice(&bytes) {
            Ok(value) => return Ok(Ok(value)),
            Err(error) if error.is_eof() && count > 0 => {}
            Err(_) => return Ok(Err("cannot parse JSON")),
        }
    }
}

fn parse(value: &Value, guest: Ipv4Addr, gateway: Ipv4Addr) -> Result<Request, &'static str> {
    let object = value.as_object().ok_or("json_object() failed")?;
    let execute = object.get("execute").and_then(Value::as_str).ok_or("no execute found")?;
    let arguments = object.get("arguments").unwrap_or(&Value::Null);
    match execute {
        "add_hostfwd" => parse_publication(arguments, guest, gateway).map(Request::Add),
        "list_hostfwd" => Ok(Request::List),
        "remove_hostfwd" => {
            let id = arguments["id"].as_u64().ok_or("remove_hostfwd: bad arguments.id")?;
            Ok(Request::Remove(id.into()))
        }
        _ => Err("unknown execute"),
    }
}

fn parse_publication(
    arguments: &Value,
    guest: Ipv4Addr,
    gateway: Ipv4Addr,
) -> Result<Publication, &'static str> {
    let (transport, is_v6) = match arguments["proto"].as_str() {
        Some("tcp" | "tcp4") => (Transport::Tcp, false),
        Some("udp" | "udp4") => (Transport::Udp, false),
        Some("tcp6") => (Transport::Tcp, true),
        Some("udp6") => (Transport::Udp, true),
        _ => return Err("add_hostfwd: bad arguments.proto"),
    };
    let any: IpAddr =
        if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let host = address(&arguments["host_addr"], any)
        .filter(|host| host.is_ipv6() == is_v6)
        .ok_or("add_hostfwd: bad arguments.host_addr")?;
    let host_port = port(&arguments["host_port"]).ok_or("add_hostfwd: bad arguments.host_port")?;
    let guest = address(&arguments["guest_addr"], guest.into())
        .filter(IpAddr::is_ipv4)
        .ok_or("add_hostfwd: bad arguments.guest_addr")?;
    let guest_port =
        port(&arguments["guest_port"]).ok_or("add_hostfwd: bad arguments.guest_port")?;
    Ok(Publication {
        transport,
        port: SocketAddr::new(host, host_port),
        guest: SocketAddr::new(guest, guest_port),
        stand_in: gateway.into(),
    })
}

fn address(value: &Value, default: IpAddr) -> Option<IpAddr> {
    match value {
        Value::Null => Some(default),
        Value::String(text) if text.is_empty() => Some(default),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn port(value: &Value) -> Option<u16> {
    let number = value.as_f64().filter(|number| (1.0..=65535.0).contains(number));
    // Clients that know floating point only write 80.0.
    number.map(|number| number as u16)
}

fn carry_out(request: Request, handle: &GatewayHandle) -> Value {
    match request {
        Request::Add(publication) => match handle.publish(publication) {
            Ok(id) => json!({ "return": { "id": id.to_u64() } }),
            Err(error) => refusal(&format!("add_hostfwd: slirp_add_hostfwd failed: {error}")),
        },
        Request::List => match handle.published() {
            Ok(ports) => {
                let entries: Vec<_> = ports.iter().map(entry).collect();
                // slirp4netns answers without "return", and its manual has it.
                json!({ "return": { "entries": entries }, "entries": entries })
            }
            Err(error) => refusal(&format!("list_hostfwd: {error}")),
        },
        Request::Remove(id) => match handle.unpublish(id) {
            Ok(()) => json!({ "return": {} }),
            Err(_) => refusal("remove_hostfwd: bad arguments.id"),
        },
    }
}

fn entry(port: &PublishedPort) -> Value {
    let Publication { transport, port: host, guest, .. } = port.publication;
    let proto = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    json!({
        "id": port.id.to_u64(),
        "proto": proto,
        "host_addr": host.ip(),
        "host_port": host.port(),
        "guest_addr": guest.ip(),
        "guest_port": guest.port(),
    })
}

fn refusal(why: &str) -> Value {
    json!({ "error": { "desc": format!("bad request: {why}") } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

    fn parse_text(text: &str) -> Result<Request, &'static str> {
        parse(&serde_json::from_str(text).expect("JSON"), GUEST, GATEWAY)
    }

    #[test]
    fn a_request_to_publish_has_defaults() {
        let request = r#"{"execute": "add_hostfwd", "arguments":
            {"proto": "tcp", "host_addr": "", "host_port": 8080, "guest_port": 80.0}}"#;
        let expected = Publication {
            transport: Transport::Tcp,
            port: "0.0.0.0:8080".parse().expect("an address"),
            guest: "10.0.2.100:80".parse().expect("an address"),
            stand_in: GATEWAY.into(),
        };
        assert_eq!(parse_text(request), Ok(Request::Add(expected)));
        let request = request.replace("tcp", "udp6");
        let expected = Publication {
            transport: Transport::Udp,
            port: "[::]:8080".parse().expect("an address"),
            ..expected
        };
        assert_eq!(parse_text(&request), Ok(Request::Add(expected)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let add = |arguments: &str| {
            let text = format!(r#"{{"execute": "add_hostfwd", "arguments": {{{arguments}}}}}"#);
            parse_text(&text).expect_err(arguments)
        };
        let tcp = r#""proto": "tcp""#;
        assert_eq!(add(r#""proto": "sctp""#), "add_hostfwd: bad arguments.proto");
        assert_eq!(add(""), "add_hostfwd: bad arguments.proto");
        assert_eq!(add(tcp), "add_hostfwd: bad arguments.host_port");
        let port = |number: &str| format!(r#"{tcp}, "host_port": {number}"#);
        for number in ["0", "65536", "-1", "\"80\""] {
            assert_eq!(add(&port(number)), "add_hostfwd: bad arguments.host_port");
        }
        assert_eq!(add(&port("80")), "add_hostfwd: bad arguments.guest_port");
        let host = format!(r#"{tcp}, "host_addr": "::1", "host_port": 80"#);
        assert_eq!(add(&host), "add_hostfwd: bad arguments.host_addr");
        let guest = format!(r#"{}, "guest_addr": 7"#, port("80"));
        assert_eq!(add(&guest), "add_hostfwd: bad arguments.guest_addr");
        assert_eq!(parse_text("[]"), Err("json_object() failed"));
        assert_eq!(parse_text("{}"), Err("no execute found"));
        assert_eq!(parse_text(r#"{"execute": "dance"}"#), Err("unknown execute"));
        let remove = r#"{"execute": "remove_hostfwd", "arguments": {"id": "1"}}"#;
        assert_eq!(parse_text(remove), Err("remove_hostfwd: bad arguments.id"));
    }

    #[test]
    fn a_request_may_come_in_pieces_but_not_without_end() {
        let ask = |bytes: Vec<Vec<u8>>| {
            let (mut ours, mut theirs) = UnixStream::pair().expect("a pair");
            let client = thread::spawn(move || {
                for part in bytes {
                    // A request that was refused is not read to its end.
                    let _ = theirs.write_all(&part);
                }
                let _ = theirs.shutdown(std::net::Shutdown::Write);
                theirs
            });
            let read = read(&mut ours).expect("no time runs out");
            client.join().expect("no panic");
            read
        };
        let parts = [&br#"{"execute":"#[..], br#" "list"#, br#"_hostfwd"}"#];
        let value = ask(parts.map(<[u8]>::to_vec).to_vec()).expect("JSON");
        assert_eq!(value["execute"], "list_hostfwd");
        assert_eq!(ask(vec![b"{\"execute\"".to_vec()]), Err("cannot parse JSON"));
        assert_eq!(ask(Vec::new()), Err("cannot parse JSON"));
        assert_eq!(ask(vec![vec![b' '; MOST_BYTES]]), Err("too large message"));
        assert_eq!(ask(vec![vec![b'['; 4000]]), Err("cannot parse JSON"));
    }
}
