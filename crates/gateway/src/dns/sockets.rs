//! Sockets by which questions go to resolvers, of the host or of an upstream, and what comes back.

use super::message;
use crate::host_errors::Manner;
use crate::outbound::{NotOwn, Outbound};
use crate::receive_room::{RECEIVE_ROOM, ReceiveRoom};
use crate::token::{Slot, Token};
use crate::upstream::{FarDatagrams, Upstream};
use bytes::Bytes;
use neap::{Events, Poller};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;

/// Answers to others that one look at a socket passes over.
const MOST_STRANGERS: u64 = 64;

/// What became of a question.
pub(crate) enum Outcome {
    Waits,
    /// The resolver does not answer, or cannot.
    Failed,
    Answered(Vec<u8>),
}

/// What a look for an answer came to.
pub(super) struct Look {
    pub(super) outcome: Outcome,
    /// Messages that were no answer.
    pub(super) strangers: u64,
    /// The resolver has said something, be it that it cannot answer.
    pub(super) is_heard: bool,
}

/// A socket for one question to one resolver, with a port that is hard to guess.
pub(super) enum QuestionSocket {
    /// Of the host, which chooses the port at random when it is bound or connected.
    Host(Socket),
    /// Of an upstream. It is not connected.
    Through(Box<dyn FarDatagrams>),
}

impl QuestionSocket {
    /// A socket of the host.
    pub(super) fn of_host(outbound: &Outbound, server: SocketAddr) -> io::Result<Self> {
        let outbound = outbound.towards(server.ip());
        let socket = outbound.socket(Domain::for_address(server), Type::DGRAM, Protocol::UDP)?;
        let from = outbound.from(server);
        if !from.ip().is_unspecified() {
            socket.bind(&from.into()).map_err(|error| NotOwn::of_bind(error, from))?;
        }
        Ok(Self::Host(socket))
    }

    /// A socket of an upstream.
    pub(super) fn through(upstream: &dyn Upstream, server: SocketAddr) -> io::Result<Self> {
        Ok(Self::Through(upstream.datagrams(&server.into())?))
    }

    /// Sends a question, whose answer has `slot`.
    pub(super) fn send(
        &mut self,
        question: &[u8],
        server: SocketAddr,
        slot: Slot,
        poller: &Poller,
    ) -> io::Result<()> {
        let token = Token::Query(slot).to_bits();
        match self {
            Self::Host(socket) => {
                socket.connect(&SockAddr::from(server))?;
                poller.add(&*socket, token, Events::IN | Events::ET)?;
                send(socket, question, SendFlags::NOSIGNAL)?;
            }
            Self::Through(far) => {
                far.enter(poller, token)?;
                let question = Bytes::copy_from_slice(question);
                let sent = far.send(&[question], &server.into(), Manner::PLAIN);
                if sent.count + sent.held == 0 {
                    return Err(io::ErrorKind::NetworkUnreachable.into());
                }
            }
        }
        Ok(())
    }

    /// Looks for the answer. If another resolver can be asked, an answer without knowledge does not
    /// count.
    pub(super) fn receive(
        &mut self,
        room: &mut ReceiveRoom,
        question: &[u8],
        server: SocketAddr,
        is_last: bool,
    ) -> Look {
        for strangers in 0..MOST_STRANGERS {
            let (outcome, is_heard) = match self.next(room, question, server) {
                Ok(None) => continue,
                Ok(Some(answer)) if message::is_helpless(&answer) && !is_last => {
                    (Outcome::Failed, true)
                }
                Ok(Some(answer)) => (Outcome::Answered(answer), true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (Outcome::Waits, false),
                // Nobody has the port, or there is no way.
                Err(_) => (Outcome::Failed, false),
            };
            return Look { outcome, strangers, is_heard };
        }
        // Somebody guesses: another port and ID are next.
        Look { outcome: Outcome::Failed, strangers: MOST_STRANGERS, is_heard: false }
    }

    /// The answer in the next message that has come; `None` if that is another one.
    fn next(
        &mut self,
        room: &mut ReceiveRoom,
        question: &[u8],
        server: SocketAddr,
    ) -> io::Result<Option<Vec<u8>>> {
        let is_answer = |message: &[u8]| message::is_answer(question, message);
        match self {
            Self::Host(socket) => {
                let (_, count) = recv(&*socket, room.buffer(), RecvFlags::empty())?;
                let message = &room.buffer()[..count.min(RECEIVE_ROOM)];
                Ok(is_answer(message).then(|| message.to_vec()))
            }
            Self::Through(far) => {
                let arrived = match far.receive(room) {
                    Err(_) if far.undelivered(room.buffer()).is_some() => {
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    arrived => arrived?,
                };
                let is_server =
                    (arrived.from.ip(), arrived.from.port()) == (server.ip(), server.port());
                let answer = arrived.datagrams().find(|data| is_server && is_answer(data));
                Ok(answer.map(|data| data.to_vec()))
            }
        }
    }
}
