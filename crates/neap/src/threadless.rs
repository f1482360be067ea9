//! The stack without threads and without a clock: whoever holds it calls
//! [`poll(shard, now)`](Stack::poll).
//!
//! [`neap::Stack`](crate::Stack) is this stack with threads that poll it. Use this one in a program
//! with a loop of its own, or where time is simulated. Calls never wait: a call that would have to
//! fails with `WouldBlock`, and the readiness of the socket tells when to repeat it. The example
//! `clock` shows a loop.

pub use neap_stack::drop_reason::Drops;
pub use neap_stack::event::Subscription;
pub use neap_stack::interface::InterfaceOptions;
pub use neap_stack::socket::bound::BoundPort;
pub use neap_stack::socket::errors::{ErrorOrigin, ErrorRecord};
pub use neap_stack::socket::forwarder::{
    ForwarderHandle, PendingHandle, PendingWatch, Refusal, WeakForwarderHandle, WeakPendingHandle,
};
pub use neap_stack::socket::icmp::{IcmpHandle, WeakIcmpHandle};
pub use neap_stack::socket::listener::{ListenerHandle, WeakListenerHandle};
pub use neap_stack::socket::mapped;
pub use neap_stack::socket::readiness::{Ready, ReadyState};
pub use neap_stack::socket::tcp::{TcpHandle, WeakTcpHandle};
pub use neap_stack::socket::udp::{ReceivedDatagram, SendDatagram, UdpHandle, WeakUdpHandle};
pub use neap_stack::stack::{
    BindOptions, Stack, StackConfig, StackError, TcpForwarderOptions, Why,
};
pub use neap_stack::stats::IpCounters;
pub use neap_tcp::connection::{ReadError, WriteError};
