//! The stack against the kernel of this machine, each test in a network namespace of its own that
//! disappears with it. A test that cannot run prints `SKIP: reason` on stderr and passes.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/transparent_echo.rs"]
mod transparent_echo;

mod asleep;
mod bulk;
mod datagrams;
mod descriptors;
mod dual;
mod errors;
mod ethernet;
mod fairness;
mod forwarding;
mod gateway;
mod harness;
mod idle;
mod lifecycle;
mod links;
mod names;
mod network;
mod pending;
mod polling;
mod posix;
mod qdiscs;
mod scheduling;
mod waiting;
