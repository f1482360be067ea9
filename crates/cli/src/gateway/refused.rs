//! What a user can do when the system refuses a place to listen at.

use neap_gateway::Transport;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

/// Why this machine does not give an address and port.
pub(crate) fn port(transport: Transport, port: impl Display, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => {
            let list = if transport == Transport::Tcp { "-ltnp" } else { "-lunp" };
            format!("{port} is taken: choose another port, or end who has it (ss {list})")
        }
        ErrorKind::AddrNotAvailable => {
            format!("this machine does not have the address of {port}: `ip address` lists its own")
        }
        ErrorKind::PermissionDenied => "this user may not have it: choose a port from 1024 on, or \
                                        lower net.ipv4.ip_unprivileged_port_start"
            .to_owned(),
        _ => error.to_string(),
    }
}

/// Tries whether sockets can have an address that an option of this name says they leave from.
///
/// # Errors
/// One line: why they cannot.
pub(crate) fn own_address(option: &str, address: IpAddr) -> Result<(), String> {
    let tried = UdpSocket::bind((address, 0));
    tried.map(drop).map_err(|error| match error.kind() {
        ErrorKind::AddrNotAvailable => format!(
            "{option} {address}: this machine does not have the address: `ip address` lists its own"
        ),
        _ => format!("{option} {address}: {error}"),
    })
}

/// Why there can be no socket at a path.
pub(crate) fn path(path: &Path, error: &io::Error) -> String {
    // The parent of a name alone is the current folder.
    let folder = path.parent().filter(|folder| *folder != "").unwrap_or(Path::new("."));
    let folder = folder.display();
    match error.kind() {
        ErrorKind::AddrInUse => {
            "it is taken: choose another path, end who listens at it (ss -lxp), \
                                 or remove the file if it is no socket"
                .to_owned()
        }
        ErrorKind::PermissionDenied => {
            format!("this user may not put a socket into {folder}: choose another folder")
        }
        ErrorKind::NotFound => format!("there is no folder {folder}: make it, or choose another"),
        _ => error.to_string(),
    }
}
