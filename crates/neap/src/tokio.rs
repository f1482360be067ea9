//! The sockets under tokio (feature `tokio`).
//!
//! [`TcpStream`] reads and writes by tokio's traits, so hyper and `tokio::io::copy` run on it
//! unchanged; its writes wait as blocking ones do, by the low-water mark too. Every future here is
//! cancel-safe: one that is dropped has either done its work and said so, or has done nothing.
//!
//! A task of the runtime drives each shard whose sockets are used (its devices are among the
//! descriptors that tokio sleeps on, and a timerfd beside them keeps the time, since tokio's timers
//! have millisecond steps). So a packet wakes the thread that runs the tasks, and no other. The
//! worker of the shard steps in where a runtime does not come round for some milliseconds, and
//! takes over when it ends.

mod drive;
mod names;
mod tcp;
mod udp;
mod wait;

pub use tcp::{
    OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, TcpListener, TcpStream, WriteHalf,
};
pub use udp::UdpSocket;
