//! Scripts in the language of packetdrill, on neap in virtual time or on Linux.
//!
//! # A tour
//!
//! A script says what the peer sends, what the application calls, and which packets must leave
//! when. [`parser`] reads its text into [`ast`], with the places of a [`cursor`] and the assertions
//! of an [`expression`]; [`settings`] are what its first lines set. [`runner`] plays it on a
//! [`host::Host`] and stops at the first difference, which a [`report::Failure`] shows.
//!
//! There are two hosts. [`virtual_host`] makes the calls on neap, in the virtual time of a
//! [`machine::Machine`]; the plug-in for packetdrill itself is made of such a machine as well. With
//! the feature `kernel`, `kernel` makes them on the Linux of this machine, in real time.
//!
//! Between a script and a host are the private modules: `calls` makes the call of a host out of the
//! one that is written, and knows what its reply must be; `connections` translates between the
//! numbers of the script and of the wire; `packet` reads and writes packets; `compare` finds what
//! is different about one; `stream` has the bytes that are sent.
//!
//! ```
//! use neap_script::{parser, virtual_host};
//!
//! let script = parser::parse(
//!     "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
//!     +0 bind(3, ..., ...) = 0
//!     +0 listen(3, 1) = 0
//!     +0 < S 0:0(0) win 32792 <mss 1000>
//!     +0 > S. 0:0(0) ack 1 <mss 1460>",
//! )?;
//! virtual_host::run(&script)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The language
//!
//! It is that of <https://github.com/google/packetdrill>. What is missing is a shell: between back
//! quotes only `sysctl -q name=value` stands, and between `%{` and `}%` stand assertions over
//! `TCP_INFO`. What there is besides: bytes are compared, both ways; and a packet that nobody
//! expects is a difference, also after the last event.

#![cfg_attr(not(feature = "kernel"), forbid(unsafe_code))]
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]

pub mod ast;
mod calls;
mod compare;
mod connections;
mod constants;
pub mod cursor;
pub mod expression;
pub mod host;
#[cfg(all(feature = "kernel", target_os = "linux"))]
pub mod kernel;
pub mod machine;
mod packet;
pub mod parser;
pub mod report;
pub mod runner;
pub mod settings;
mod stream;
mod tcp_info;
pub mod virtual_host;
