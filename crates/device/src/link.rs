//! Interfaces of the kernel: their properties, and the settings of the kernel's end of a link.

use crate::error::Error;
use crate::netlink;
use crate::sys::{self, InterfaceName};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::net::IpAddr;
use std::time::Duration;

/// Settings of the kernel's end of a link. `None` leaves a setting as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Addresses to add to the kernel's end, with their prefix lengths. The stack on the device has
    /// other addresses.
    pub addresses: Vec<(IpAddr, u8)>,
    /// MTU in bytes. Set it before `into_device()`, which reads it.
    pub mtu: Option<u16>,
    /// Whether to bring the interface up.
    pub up: bool,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self { addresses: Vec::new(), mtu: None, up: true }
    }
}

/// Configures the kernel's end of the interface `name` in the network namespace of this thread.
///
/// An address that is there already is no error. The call returns when an address of a link that is
/// up can be reached: a work queue of the kernel makes one of IPv6 local. After five seconds the
/// call returns without that.
///
/// # Errors
/// [`Error::Permission`] without `CAP_NET_ADMIN`, [`Error::NoInterface`], [`Error::OutOfRange`] for
/// a prefix longer than the address, [`Error::Ipv6Disabled`], or [`Error::System`] for a value that
/// the system refuses.
pub fn configure_link(name: &str, config: &LinkConfig) -> Result<(), Error> {
    let interface = Interface::named(name)?;
    if let Some(mtu) = config.mtu {
        interface.set_mtu(mtu)?;
    }
    if config.up {
        interface.bring_up()?;
    }
    for &(address, prefix) in &config.addresses {
        interface.add_address(address, prefix)?;
    }
    Ok(())
}

/// How long the work queue that makes an address of IPv6 local may take on a busy machine.
const BUSY_KERNEL: Duration = Duration::from_secs(5);
/// How long it is waited for where it may have nothing to do, as the link is not there yet.
const LAZY_KERNEL: Duration = Duration::from_millis(200);

/// One interface, and a socket to ask the kernel about it.
pub(crate) struct Interface {
    name: String,
    request: InterfaceName,
    socket: OwnedFd,
}

impl Interface {
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        let request =
            InterfaceName::new(name).ok_or_else(|| Error::BadName { name: name.to_owned() })?;
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|e| Error::of("socket", name, e))?;
        Ok(Self { name: name.to_owned(), request, socket })
    }

    /// The interface of this index in the namespace of `socket`.
    pub(crate) fn at(index: i32, socket: &OwnedFd) -> Result<Self, Error> {
        let failed = |call| move |errno| Error::of(call, "the interface of the socket", errno);
        let request = sys::name(socket, index).map_err(failed("SIOCGIFNAME"))?;
        let socket = fcntl_dupfd_cloexec(socket, 0).map_err(failed("dup"))?;
        Ok(Self { name: request.to_text(), request, socket })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn failed(&self, call: &'static str) -> impl Fn(Errno) -> Error {
        move |errno| Error::of(call, &self.name, errno)
    }

    pub(crate) fn index(&self) -> Result<i32, Error> {
        sys::index(&self.socket, self.request).map_err(self.failed("SIOCGIFINDEX"))
    }

    /// The index that the interface has in the namespace of `socket`.
    pub(crate) fn index_by(&self, socket: &OwnedFd) -> Result<i32, Error> {
        sys::index(socket, self.request).map_err(self.failed("SIOCGIFINDEX"))
    }

    /// MTU in bytes; what exceeds an IP packet's length field counts as 65,535.
    pub(crate) fn mtu(&self) -> Result<u16, Error> {
        let mtu = sys::mtu(&self.socket, self.request).map_err(self.failed("SIOCGIFMTU"))?;
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    pub(crate) fn is_up(&self) -> Result<bool, Error> {
        self.has_flag(libc::IFF_UP)
    }

    fn has_flag(&self, flag: libc::c_int) -> Result<bool, Error> {
        let flags = sys::flags(&self.socket, self.request).map_err(self.failed("SIOCGIFFLAGS"))?;
        Ok(flags & flag != 0)
    }

    /// The Ethernet address, or [`Error::NotEthernet`].
    pub(crate) fn ethernet_address(&self) -> Result<[u8; 6], Error> {
        let (kind, address) =
            sys::hardware(&self.socket, self.request).map_err(self.failed("SIOCGIFHWADDR"))?;
        if kind != libc::ARPHRD_ETHER {
            return Err(Error::NotEthernet { name: self.name.clone() });
        }
        Ok(address)
    }

    fn set_mtu(&self, mtu: u16) -> Result<(), Error> {
        sys::set_mtu(&self.socket, self.request, i32::from(mtu))
            .map_err(self.failed("setting the MTU"))
    }

    /// Makes the queue towards the device hold at least so many packets (`txqueuelen`). A longer
    /// one stays as it is, and so does one that this process may not change.
    pub(crate) fn lengthen_queue(&self, packets: u32) -> Result<(), Error> {
        let packets = i32::try_from(packets).unwrap_or(i32::MAX);
        let failed = self.failed("setting the length of the queue");
        if sys::queue_len(&self.socket, self.request).map_err(&failed)? >= packets {
            return Ok(());
        }
        match sys::set_queue_len(&self.socket, self.request, packets) {
            Err(Errno::PERM) => Ok(()),
            result => result.map_err(failed),
        }
    }

    fn bring_up(&self) -> Result<(), Error> {
        let flags = sys::flags(&self.socket, self.request).map_err(self.failed("SIOCGIFFLAGS"))?;
        sys::set_flags(&self.socket, self.request, flags | libc::IFF_UP)
            .map_err(self.failed("bringing the interface up"))
    }

    fn add_address(&self, address: IpAddr, prefix: u8) -> Result<(), Error> {
        let (longest, range) = if address.is_ipv4() { (32, "0 to 32") } else { (128, "0 to 128") };
        if prefix > longest {
            return Err(Error::OutOfRange { option: "prefix length", value: prefix.into(), range });
        }
        let index = self.index()?.cast_unsigned();
        // A link that is not there has no reachable address of IPv6.
        let patience = if self.has_flag(libc::IFF_RUNNING)? { BUSY_KERNEL } else { LAZY_KERNEL };
        netlink::add_address(index, address, prefix, patience).map_err(|errno| match errno {
            Errno::ACCESS => Error::Ipv6Disabled { name: self.name.clone() },
            _ => Error::of("adding an address", &self.name, errno),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_can_have_are_told() {
        for name in ["", "a/b", "a b", "sixteen-bytes-nm", "..", "a:1"] {
            assert!(matches!(Interface::named(name), Err(Error::BadName { .. })), "{name:?}");
        }
    }

    #[test]
    fn a_missing_interface_is_told_by_name() {
        let absent = Interface::named("neap-absent").expect("a good name");
        assert!(matches!(absent.mtu(), Err(Error::NoInterface { name }) if name == "neap-absent"));
    }

    #[test]
    fn loopback_is_not_ethernet() {
        let lo = Interface::named("lo").expect("a good name");
        assert!(matches!(lo.ethernet_address(), Err(Error::NotEthernet { .. })));
    }
}
