//! What systemd is told of a service (`sd_notify(3)`), if it has asked for it.

use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The way to the service manager, opened before sockets of this kind are given up.
#[derive(Debug, Default)]
pub(super) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// The socket that the environment names, or none. One that is of no use is told of, since
    /// whoever waits there ends the process.
    pub(super) fn new() -> Self {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Self(None) };
        let connected = connect(&path).inspect_err(|error| {
            let path = path.display();
            tracing::warn!(
                "NOTIFY_SOCKET {path}: {error}: nobody learns that the tunnel is there; a unit \
                 with RestrictAddressFamilies needs AF_UNIX among them"
            );
        });
        Self(connected.ok())
    }

    /// Everything is served.
    pub(super) fn ready(&self) {
        self.tell("READY=1\n");
    }

    /// The file is read again; [`ready`](Self::ready) ends that.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\n"));
    }

    /// The end has begun.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\n");
    }

    fn tell(&self, what: &str) {
        if let Some(socket) = &self.0 {
            // Whoever does not listen need not know.
            let _ = socket.send(what.as_bytes());
        }
    }
}

/// A path, or an abstract name behind an `@`.
fn connect(path: &OsStr) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_by_an_abstract_name() {
        let name = format!("neap-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("a socket");
        let notifier = Notifier(connect(OsStr::new(&format!("@{name}"))).ok());
        notifier.ready();
        notifier.reloading();
        let mut bytes = [0; 100];
        let count = manager.recv(&mut bytes).expect("a datagram");
        assert_eq!(&bytes[..count], b"READY=1\n");
        let count = manager.recv(&mut bytes).expect("a datagram");
        assert!(bytes[..count].starts_with(b"RELOADING=1\nMONOTONIC_USEC="));
        assert!(connect(OsStr::new("/nowhere/at/all")).is_err());
    }
}
