//! A user-space TCP/IP stack with small queues.
//!
//! A [`Stack`] runs on a device (a TUN, an Ethernet interface through AF_PACKET, or one of your
//! own); [`TcpStream`], [`TcpListener`] and [`UdpSocket`] are those of std with a stack as their
//! first argument. A thread that waits in one of their calls drives the stack meanwhile; a worker
//! does it while no application waits.
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! // The kernel's end of the TUN is 10.9.0.1, ours 10.9.0.2. Needs CAP_NET_ADMIN.
//! let stack = neap::Stack::builder().tun("neap0", "10.9.0.1/24").address("10.9.0.2/24").build()?;
//! let mut stream = neap::TcpStream::connect(&stack, "10.9.0.1:80".parse()?)?;
//! stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
//! let mut page = String::new();
//! stream.read_to_string(&mut page)?;
//! println!("{page}\n{:?}", stream.info().blocked);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod blocking;
mod builder;
mod clock;
mod driver;
mod error;
mod poller;
mod running;

pub use blocking::{TcpListener, TcpStream, UdpSocket};
pub use builder::Builder;
pub use error::BuildError;
pub use poller::{Event, Interest, Pollable, Poller};
pub use running::Stack;

pub use neap_device as device;
pub use neap_stack as stack;
pub use neap_tcp as tcp;
