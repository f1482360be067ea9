//! Addresses and interfaces that the kernel has in the network namespace of this thread.

use crate::netlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use std::net::IpAddr;

/// Returns the name of the interface on which the kernel has `address`, if it has it.
///
/// A stack cannot share an address with the kernel on a link: the kernel would answer for it.
/// Returns `None` also where the kernel refuses to list its addresses.
pub fn kernel_owner(address: IpAddr) -> Option<String> {
    let index = netlink::owner(address).ok()??;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    netdevice::index_to_name(socket.ok()?, index).ok()
}

/// Returns whether the kernel has an interface of this name.
pub fn is_kernel_interface(name: &str) -> bool {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| netdevice::name_to_index(socket, name).is_ok())
}
