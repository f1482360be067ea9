//! Totals of each guest of a gateway, by its address.
//!
//! At most [`MOST`] addresses have totals of their own. Where there are more, the addresses without
//! connections and mappings give up their places, and what they have counted goes to the totals of
//! all others. So the sum of all totals never falls, and a guest that uses many addresses does not
//! make the table grow.
//!
//! Cost: a look at a table under a mutex per connection and per mapping, two additions per visit of
//! one. An address takes about 150 bytes. A new address at a full table costs a look at all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses that have totals of their own.
const MOST: usize = 1024;

/// What a guest has done, and what it has, at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuestView {
    /// Its address; `None` for the sum of all that have no totals of their own.
    pub address: Option<IpAddr>,
    /// TCP connections that it has begun, or that were begun to it, so far.
    pub connections: u64,
    /// TCP connections that there are.
    pub flows: u64,
    /// Addresses and ports with a UDP socket of the host, and identifiers with a ping socket, that
    /// there are.
    pub mappings: u64,
    /// Bytes that it has sent over connections, in datagrams and in echo requests, without headers,
    /// as far as the other side has taken them.
    pub bytes_out: u64,
    /// Bytes that it got, without headers.
    pub bytes_in: u64,
}

/// The totals of all guests. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    of_address: HashMap<IpAddr, Arc<Totals>>,
    others: Arc<Totals>,
}

#[derive(Debug, Default)]
struct Totals {
    connections: AtomicU64,
    flows: AtomicU64,
    mappings: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
}

impl Totals {
    fn is_idle(&self) -> bool {
        self.flows.load(Relaxed) == 0 && self.mappings.load(Relaxed) == 0
    }

    fn view(&self, address: Option<IpAddr>) -> GuestView {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        GuestView {
            address,
            connections: get(&self.connections),
            flows: get(&self.flows),
            mappings: get(&self.mappings),
            bytes_out: get(&self.bytes_out),
            bytes_in: get(&self.bytes_in),
        }
    }
}

/// A connection or a mapping in the totals of its guest, until it is dropped.
#[derive(Debug)]
pub(crate) struct Account {
    totals: Arc<Totals>,
    is_flow: bool,
}

impl Account {
    fn open(&self) -> &AtomicU64 {
        if self.is_flow { &self.totals.flows } else { &self.totals.mappings }
    }

    /// Counts bytes that the guest has sent, and got.
    pub(crate) fn add(&self, out: u64, back: u64) {
        self.totals.bytes_out.fetch_add(out, Relaxed);
        self.totals.bytes_in.fetch_add(back, Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.open().fetch_sub(1, Relaxed);
    }
}

impl Guests {
    /// A guest has a connection from now on.
    pub(crate) fn flow(&self, address: IpAddr) -> Account {
        let account = self.account(address, true);
        account.totals.connections.fetch_add(1, Relaxed);
        account
    }

    /// A guest has a mapping from now on.
    pub(crate) fn mapping(&self, address: IpAddr) -> Account {
        self.account(address, false)
    }

    fn account(&self, address: IpAddr, is_flow: bool) -> Account {
        // Counted under the lock, so that nobody else finds it idle.
        let mut table = self.lock();
        let account = Account { totals: table.totals(address), is_flow };
        account.open().fetch_add(1, Relaxed);
        account
    }

    /// Returns the totals of each guest in the order of their addresses, and in the end those of
    /// all others, if there are any.
    pub(crate) fn list(&self) -> Vec<GuestView> {
        let table = self.lock();
        let mut all: Vec<_> =
            table.of_address.iter().map(|(address, totals)| totals.view(Some(*address))).collect();
        all.sort_by_key(|one| one.address);
        let others = table.others.view(None);
        all.extend((others != Totals::default().view(None)).then_some(others));
        all
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn totals(&mut self, address: IpAddr) -> Arc<Totals> {
        if let Some(totals) = self.of_address.get(&address) {
            return totals.clone();
        }
        if self.of_address.len() >= MOST {
            self.forget_idle();
        }
        if self.of_address.len() >= MOST {
            return self.others.clone();
        }
        self.of_address.entry(address).or_default().clone()
    }

    fn forget_idle(&mut self) {
        let Self { of_address, others } = self;
        of_address.retain(|_, totals| {
            if !totals.is_idle() {
                return true;
            }
            let GuestView { connections, bytes_out, bytes_in, .. } = totals.view(None);
            others.connections.fetch_add(connections, Relaxed);
            others.bytes_out.fetch_add(bytes_out, Relaxed);
            others.bytes_in.fetch_add(bytes_in, Relaxed);
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(number: usize) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + number as u32).into()
    }

    fn of(guests: &Guests, address: Option<IpAddr>) -> Option<GuestView> {
        guests.list().into_iter().find(|one| one.address == address)
    }

    #[test]
    fn each_guest_has_totals_of_its_own() {
        let guests = Guests::default();
        let (a, b, mapping) =
            (guests.flow(guest(1)), guests.flow(guest(2)), guests.mapping(guest(1)));
        a.add(10, 20);
        mapping.add(1, 2);
        b.add(5, 0);
        drop(b);
        let address = Some(guest(1));
        let (connections, flows, mappings) = (1, 1, 1);
        let first =
            GuestView { address, connections, flows, mappings, bytes_out: 11, bytes_in: 22 };
        assert_eq!(of(&guests, address), Some(first));
        let address = Some(guest(2));
        let (flows, mappings) = (0, 0);
        let second = GuestView { address, connections, flows, mappings, bytes_out: 5, bytes_in: 0 };
        assert_eq!(of(&guests, address), Some(second));
        assert_eq!(of(&guests, None), None);
    }

    #[test]
    fn idle_guests_give_up_their_places_and_no_byte_is_forgotten() {
        let guests = Guests::default();
        let busy = guests.mapping(guest(0));
        for number in 1..10 * MOST {
            guests.flow(guest(number)).add(1, 2);
        }
        assert!(guests.lock().of_address.len() <= MOST);
        busy.add(7, 0);
        assert_eq!(of(&guests, Some(guest(0))).map(|one| one.bytes_out), Some(7));
        let sum: u64 = guests.list().iter().map(|one| one.bytes_in).sum();
        assert_eq!(sum, 2 * (10 * MOST as u64 - 1));
    }

    #[test]
    fn guests_beyond_the_places_count_together() {
        let guests = Guests::default();
        let all: Vec<_> = (0..MOST + 5).map(|number| guests.flow(guest(number))).collect();
        let others = of(&guests, None).expect("some have no place");
        assert_eq!((others.flows, others.connections), (5, 5));
        drop(all);
        let others = of(&guests, None).expect("they have counted");
        assert_eq!((others.flows, others.connections), (0, 5));
        let _late = guests.flow(guest(2 * MOST));
        assert_eq!(of(&guests, Some(guest(2 * MOST))).map(|one| one.flows), Some(1));
    }
}
