//! Blocking sockets after std's: a thread that waits drives the stack meanwhile.

mod datagram;
mod icmp;
mod listener;
mod stream;
mod tcp_forwarder;
mod udp_forwarder;
mod waiting;

pub use datagram::{Arrival, Datagram, UdpSocket};
pub use icmp::IcmpSocket;
pub use listener::{Incoming, IntoIncoming, TcpListener};
pub use stream::TcpStream;
pub use tcp_forwarder::{PendingConnection, TcpForwarder};
pub use udp_forwarder::UdpForwarder;
#[cfg(feature = "tokio")]
pub(crate) use waiting::{ERROR_READY, READ_READY, WRITE_READY};
