//! State of an interface of the kernel while a stack is on it.
//!
//! A netlink socket tells that some link or some address of the namespace has changed. The monitor
//! then asks the kernel for the state of its own interface, by index, since the name may change. So
//! it parses no message, and a message that the kernel had no room for (`ENOBUFS`) is not missed.
//!
//! An interface of a TUN device may be moved to another namespace. The device lives on then, and
//! only its end is noticed.
//!
//! Cost: nothing while no link and no address of the namespace changes; four system calls for a
//! look, and the list of the kernel's addresses to find those that are taken.

use crate::netlink;
use crate::sys::{self, InterfaceName};
use neap_stack::device::{LinkMonitor, LinkState, LinkStatus};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::net::IpAddr;
use std::sync::Arc;

/// Messages taken at one look. The state is asked for after them, so those that are left tell
/// nothing that the look does not see.
const MESSAGES_MAX: usize = 1000;
/// Names that one look takes: the interface may be renamed before the name is used.
const NAMES_MAX: usize = 3;
/// The multicast groups of what is told.
const CHANGES: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
/// What an interface needs to pass packets: it is enabled, and its link is there.
const RUNNING: i32 = libc::IFF_UP | libc::IFF_RUNNING;

/// Relation of the stack's Ethernet address to that of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Station {
    /// There are no Ethernet addresses.
    None,
    /// It is the same.
    Same,
    /// The stack is the other end of the link, with an address of its own.
    OtherEnd,
}

/// The Ethernet address of our end of a TAP: the kernel's end has the interface's, and ours differs
/// in the last bit.
pub(crate) fn other_end(mut address: [u8; 6]) -> [u8; 6] {
    address[5] ^= 1;
    address
}

/// Follows one interface of the kernel.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// Readable after a change of links or addresses in the namespace of the interface; `None`
    /// where that cannot be had: then only the end of the device is told.
    bell: Option<Arc<OwnedFd>>,
    /// A netlink socket for requests in the namespace of the interface; `None` where that cannot be
    /// had, and after the interface has left that namespace.
    kernel: Option<Arc<OwnedFd>>,
    /// Descriptors of the device: one of a TUN, and the sockets of all queues of AF_PACKET.
    devices: Vec<Arc<OwnedFd>>,
    /// A socket in the namespace of the interface, if there is one; as `kernel`.
    ask: Option<Arc<OwnedFd>>,
    index: i32,
    station: Station,
    /// The largest packet that the device takes, however large the interface's may be.
    mtu_max: u16,
    is_tun: bool,
    /// What the kernel had dropped for want of room in a TUN device before it was followed; `None`
    /// where the kernel counts that elsewhere, or cannot be asked.
    dropped_before: Option<u64>,
    /// What it has dropped since, by its last answer.
    lost: u64,
}

impl Monitor {
    /// Follows the interface of a TUN or TAP device, which is in the namespace of this thread if
    /// `index` is given.
    pub(crate) fn tun(device: Arc<OwnedFd>, index: Option<i32>, station: Station) -> Self {
        let (bell, kernel) = open_sockets(index.is_some());
        // Any socket can ask about links.
        let ask = kernel.clone();
        let index = index.unwrap_or(0);
        let dropped = kernel.as_ref().map(|kernel| netlink::tx_dropped(kernel, index));
        Self {
            bell,
            kernel,
            devices: vec![device],
            ask,
            index,
            station,
            mtu_max: u16::MAX,
            is_tun: true,
            dropped_before: dropped.and_then(Result::ok),
            lost: 0,
        }
    }

    /// Follows the interface that AF_PACKET sockets are bound to, whose slots take `mtu_max` bytes;
    /// `is_here` says that it is in the namespace of this thread.
    pub(crate) fn packet(
        sockets: Vec<Arc<OwnedFd>>,
        index: i32,
        is_here: bool,
        mtu_max: u16,
    ) -> Self {
        let (bell, kernel) = open_sockets(is_here);
        let ask = sockets.first().cloned();
        let station = Station::Same;
        // The statistics of the sockets tell.
        let dropped_before = None;
        Self {
            bell,
            kernel,
            devices: sockets,
            ask,
            index,
            station,
            mtu_max,
            is_tun: false,
            dropped_before,
            lost: 0,
        }
    }

    /// The stack's Ethernet address stays what it is, whatever that of the interface becomes.
    pub(crate) fn keep_address(&mut self) {
        self.station = Station::None;
    }

    fn take_messages(&self) {
        let Some(bell) = &self.bell else { return };
        let mut buffer = [0; 8192];
        for _ in 0..MESSAGES_MAX {
            match recv(&**bell, &mut buffer, RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn is_detached(&self) -> bool {
        if self.is_tun {
            let is_bad = |errno| errno == Errno::BADFD;
            return self.devices.iter().any(|tun| sys::tun_interface(tun).is_err_and(is_bad));
        }
        // Each socket has the error. Reading it clears it; otherwise the descriptor would report it
        // for ever, and the next batch of frames would meet it.
        for socket in &self.devices {
            let _ = sys::int_option(socket, libc::SOL_SOCKET, libc::SO_ERROR);
        }
        false
    }

    /// The state of the interface, or `None` if there is none of its index. `name` asks for the
    /// name that the index has now.
    fn find(
        &self,
        ask: &OwnedFd,
        mut name: impl FnMut() -> rustix::io::Result<InterfaceName>,
    ) -> Option<LinkStatus> {
        for _ in 0..NAMES_MAX {
            let name = match name() {
                Ok(name) => name,
                Err(Errno::NODEV | Errno::NXIO) => return None,
                Err(_) => break,
            };
            match self.status(ask, name) {
                Ok(status) => return Some(status),
                // It has another name by now, or it is gone, which only its index tells.
                Err(Errno::NODEV | Errno::NXIO) => {}
                Err(_) => break,
            }
        }
        Some(LinkStatus::new(LinkState::Up))
    }

    fn status(&self, ask: &OwnedFd, name: InterfaceName) -> rustix::io::Result<LinkStatus> {
        let is_running = sys::flags(ask, name)? & RUNNING == RUNNING;
        // Without the bell the monitor could not see the link come back, so the link counts as up.
        let is_up = is_running || self.bell.is_none();
        let mut status = LinkStatus::new(if is_up { LinkState::Up } else { LinkState::Down });
        let mtu = u16::try_from(sys::mtu(ask, name)?).unwrap_or(u16::MAX);
        status.mtu = Some(mtu.min(self.mtu_max));
        let hardware = |name: InterfaceName| Ok(sys::hardware(ask, name)?.1);
        status.address = match self.station {
            Station::None => None,
            Station::Same => Some(hardware(name)?),
            Station::OtherEnd => Some(other_end(hardware(name)?)),
        };
        Ok(status)
    }
}

impl LinkMonitor for Monitor {
    fn look(&mut self) -> LinkStatus {
        // Taken first, so that a later change makes the descriptor readable again.
        self.take_messages();
        if self.is_detached() {
            return LinkStatus::new(LinkState::Gone);
        }
        let Some(ask) = &self.ask else { return LinkStatus::new(LinkState::Up) };
        if let Some(status) = self.find(ask, || sys::name(ask, self.index)) {
            return status;
        }
        // Sockets stay in the namespace that the interface has left. A TUN goes with it.
        if !self.is_tun {
            return LinkStatus::new(LinkState::Gone);
        }
        // Its end detaches it, and rings after that.
        (self.ask, self.kernel) = (None, None);
        LinkStatus::new(LinkState::Up)
    }

    fn taken(&mut self, addresses: &[IpAddr]) -> Vec<(IpAddr, String)> {
        let Some(kernel) = &self.kernel else { return Vec::new() };
        let theirs = netlink::addresses(kernel).unwrap_or_default();
        // Each link has link-local addresses of its own.
        let is_here = |ip: IpAddr, index| match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => index == self.index.cast_unsigned(),
            _ => true,
        };
        let theirs = theirs.into_iter().filter(|&(ip, index)| is_here(ip, index));
        let same = theirs.filter(|(ip, _)| addresses.contains(ip));
        let name = |index: u32| sys::name(kernel, index.cast_signed()).map(InterfaceName::to_text);
        same.map(|(ip, index)| (ip, name(index).unwrap_or_else(|_| index.to_string()))).collect()
    }

    fn lost_before_queues(&mut self) -> u64 {
        if let (Some(before), Some(kernel)) = (self.dropped_before, &self.kernel)
            && let Ok(dropped) = netlink::tx_dropped(kernel, self.index)
        {
            self.lost = self.lost.max(dropped.saturating_sub(before));
        }
        self.lost
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.bell.clone()
    }
}

/// The socket that tells of changes, and the one for requests, if the interface is in the namespace
/// of this thread.
fn open_sockets(is_here: bool) -> (Option<Arc<OwnedFd>>, Option<Arc<OwnedFd>>) {
    if !is_here {
        return (None, None);
    }
    (open_bell(), netlink::open().ok().map(Arc::new))
}

fn open_bell() -> Option<Arc<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).ok()?;
    bind(&socket, &SocketAddrNetlink::new(0, CHANGES.cast_unsigned())).ok()?;
    Some(Arc::new(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor of loopback, and a socket to ask with.
    fn of_loopback() -> (Monitor, OwnedFd) {
        let socket = || {
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .expect("a socket")
        };
        let ask = socket();
        let index = sys::index(&ask, named("lo")).expect("loopback");
        (Monitor::packet(vec![Arc::new(socket())], index, true, u16::MAX), ask)
    }

    fn named(name: &str) -> InterfaceName {
        InterfaceName::new(name).expect("a good name")
    }

    #[test]
    fn an_interface_that_is_renamed_within_a_look_is_not_gone() {
        let (mut monitor, ask) = of_loopback();
        let seen = monitor.look();
        assert!(seen.mtu.is_some(), "{seen:?}");
        let mut names = ["neap-stale", "neap-stale", "lo"].into_iter();
        let found = monitor.find(&ask, || Ok(named(names.next().expect("no more is asked"))));
        assert_eq!(found, Some(seen));
        let always_stale = monitor.find(&ask, || Ok(named("neap-stale")));
        assert_eq!(always_stale, Some(LinkStatus::new(LinkState::Up)));
        assert_eq!(monitor.find(&ask, || Err(Errno::NODEV)), None);
    }
}
