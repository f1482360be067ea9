//! Local ports of the kernel's own connections.

use crate::sys;
use rustix::fd::AsFd;
use std::io;

/// Lets `connect(2)` of a TCP socket of the kernel look through all local ports in one pass
/// (`IP_LOCAL_PORT_RANGE`, Linux 6.3).
///
/// Without it the kernel looks through the even ports of `net.ipv4.ip_local_port_range` first
/// (`__inet_hash_connect`). Once half of the ports are taken towards a destination, also by
/// connections in TIME-WAIT, each further call looks at thousands of them in vain, which takes
/// milliseconds. The range itself stays that of the sysctl: a socket can narrow it, not widen it.
///
/// # Errors
/// `ENOPROTOOPT` of kernels before 6.3.
pub fn look_through_all_local_ports(socket: impl AsFd) -> io::Result<()> {
    // Ports beyond the ends of the sysctl do not move them.
    Ok(sys::set_local_port_range(socket, 1, u16::MAX)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_socket_of_either_family_takes_it() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = TcpListener::bind(address) else { continue };
            match look_through_all_local_ports(&socket) {
                Ok(()) => {}
                Err(error) => {
                    let unknown = rustix::io::Errno::NOPROTOOPT.raw_os_error();
                    assert_eq!(error.raw_os_error(), Some(unknown), "{error}");
                }
            }
        }
    }
}
