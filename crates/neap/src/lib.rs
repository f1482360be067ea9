//! A TCP/IP stack that runs in user space, inside a program, and keeps the queue below its sockets
//! short.
//!
//! Use it to embed TCP in a proxy, a VPN or a media server on Linux, or to keep latency low beside
//! bulk data without changing the kernel. The folder `guide` of the sources has a chapter for each
//! task.
//!
//! # A tour
//!
//! **A stack.** [`Stack::builder`] makes a [`Stack`] on a device. The device is a TUN that the
//! builder makes ([`Builder::tun`]), an Ethernet interface through AF_PACKET ([`device::Packet`]),
//! or a [`device::Device`] of your own.
//!
//! **Sockets.** [`TcpStream`], [`TcpListener`] and [`UdpSocket`] are used as those of std, with a
//! stack as the first argument. [`IcmpSocket`] has whole ICMP messages. [`TcpForwarder`] and
//! [`UdpForwarder`] take what goes to addresses of others. [`Poller`] waits for many
//! sockets in one thread. With the feature `tokio` the module `neap::tokio` has the same sockets
//! for tasks. [`Stack::posix`] gives descriptors with Linux's calls ([`posix`]). A name such as
//! `"example.org:80"` needs a resolver ([`Builder::resolver`]); an address needs none.
//!
//! **Threads.** A thread that waits in one of these calls drives the stack meanwhile. A worker
//! thread drives it while nobody waits. So a bulk transfer needs one thread, and no hop between
//! threads. [`threadless`] has the stack without threads and without a clock.
//!
//! **The network while it runs.** [`Stack::add_interface`], [`Stack::add_address`],
//! [`Stack::add_route`] and the calls beside them change it; [`net`] has their types.
//! [`Stack::events`] tells of links that go down and of devices that go away.
//!
//! **Settings.** [`Builder::sysctl`] and [`Stack::set_sysctl`] take Linux's names and units;
//! [`Config`](config::Config) in [`config`] lists them. [`TcpStream::set_option`] sets the options
//! of one socket.
//!
//! **Figures.** [`TcpStream::info`] is `TCP_INFO` with the reason why the flow is not sending and
//! the places of its bytes. [`Stack::host`] has the flows, interfaces, counters and drops of the
//! whole host; [`info`] has their types, and [`time`] those of times and rates.
//!
//! **Looking inside.** With the feature `control` the module `neap::control` serves those figures
//! to the programs `neap ss` and `neap nstat`, and `neap::metrics` to Prometheus.
//!
//! **Your own parts.** A congestion controller is a trait in [`congestion`], a queueing discipline
//! one in [`qdisc`], a device one in [`device`]. The folder `examples` has a program for each.
//!
//! **The end.** [`Stack::close`] waits until all connections are over. Dropping a stack resets
//! them.
//!
//! # Examples
//!
//! A client:
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! // The kernel's end of the TUN is 10.9.0.1, ours 10.9.0.2. Needs CAP_NET_ADMIN.
//! let stack = neap::Stack::builder()
//!     .tun("neap0")
//!     .host_address("10.9.0.1/24")
//!     .address("10.9.0.2/24")
//!     .build()?;
//! let mut stream = neap::TcpStream::connect(&stack, "10.9.0.1:80")?;
//! stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
//! let mut page = String::new();
//! stream.read_to_string(&mut page)?;
//! println!("{page}\n{:?}", stream.info().blocked);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A sender on an Ethernet interface, behind a router, without a copy of the data:
//!
//! ```no_run
//! use neap::SocketOption;
//! use neap::device::{Packet, PacketConfig};
//!
//! // The address belongs to no interface of the kernel here. Needs CAP_NET_RAW.
//! let device = Packet::open(&PacketConfig::new("eth0"))?.into_device();
//! let stack = neap::Stack::builder()
//!     .device(device)
//!     .address("192.0.2.7/24")
//!     .gateway("192.0.2.1")
//!     .sysctl("net.ipv4.tcp_notsent_lowat", "131072")
//!     .build()?;
//! let stream = neap::TcpStream::connect(&stack, "198.51.100.9:9000")?;
//! stream.set_option(SocketOption::NoDelay(true))?;
//! let mut film = bytes::Bytes::from(std::fs::read("film.webm")?);
//! stream.send_bytes(&mut film)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Versions
//!
//! This crate follows semantic versioning. Everything that can be reached through it is part of the
//! promise. A struct of settings may get more fields in a minor version: write
//! `..Default::default()`, or `..` and its constructor, behind the fields that you set.
//!
//! `neap-tcp`, `neap-stack`, `neap-device` and `neap-posix` are crates because this crate is
//! made of them. They promise nothing. Depend on `neap` alone.
#![forbid(unsafe_code)]

mod alarm;
mod bell;
mod blocking;
mod builder;
mod condition;
pub mod config;
pub mod congestion;
#[cfg(feature = "control")]
pub mod control;
mod descriptors;
pub mod device;
mod driver;
mod engine;
mod error;
mod events;
mod foresight;
#[cfg(test)]
mod holding;
mod host;
pub mod info;
mod interfaces;
mod lease;
mod machine;
#[cfg(feature = "control")]
pub mod metrics;
pub mod net;
mod poller;
pub mod posix;
pub mod qdisc;
mod resolver;
pub mod scheduling;
#[cfg(feature = "control")]
mod serving;
mod settings;
mod sleeper;
mod sync;
pub mod threadless;
pub mod time;
#[cfg(feature = "tokio")]
pub mod tokio;
mod watch;
mod workers;

pub use blocking::{
    Arrival, Datagram, IcmpSocket, Incoming, IntoIncoming, PendingConnection, TcpForwarder,
    TcpListener, TcpStream, UdpForwarder, UdpSocket,
};
pub use builder::{Builder, ToIp};
pub use error::BuildError;
pub use events::StackEvents;
pub use host::Host;
pub use interfaces::{InterfaceConfig, InterfaceError};
pub use poller::{Event, Events, Poller};
pub use resolver::{Resolve, SystemResolver, ToAddrs};
pub use watch::Pollable;
pub use workers::Stack;

use neap_device::clock;

pub use neap_stack::event::StackEvent;
pub use neap_stack::socket::SocketError;
pub use neap_stack::socket::icmp::{IcmpErrorKind, IcmpMessage, IcmpOptions};
pub use neap_stack::socket::udp::Refusal;
pub use neap_stack::stack::{
    ConnectOptions, ListenOptions, TcpForwarderOptions, UdpForwarderOptions, UdpOptions,
};
pub use neap_tcp::connection::{ConnectionError, WriteFlags};
pub use neap_tcp::info::TcpInfo;
pub use neap_tcp::options::{OptionError, SocketOption, SocketOptions};

/// The examples of the README, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the guide, compiled as tests.
#[cfg(doctest)]
mod guide {
    macro_rules! chapters {
        ($($name:ident: $file:literal),+ $(,)?) => {
            $(#[doc = include_str!(concat!("../../../guide/src/", $file))] struct $name;)+
        };
    }

    chapters! {
        Start: "start.md",
        Nic: "nic.md",
        Watch: "watch.md",
        Change: "change.md",
        Forwarder: "forwarder.md",
        Controller: "controller.md",
        Extend: "extend.md",
    }

    #[cfg(feature = "control")]
    chapters! {
        Inside: "inside.md",
    }
}
