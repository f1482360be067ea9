//! Effects of a changed or removed interface on sockets, shards and subscribers.

use super::Host;
use crate::event::StackEvent;
use crate::net::error::NetError;
use crate::net::interface::{Interface, InterfaceId, LinkChanges};
use crate::stats::IpCounter;
use crate::sync::lock;
use neap_tcp::time::Instant;
use std::sync::Arc;

impl Host {
    /// Takes an interface out: no packet comes or leaves by it, what waits is dropped, and its
    /// device is closed.
    fn detach(&self, now: Instant, id: InterfaceId) -> Result<Arc<Interface>, NetError> {
        let mut lost = lock(&self.lost_by_removed);
        let interface = self.net.topology.remove(id)?;
        *lost += self.rx_dropped(&interface);
        drop(lost);
        for shard in &self.shards {
            shard.remove_queues(id);
        }
        interface.close(now);
        Ok(interface)
    }

    /// Removes an interface. As in Linux, connections that have no other way stay, and fail when
    /// they time out.
    pub(crate) fn remove_interface(&self, now: Instant, id: InterfaceId) -> Result<(), NetError> {
        self.detach(now, id)?;
        self.events.tell(&StackEvent::InterfaceRemoved { interface: id });
        Ok(())
    }

    /// Removes all interfaces with their routes, and closes their devices.
    pub(crate) fn remove_interfaces(&self, now: Instant) {
        for interface in self.net.topology.interfaces() {
            // Another thread may have removed it meanwhile.
            let _ = self.remove_interface(now, interface.id());
        }
    }

    /// The device of an interface is gone, and the interface with it. Sockets that have no other
    /// way fail at once. Costs a look at each socket.
    fn lose_interface(&self, now: Instant, id: InterfaceId) -> Result<(), NetError> {
        let interface = self.detach(now, id)?;
        let is_last = self.net.topology.interfaces().is_empty();
        for socket in self.demux.connections() {
            socket.on_device_gone(self, now, id);
        }
        self.udp.on_device_gone(self, now, id, is_last);
        self.forwarders.on_device_gone(id, is_last);
        self.icmp.on_device_gone(id, is_last);
        for listener in self.demux.listeners() {
            let local = listener.local().ip();
            let is_cut_off =
                if local.is_unspecified() { is_last } else { !self.may_be_reached(local) };
            if is_cut_off {
                listener.on_network_down();
            }
        }
        let name = interface.name().to_owned();
        self.events.tell(&StackEvent::DeviceGone { interface: id, name });
        Ok(())
    }

    /// A router on the link of an interface has advertised itself.
    pub(crate) fn on_router(&self, interface: InterfaceId) {
        self.events.tell_once(&StackEvent::RouterAdvertised { interface });
    }

    /// Packets that the device of an interface lost before they could be received. It waits for
    /// polls to end, and may take system calls.
    pub(crate) fn rx_dropped(&self, interface: &Interface) -> u64 {
        let by_queues = self.shards.iter().map(|shard| shard.rx_dropped(interface.id()));
        by_queues.sum::<u64>() + interface.lost_before_queues()
    }

    /// The same of all devices that the host has had, so the sum never falls.
    pub(crate) fn receive_drops(&self) -> u64 {
        let lost = lock(&self.lost_by_removed);
        let interfaces = self.net.topology.interfaces();
        *lost + interfaces.iter().map(|interface| self.rx_dropped(interface)).sum::<u64>()
    }

    /// Tells of own addresses that the kernel of the machine has got.
    pub(crate) fn look_for_taken(&self, interface: &Interface) {
        for (address, owner) in interface.newly_taken() {
            self.net.counters.ip.add(IpCounter::AddressesTaken, 1);
            let interface = interface.id();
            self.events.tell(&StackEvent::AddressTaken { interface, address, owner });
        }
    }

    /// Tells sockets and subscribers what a look at the device of an interface has found.
    pub(crate) fn on_link_changes(
        &self,
        now: Instant,
        interface: &Interface,
        changes: LinkChanges,
    ) -> Result<(), NetError> {
        let id = interface.id();
        if changes.is_gone {
            return self.lose_interface(now, id);
        }
        if changes != LinkChanges::default() {
            self.net.topology.note_change();
        }
        if let Some(is_up) = changes.link {
            if !is_up {
                // Another link may come up with other stations on it (`neigh_carrier_down`).
                interface.flush_neighbors();
            }
            self.events.tell_of_now(|| match interface.is_up() {
                true => StackEvent::LinkUp { interface: id },
                false => StackEvent::LinkDown { interface: id },
            });
        }
        if changes.mtu.is_some() {
            let changed = || StackEvent::MtuChanged { interface: id, mtu: interface.mtu() };
            self.events.tell_of_now(changed);
        }
        Ok(())
    }
}
