//! Machine in virtual time on which scripts run neap: a stack, the descriptors of one process, and
//! a wire whose other end is the script.
//!
//! [`VirtualHost`](crate::virtual_host::VirtualHost) runs the calls of a script on it. The plug-in
//! for packetdrill makes its own calls, from several threads, and decides by itself when time
//! passes.

mod wire;

use crate::host::SentPacket;
use bytes::Bytes;
use core::net::IpAddr;
use neap_posix::{Fd, Posix};
use neap_stack::interface::{Address, InterfaceId};
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::route::{Prefix, Route, RouteEntry};
use neap_stack::stack::{Stack, StackConfig, StackError};
use neap_tcp::time::{Instant, Nanos};
use wire::Wire;

/// Time at which every machine begins.
pub const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// Visits of the stack at one instant after which it is thought to spin.
const MAX_POLLS: u32 = 100_000;

/// Error of a stack that still has work at one instant after very many visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stack has work for ever at one instant")]
pub struct EndlessWork;

/// Stack in virtual time, whose network is the script.
///
/// Nothing happens except in a call, and time passes only in [`advance`](Self::advance).
#[derive(Debug)]
pub struct Machine {
    posix: Posix,
    wire: Wire,
    mtu: u16,
    cuts_super_frames: bool,
    now: Instant,
    /// When the stack is to be visited next.
    due: Instant,
    /// The host's own addresses, one for each interface.
    addresses: Vec<IpAddr>,
    interfaces: Vec<InterfaceId>,
    qdisc: Option<QdiscConfig>,
}

impl Machine {
    /// Returns a machine without addresses. Its first descriptor is `first_fd`; its interfaces have
    /// this MTU, in bytes.
    ///
    /// # Errors
    /// [`StackError`] for settings that make no sense.
    pub fn new(config: StackConfig, mtu: u16, first_fd: Fd) -> Result<Self, StackError> {
        Ok(Self {
            posix: Posix::new(Stack::new(config)?, first_fd),
            wire: Wire::default(),
            mtu,
            cuts_super_frames: false,
            now: START,
            due: START,
            addresses: Vec::new(),
            interfaces: Vec::new(),
            qdisc: None,
        })
    }

    /// Returns the descriptors, and through them the stack.
    pub fn posix(&mut self) -> &mut Posix {
        &mut self.posix
    }

    /// Returns the stack.
    pub fn stack(&self) -> &Stack {
        self.posix.stack()
    }

    /// Returns whether this is one of the host's own addresses.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Sets the MTU of interfaces that are added from now on, in bytes.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// Lets the interfaces that are added from now on send segment by segment, as a device without
    /// segmentation offload does. Others send a super-frame as one packet.
    pub fn cut_super_frames(&mut self) {
        self.cuts_super_frames = true;
    }

    /// Adds an address of the host, on an interface of its own. All interfaces are at the same
    /// wire.
    ///
    /// The first address of each family is the source of packets beyond the networks of the
    /// interfaces.
    ///
    /// # Errors
    /// [`StackError`], which a device with one queue does not cause.
    pub fn add_address(&mut self, address: Address) -> Result<(), StackError> {
        let device = self.wire.device(self.mtu, self.cuts_super_frames);
        let id = self.posix.stack().add_interface(self.now, device, &[address])?;
        if let Some(qdisc) = &self.qdisc {
            self.replace_qdisc(id, qdisc);
        }
        self.interfaces.push(id);
        let is_first = !self.addresses.iter().any(|one| one.is_ipv4() == address.ip.is_ipv4());
        if is_first {
            self.add_default_route(id, address.ip);
        }
        self.addresses.push(address.ip);
        Ok(())
    }

    /// Returns the qdisc of every interface, if one was set.
    pub fn qdisc(&self) -> Option<&QdiscConfig> {
        self.qdisc.as_ref()
    }

    /// Sets the qdisc of every interface, those of later addresses included.
    pub fn set_qdisc(&mut self, qdisc: QdiscConfig) {
        for &interface in &self.interfaces {
            self.replace_qdisc(interface, &qdisc);
        }
        self.qdisc = Some(qdisc);
    }

    fn replace_qdisc(&self, interface: InterfaceId, qdisc: &QdiscConfig) {
        let replaced = self.stack().set_qdisc(self.now, interface, qdisc);
        debug_assert!(replaced.is_ok(), "no interface is ever removed");
    }

    /// Everything is behind the wire.
    fn add_default_route(&self, interface: InterfaceId, source: IpAddr) {
        let prefix = Prefix::of_all(source);
        let route = Route { interface, gateway: None, mtu: None, pref_src: Some(source) };
        let added = self.stack().add_route(RouteEntry { prefix, metric: 0, route });
        debug_assert!(added.is_ok(), "no interface is ever removed");
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Nanos {
        self.now.since(START)
    }

    /// Returns when the stack has something to do next.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Lets the stack do all that is due now.
    ///
    /// # Errors
    /// [`EndlessWork`].
    pub fn poll(&mut self) -> Result<(), EndlessWork> {
        for _ in 0..MAX_POLLS {
            (self.due, _) = self.posix.stack().poll(0, self.now);
            if self.due > self.now {
                return Ok(());
            }
        }
        Err(EndlessWork)
    }

    /// Lets time pass until the stack has something to do, at the latest until `end`.
    pub fn advance(&mut self, end: Instant) {
        self.now = self.due.min(end).max(self.now);
    }

    /// Lets a packet of the script arrive at the next [`poll`](Self::poll). Returns false if too
    /// many wait.
    pub fn inject(&mut self, packet: Bytes) -> bool {
        self.wire.inject(packet)
    }

    /// Takes the next packet that the stack sent.
    pub fn take_sent(&mut self) -> Option<SentPacket> {
        self.wire.take_sent()
    }

    /// Returns how many sent packets wait to be taken.
    pub fn sent(&self) -> usize {
        self.wire.sent()
    }
}
