//! The API socket: ports are published, listed and closed while the network is there.
//!
//! One request in JSON per connection, and one answer. A request has at most [`MOST_BYTES`] bytes
//! and [`PATIENCE`] to arrive; beyond [`MOST_CLIENTS`] connections at the same time, those that
//! come are closed. Requests reach the gateway through its handle, so that no client holds up
//! flows.

use super::Failure;
use super::network::Network;
use super::request::{MOST_BYTES, Received, Request, receive};
use neap_gateway::{GatewayHandle, Publication, PublishedPort, Transport};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for a request, and for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at the same time.
const MOST_CLIENTS: usize = 16;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
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
        let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None).map_err(failed)?;
        socket.bind(&SockAddr::unix(path).map_err(failed)?).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        // Nobody can connect before, so nobody has who may not.
        socket.listen(BACKLOG).map_err(failed)?;
        Ok(Self { listener: OwnedFd::from(socket).into(), path: path.to_owned() })
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
    let answer = match request.and_then(|value| Request::parse(&value, guest, gateway)) {
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
        match receive(&bytes, count == 0) {
            Received::Part => {}
            Received::Value(value) => return Ok(Ok(value)),
            Received::Nonsense(why) => return Ok(Err(why)),
        }
    }
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
