//! `neap lab script`: scripts in the language of packetdrill, on any [`host::Host`].
//!
//! A script says what the peer sends, what the application calls, and which packets must leave when.
//! [`parser`] reads it into [`ast`], [`runner`] plays it, [`report`] says what was different first.
//! [`neap_host`] is neap in virtual time; a host over a kernel is the program's own.
//!
//! Language: <https://github.com/google/packetdrill>. What this runner does not have is a shell:
//! between back quotes only `sysctl -q name=value` stands; and between `%{` and `}%` stand
//! assertions over `TCP_INFO` ([`expression`]). What it has besides: bytes are
//! compared, both ways; and a packet that nobody expects is a difference, also after the last event.

pub mod ast;
mod calls;
mod compare;
mod connections;
pub mod constants;
pub mod cursor;
pub mod expression;
pub mod host;
pub mod neap_host;
pub mod parser;
pub mod report;
pub mod runner;
pub mod settings;
mod wire;
