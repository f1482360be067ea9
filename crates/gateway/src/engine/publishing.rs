//! Published ports, and the connections that come to them.

use super::{CHANGES, Gateway, NEW_AT_ONCE, Near};
use crate::guest::GuestStream;
use crate::host::HostStream;
use crate::published::{Listener, Place, Publication, PublishedId, PublishedPort, Transport};
use crate::relay::End;
use crate::token::Token;
use neap::Events;
use std::io;

impl Gateway {
    /// Makes a port of the host one of a guest: what comes to the one goes to the other, from the
    /// address of whoever sent it. Loopback addresses, which a guest would not answer, become the
    /// stand-in. A [`GatewayHandle`](crate::GatewayHandle) does it during the run.
    ///
    /// # Errors
    /// Why the host does not give the port; `InvalidInput` if the guest and the stand-in are of two
    /// families; `QuotaExceeded` for more than 65,536 ports.
    pub fn publish(&mut self, publication: Publication) -> io::Result<PublishedId> {
        if publication.guest.is_ipv6() != publication.stand_in.is_ipv6() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.published.check_room()?;
        if publication.transport == Transport::Udp {
            let (port, slot) = self.datagrams.publish(&self.poller, publication)?;
            let publication = Publication { port, ..publication };
            return Ok(self.published.note(publication, Place::Mapping(slot)));
        }
        let listener = Listener::open(publication)?;
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
            Some(Place::Mapping(slot)) => self.datagrams.unpublish(slot),
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
            let guest = listener.publication().guest;
            let (mut near, client) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The connection is over already, or there are no descriptors.
                Err(_) => {
                    self.counters.count(|counters| &counters.unreached);
                    return false;
                }
            };
            if self.flows.len() >= self.config.most_flows {
                self.counters.count(|counters| &counters.full);
                near.reset();
                continue;
            }
            match GuestStream::connect(&self.stack, guest, client) {
                Ok(far) => self.enter_published(near, far),
                Err(_) => {
                    self.counters.count(|counters| &counters.unreached);
                    near.reset();
                }
            }
        }
        true
    }

    fn enter_published(&mut self, mut near: HostStream, mut far: GuestStream) {
        let token = Token::Flow(self.next_flow()).to_bits();
        if self.poller.add(&near, token, CHANGES).is_err() {
            self.counters.count(|counters| &counters.full);
            near.reset();
            return far.reset();
        }
        self.begin(Near::Open(Box::new(near)), Box::new(far));
    }
}
