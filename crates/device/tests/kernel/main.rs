//! The devices against the kernel, each test in a network namespace of its own.
//!
//! They need `CAP_SYS_ADMIN` for the namespace and iproute2 for veth pairs and `tbf`; a test that
//! cannot run prints `SKIP: reason` on stderr and passes.
#![cfg(target_os = "linux")]

mod common;
mod flood;
mod packet;
mod tun;
