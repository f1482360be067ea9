//! A gateway and the stack of its guest, joined by a socket of the kernel.

#[allow(dead_code, reason = "an example has a `main`")]
#[path = "../../../neap/examples/device.rs"]
mod device;

use neap::{InterfaceConfig, Stack};
use neap_gateway::{Figures, Gateway, GatewayConfig, Upstream};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// The stack of a gateway at 10.0.2.2, which nobody reaches before there is a gateway, and the
/// other end of its device.
pub(crate) fn stack() -> (Arc<Stack>, UnixDatagram) {
    let (own, cable) = UnixDatagram::pair().expect("a pair");
    let interface = InterfaceConfig::new(device::device("gate", own).expect("a device"))
        .any_destination(true)
        .begin_unread()
        .address("10.0.2.2/24".parse().expect("an address"));
    let stack = Stack::builder().interface(interface).build().expect("a stack");
    (Arc::new(stack), cable)
}

/// A gateway at 10.0.2.2, and the other end of its device.
pub(crate) fn gateway(
    upstream: Box<dyn Upstream>,
    config: GatewayConfig,
) -> (Gateway, UnixDatagram) {
    let (stack, cable) = stack();
    (Gateway::new(stack, upstream, config).expect("a gateway"), cable)
}

/// Runs a gateway until it is stopped. The thread ends with its figures.
pub(crate) fn run(mut gateway: Gateway) -> JoinHandle<Figures> {
    thread::spawn(move || {
        gateway.run().expect("it runs");
        gateway.figures()
    })
}

/// The stack of a guest at 10.0.2.100.
pub(crate) fn guest(cable: UnixDatagram) -> Stack {
    let device = device::device("guest", cable).expect("a device");
    Stack::builder().device(device).address("10.0.2.100/24").build().expect("a stack")
}
