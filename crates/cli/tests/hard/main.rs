//! A gateway under attack by its guests: the attacks of `crates/neap/tests/hard`, with
//! `neap gateway tun` in the place of the stack, those that only a gateway knows, guests that
//! vanish (`vanishing.rs`), and frames of Ethernet from the namespace of `neap pasta` (`link.rs`).
//!
//! The gateway is a process of its own. It relays between a TUN and another network namespace, the
//! world, where the servers are. The bars are those of `ground.rs`: memory, the rate of an honest
//! flow, and that everything is free again. Attacks last `NEAP_HARD_SECONDS`, half a second by
//! default; `./hard` runs them for longer.

#[allow(dead_code, reason = "shared with the tests of the stack")]
#[path = "../../../neap/tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "shared with the tests of the stack")]
#[path = "../../../neap/tests/hard/floods.rs"]
mod floods;
#[allow(dead_code, reason = "shared with the tests of the stack")]
#[path = "../../../neap/tests/hard/flow.rs"]
mod flow;
mod ground;
mod guests;
#[path = "../common/host.rs"]
mod host;
mod link;
mod mac;
#[allow(dead_code, reason = "shared with the tests of the stack")]
#[path = "../../../neap/tests/hard/memory.rs"]
mod memory;
#[path = "../../../neap/tests/hard/peers.rs"]
mod peers;
mod vanishing;
mod victim;
#[allow(dead_code, reason = "shared with the tests of the stack")]
#[path = "../../../neap/tests/hard/wire.rs"]
mod wire;
mod world;

mod namespace {
    pub(crate) use crate::common::run;
}
