//! The sockets under tokio (feature `tokio`).
//!
//! Use them in a program that has tasks: a proxy, an HTTP server, anything that speaks to other
//! asynchronous code. [`TcpStream`] implements tokio's `AsyncRead` and `AsyncWrite`, so hyper and
//! `tokio::io::copy` run on it unchanged. Its writes wait as blocking ones do, and obey the
//! low-water mark too. Every future here is cancel-safe: a future that is dropped early has done
//! nothing.
//!
//! A task of the runtime drives each shard whose sockets are used. tokio then sleeps on the devices
//! of the shard, and on a timerfd beside them, since tokio's own timers have steps of a
//! millisecond. So a timer wakes the thread that runs the tasks, and no other. The worker of the
//! shard steps in if the runtime does not run that task for 5 ms after a timer or a packet, and
//! takes over when the runtime ends. To see a runtime that stands still, the worker has to hear of
//! packets: a packet that comes after a pause wakes it, and once more 5 ms later to see that the
//! task has come. Where packets follow each other within 20 ms, or the task is busy, the worker
//! then trusts the task: it hears of no packet until the task has had nothing to do for 20 to
//! 25 ms. So a server of 50 packets a second and more hardly ever wakes its worker. A runtime that
//! stands still while its task is trusted leaves packets and timers to the worker after 25 ms.
//!
//! Several runtimes may use one stack: a task of one of them drives. If that runtime computes for
//! longer than 5 ms, or nobody runs it, its task is absent. The worker notices at the first packet
//! that it hears of, or at the second, and then drives without any further wait until the task is
//! run again. A task that is run in time is not taken for absent. Another runtime that makes,
//! connects or accepts a socket meanwhile drives instead, if the process has descriptors for that.
//! The worker costs each packet one hop between threads, so keep a runtime running that drives.
//!
//! The calls that make a socket fail with [`Other`](std::io::ErrorKind::Other) outside of a
//! runtime. In a runtime that has I/O disabled they fail with
//! [`Unsupported`](std::io::ErrorKind::Unsupported), unless a task of another runtime drives
//! already: enable I/O. Such a runtime drives nothing. The worker does where no task of another
//! runtime comes, and no connection is lost that is open.
//! tokio tells of disabled I/O by a panic alone, which is caught. So the program's panic hook is
//! called once for such a runtime and shard, and with `panic = "abort"` the program ends: enable
//! I/O there.

mod drive;
mod icmp;
mod names;
mod tcp;
mod tcp_forwarder;
mod udp;
mod udp_forwarder;
mod wait;

pub use icmp::IcmpSocket;
pub use tcp::{
    OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, TcpListener, TcpStream, WriteHalf,
};
pub use tcp_forwarder::{PendingConnection, TcpForwarder};
pub use udp::UdpSocket;
pub use udp_forwarder::UdpForwarder;
