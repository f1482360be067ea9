//! Send queues of the kernel's own connections.

use crate::sys;
use rustix::fd::AsFd;
use std::io;

/// Bytes that a TCP socket has taken and its peer has not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendQueue {
    /// Those that were never sent.
    pub not_sent: u64,
    /// Those that were sent and not acknowledged. A FIN counts as one.
    pub in_flight: u64,
}

impl SendQueue {
    /// Returns a queue with these bytes.
    pub fn new(not_sent: u64, in_flight: u64) -> Self {
        Self { not_sent, in_flight }
    }
}

/// Returns what the send queue of a TCP socket of the kernel holds (`SIOCOUTQ` and `SIOCOUTQNSD`,
/// `tcp_ioctl`). It costs two system calls.
///
/// # Errors
/// The descriptor is no TCP socket, or the socket listens.
pub fn send_queue(socket: impl AsFd) -> io::Result<SendQueue> {
    // What is sent meanwhile may be in the second answer only.
    let not_sent = sys::bytes_not_sent(&socket)?;
    let queued = sys::bytes_queued(&socket)?;
    Ok(SendQueue { not_sent: not_sent.min(queued), in_flight: queued.saturating_sub(not_sent) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_a_peer_does_not_read_is_in_the_queue() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut stream = TcpStream::connect(address).expect("a connection");
        let (_peer, _) = listener.accept().expect("accepted");
        assert_eq!(send_queue(&stream).expect("a socket"), SendQueue::default());
        stream.set_nonblocking(true).expect("an option");
        while stream.write(&[0; 64 << 10]).is_ok() {}
        assert!(send_queue(&stream).expect("a socket").not_sent > 0);
        assert!(send_queue(&listener).is_err(), "it has no peer");
    }
}
