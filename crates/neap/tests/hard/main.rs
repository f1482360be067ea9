//! The stack under attack and with faults around it, over a TUN, each test in a network namespace
//! of its own that disappears with it. A test that cannot run prints `SKIP: reason` on stderr and
//! passes.
//!
//! The victim is a process of its own. Each attack prints what memory and time the victim took, and
//! what an honest flow got meanwhile, and has bars for them (`ground.rs`). Attacks last
//! `NEAP_HARD_SECONDS`, half a second by default; `./hard` runs them for longer.
//!
//! `rare.rs` has what peers may do and rarely do. A tap at the stack's TUN (`tap.rs`) brings it
//! about, and proves that it happened.

#[allow(dead_code, reason = "shared with the other tests against the kernel")]
#[path = "../common/mod.rs"]
mod common;

mod faults;
mod floods;
mod flow;
mod forwarders;
mod gateway;
mod ground;
mod memory;
mod peers;
mod rare;
mod tap;
mod victim;
mod wire;
