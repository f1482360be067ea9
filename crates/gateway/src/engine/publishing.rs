//! Published ports, and the connections that come to them.

use super::{CHANGES, Gateway, NEW_AT_ONCE, Near};
use crate::bounds;
use crate::counters::{Which, refused_as_new};
use crate::crossings::Crossed;
use crate::descriptors;
use crate::dns::ServerList;
use crate::guest::GuestStream;
use crate::guest_sockets;
use crate::holdings::FlowView;
use crate::host::HostStream;
use crate::host_datagrams::HostDatagrams;
use crate::opening::Opening;
use crate::published::{
    Listener, Place, Publication, PublishedId, PublishedPort, Transport, shown,
};
use crate::refused::Refused;
use crate::relay::{End, Side};
use crate::token::{Slot, Token};
use crate::upstream::{Direct, Far, Upstream};
use neap::Events;
use socket2::Socket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// A connection of a client to a guest that was begun.
struct Published {
    far: Box<dyn Far>,
    /// Where it goes.
    guest: SocketAddr,
    /// The address that the guest sees.
    seen: SocketAddr,
}

impl Gateway {
    /// Makes a port of the host one of a guest: what comes to the one goes to the other, from the
    /// address of whoever sent it. Loopback addresses, which a guest would not answer, become the
    /// stand-in. A [`GatewayHandle`](crate::GatewayHandle) does it during the run.
    ///
    /// # Errors
    /// Why the host does not give the port; `InvalidInput` if the guest and the stand-in are of two
    /// families; `QuotaExceeded` for more than 524,288 ports.
    pub fn publish(&mut self, publication: Publication) -> io::Result<PublishedId> {
        if publication.guest.is_ipv6() != publication.stand_in.is_ipv6() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.published.check_room()?;
        let (socket, publication) = publication.bind(&self.config.outbound)?;
        self.publish_socket(socket, publication)
    }

    /// As [`publish`](Self::publish), with a socket that is bound already, to the port that the
    /// publication names: by an interface, or before a right was given up. It keeps its options;
    /// [`Publication::bind`] gives it the mark that others have.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), and those of a socket that is none of this transport.
    pub fn publish_socket(
        &mut self,
        socket: OwnedFd,
        publication: Publication,
    ) -> io::Result<PublishedId> {
        if publication.guest.is_ipv6() != publication.stand_in.is_ipv6() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.published.check_room()?;
        if publication.transport == Transport::Udp {
            let socket = HostDatagrams::adopt(socket)?;
            let (port, slot) = self.datagrams.publish(&self.poller, socket, publication)?;
            let publication = Publication { port, ..publication };
            return Ok(self.published.note(publication, Place::Mapping(slot)));
        }
        self.take_listener(Listener::adopt(socket, publication, false)?)
    }

    /// Joins a socket of another network namespace with a server of this one, past the stack:
    /// what comes to the bound `socket` goes to `to`, from an address of the host's choice.
    /// [`unpublish`](Self::unpublish) ends it.
    ///
    /// # Errors
    /// `QuotaExceeded` for more than 524,288 ports, and those of a socket that is none of this
    /// transport.
    pub fn cross(
        &mut self,
        transport: Transport,
        socket: OwnedFd,
        to: SocketAddr,
    ) -> io::Result<PublishedId> {
        self.published.check_room()?;
        let publication = Publication { transport, port: to, guest: to, stand_in: to.ip() };
        match transport {
            Transport::Tcp => self.take_listener(Listener::adopt(socket, publication, true)?),
            Transport::Udp => {
                let slot = self.crossings.take(&self.poller, HostDatagrams::adopt(socket)?, to)?;
                Ok(self.published.note(publication, Place::Crossing(slot)))
            }
        }
    }

    fn take_listener(&mut self, listener: Listener) -> io::Result<PublishedId> {
        let publication = *listener.publication();
        let index = self.published.listen(listener);
        let id = self.published.note(publication, Place::Listener(index));
        let token = Token::Published(index).to_bits();
        let listener = self.published.listener(index).expect("it was put there");
        if let Err(error) = self.poller.add(listener, token, Events::IN | Events::ET) {
            self.published.remove(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Closes a published port. Connections that came by it go on; datagrams do not.
    ///
    /// # Errors
    /// `NotFound` if there is no such port.
    pub fn unpublish(&mut self, id: PublishedId) -> io::Result<()> {
        match self.published.remove(id) {
            Some(Place::Listener(_)) => {}
            Some(Place::Mapping(slot)) => {
                self.datagrams.unpublish(slot, self.sending.as_mut());
                self.crossings.forget_port(slot);
            }
            Some(Place::Crossing(slot)) => self.crossings.remove(slot),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        Ok(())
    }

    /// The published ports, in the order in which they were published.
    pub fn published(&self) -> Vec<PublishedPort> {
        self.published.list()
    }

    /// Takes connections to a published port. Whether there may be more.
    pub(super) fn take_published(&mut self, index: usize) -> bool {
        for _ in 0..NEW_AT_ONCE {
            // It may have been closed since the event.
            let Some(listener) = self.published.listener(index) else { return false };
            let (&publication, is_crossing) = (listener.publication(), listener.is_crossing());
            let (mut near, client) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The connection is over already, or there are no descriptors: others may wait, of
                // which no event will tell.
                Err(error) => {
                    self.counters.count(Refused::of(&error).counter());
                    self.pauses.add(index, Instant::now());
                    return false;
                }
            };
            let has_none = || descriptors::admit(&near).is_err();
            let refused = self.refuses_new().or_else(|| has_none().then_some(Refused::Full));
            if let Some(why) = refused {
                self.counters.count(why.counter());
                near.reset();
                continue;
            }
            let opened = if is_crossing {
                let (guest, seen) = (publication.guest, client);
                let far = Direct.connect(&guest.into(), client.into());
                far.map(|far| Published { far, guest, seen })
            } else {
                self.connect_to_guest(&publication, client)
            };
            match opened {
                Ok(Published { far, guest, seen }) => {
                    // A crossing begins at a socket of the guest.
                    let host = if is_crossing { Side::Server } else { Side::Client };
                    let view = FlowView { local: seen, guest, far: seen, held: 0 };
                    self.enter_published(near, far, host, view);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(listener) = self.published.listener(index) {
                        listener.put_back(near, client);
                    }
                    self.pauses.add(index, Instant::now());
                    return false;
                }
                Err(_) => {
                    self.counters.count(|counters| &counters.unreached);
                    near.reset();
                }
            }
        }
        true
    }

    /// Begins a connection of a client to a guest.
    fn connect_to_guest(
        &self,
        publication: &Publication,
        client: SocketAddr,
    ) -> io::Result<Published> {
        if let Some(sockets) = &self.config.guest_sockets
            && let Some(guest) = guest_sockets::loopback(client, publication.guest)
        {
            let socket = sockets.open(Transport::Tcp, guest.is_ipv6())?;
            descriptors::admit(&socket)?;
            let stream = HostStream::connect_by(Socket::from(socket), guest)?;
            let seen = stream.local_addr()?;
            return Ok(Published { far: Box::new(Opening::of(stream, guest)), guest, seen });
        }
        let guest = publication.guest;
        let client = shown(client, publication.stand_in, &self.config.guest_addresses);
        let connect = |from| {
            let options = bounds::options(self.config.rate_in);
            GuestStream::connect(&self.stack, guest, from, options)
        };
        let far = connect(client).or_else(|error| match error.kind() {
            // Another client that is seen by this address has the port.
            io::ErrorKind::AddrInUse => connect(SocketAddr::new(client.ip(), 0)),
            _ => Err(error),
        })?;
        let seen = far.stream().local_addr()?;
        Ok(Published { far: Box::new(far), guest, seen })
    }

    /// Passes datagrams on between namespaces. Whether there may be more.
    pub(super) fn cross_datagrams(&mut self, slot: Slot) -> bool {
        let is_draining = self.ends.is_some();
        let most = if is_draining { 0 } else { self.config.most_mappings };
        let mut crossed = self.crossings.pass(slot, &self.poller, most);
        for answer in self.crossings.take_answers() {
            let number = answer.data.len();
            let sent = self.datagrams.answer(&answer);
            crossed.back += sent;
            crossed.unsent += number - sent;
        }
        let has_more = crossed.has_more;
        self.count_crossed(crossed);
        has_more
    }

    /// Takes datagrams for a published port. Whether there may be more.
    pub(super) fn take_datagrams(&mut self, slot: Slot) -> bool {
        let has_more = self.datagrams.on_host(slot, &self.config, self.sending.as_mut());
        if let Some(sockets) = &self.config.guest_sockets {
            let most = if self.ends.is_some() { 0 } else { self.config.most_mappings };
            let mut crossed = Crossed::default();
            for (guest, arrived) in self.datagrams.take_for_loopback() {
                let to = (slot, guest, &**sockets);
                self.crossings.enter_guest(to, &arrived, &self.poller, most, &mut crossed);
            }
            self.count_crossed(crossed);
        }
        has_more
    }

    fn count_crossed(&mut self, crossed: Crossed) {
        let is_draining = self.ends.is_some();
        let full = refused_as_new(is_draining, |counters| &counters.full_mappings);
        for (number, which) in [
            (crossed.out, (|counters| &counters.datagrams_out) as Which),
            (crossed.back, |counters| &counters.datagrams_in),
            (crossed.unsent, |counters| &counters.unsent_datagrams),
            (crossed.full, full),
            (crossed.strange, |counters| &counters.bad_datagrams),
            (crossed.overrun, |counters| &counters.overrun_datagrams),
        ] {
            self.counters.add(which, number as u64);
        }
    }

    fn enter_published(
        &mut self,
        mut near: HostStream,
        mut far: Box<dyn Far>,
        host: Side,
        view: FlowView,
    ) {
        let token = Token::Flow(self.next_flow()).to_bits();
        if self.poller.add(&near, token, CHANGES).is_err() {
            self.counters.count(|counters| &counters.full);
            near.reset();
            return far.reset();
        }
        self.begin(Near::Open(Box::new(near)), (far, ServerList::new()), host, view);
    }
}
