//! The figures of connections, interfaces and the whole host that [`Host`](crate::Host) reads.

pub use neap_stack::drop_reason::DropReason;
pub use neap_stack::interface::InterfaceInfo;
pub use neap_stack::port::PortStats;
pub use neap_stack::socket::tcp::FlowInfo;
pub use neap_stack::stack::{BucketInfo, ListenerInfo, SocketCounts, Sockets, UdpInfo, Usage};
pub use neap_stack::stats::IpCounter;
pub use neap_tcp::counters::Counter;
pub use neap_tcp::info::{Timeouts, Timer, TimerKind};
pub use neap_tcp::lateness::{Departures, Lateness};
pub use neap_tcp::state::State;
pub use neap_tcp::transmit::TxBlocked;
