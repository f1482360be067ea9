//! Blocking sockets after std's: a thread that waits drives the stack meanwhile.

mod datagram;
mod icmp;
mod listener;
mod stream;
mod waiting;

pub use datagram::{Datagram, UdpSocket};
pub use icmp::IcmpSocket;
pub use listener::{Incoming, IntoIncoming, TcpListener};
pub use stream::TcpStream;
#[cfg(feature = "tokio")]
pub(crate) use waiting::{READ_READY, WRITE_READY};
