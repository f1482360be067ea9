//! `sendmmsg` and `recvmmsg`: many datagrams in one call.

use super::transfer::{give_datagram, may_wait, refusal};
use crate::abi::*;
use crate::call::{Call, Outcome};
use crate::cmsg::{Asked, Control};
use crate::errno::Errno;
use crate::sockaddr::Domain;
use crate::socket::Kind;
use crate::{Fd, Incoming, Outgoing, Posix, Received};
use neap_stack::socket::SocketError;
use neap_stack::socket::udp::{ReceivedDatagram, SendDatagram, UdpHandle};
use neap_tcp::time::Instant;

/// Most messages of one call (`UIO_MAXIOV`).
const MOST: usize = 1024;

impl Posix {
    /// `sendmmsg(2)`: sends messages in their order and returns how many were sent. Datagrams alike
    /// that follow each other leave as one super-frame where the device takes such frames. It waits
    /// up to `SO_SNDTIMEO` for room.
    ///
    /// Of several messages TCP takes one. Messages beyond the first 1024 are left, as by Linux.
    ///
    /// # Errors
    /// Those of [`send_msg`](Self::send_msg), of the first message. Of a later one they end the
    /// call.
    pub fn send_mmsg(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        messages: &mut [Outgoing<'_>],
        flags: i32,
    ) -> Result<Outcome<usize>, Errno> {
        let file = call.file(&self.table, fd)?;
        let shared = file.socket()?;
        let most = messages.len().min(MOST);
        let messages = &mut messages[..most];
        if shared.lock().is_stream() {
            let Some(first) = messages.first_mut() else { return Ok(Outcome::Done(0)) };
            let Outgoing { data, control, to, .. } = *first;
            let sent = self.send_msg(now, call, fd, data, control, flags, to)?;
            return Ok(sent.map(|sent| {
                first.sent = sent;
                1
            }));
        }
        let rest = &mut messages[call.done.min(most)..];
        let Attempt { sent, error, is_full } = send_while_there_is_room(now, rest, |message| {
            let Outgoing { data, control, to, .. } = *message;
            self.datagram_to_send(now, shared, data, control, flags, to)
        });
        rest.iter_mut().take(sent).for_each(|message| message.sent = message.data.len());
        call.done += sent;
        if is_full && may_wait(&file, flags) {
            let timeout = shared.lock().common.send_timeout;
            if let Some(wait) = call.wait(now, timeout, POLLOUT) {
                return Ok(wait);
            }
        }
        match error {
            Some(error) if call.done == 0 => Err(error),
            _ => Ok(Outcome::Done(call.done)),
        }
    }

    /// `recvmmsg(2)`: receives messages and returns how many came. It waits up to `SO_RCVTIMEO` for
    /// all of them, or with `MSG_WAITFORONE` for the first alone. The call has no other timeout.
    ///
    /// TCP, and `MSG_PEEK` and `MSG_ERRQUEUE`, bring one message.
    ///
    /// # Errors
    /// Those of [`recv_msg`](Self::recv_msg), where no message has come.
    pub fn recv_mmsg(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        messages: &mut [Incoming<'_>],
        flags: i32,
    ) -> Result<Outcome<usize>, Errno> {
        if !call.is_repeated() {
            // What another call has received is none of this one's.
            messages.iter_mut().for_each(|message| message.received = None);
        }
        let file = call.file(&self.table, fd)?;
        let shared = file.socket()?;
        let most = messages.len().min(MOST);
        let messages = &mut messages[..most];
        let socket = shared.lock();
        let handle = match &socket.kind {
            Kind::Datagram(Some(handle)) if flags & (MSG_PEEK | MSG_ERRQUEUE) == 0 => {
                handle.clone()
            }
            _ => {
                drop(socket);
                let Some(first) = messages.first_mut() else { return Ok(Outcome::Done(0)) };
                return self.receive_one(now, call, fd, first, flags & !MSG_WAITFORONE);
            }
        };
        let (domain, asked) = (socket.domain, socket.common.asked);
        let (timeout, is_shut) = (socket.common.receive_timeout, socket.shut.0);
        drop(socket);
        let before = call.done.min(most);
        let rest = &mut messages[before..];
        if rest.is_empty() {
            return Ok(Outcome::Done(call.done));
        }
        let mut datagrams = Vec::new();
        let take = |datagram| datagrams.push(datagram);
        let taken = match before {
            0 => handle.recv_batch(rest.len(), take),
            _ => handle.recv_more(rest.len(), take),
        };
        for (message, datagram) in rest.iter_mut().zip(&datagrams) {
            self.fill(message, datagram, domain, asked, flags);
        }
        call.done += datagrams.len();
        match taken {
            Err(SocketError::WouldBlock) | Ok(_) => {}
            // An error that comes behind a datagram is told to the next call.
            Err(_) if before > 0 => return Ok(Outcome::Done(before)),
            Err(error) => return Err(error.into()),
        }
        let is_enough = call.done == most || call.done > 0 && flags & MSG_WAITFORONE != 0;
        if is_enough {
            return Ok(Outcome::Done(call.done));
        }
        if is_shut && may_wait(&file, flags) {
            // Of the end each message without bytes tells.
            let empty = if flags & MSG_WAITFORONE != 0 { call.done + 1 } else { most };
            for message in &mut messages[call.done..empty] {
                message.received = Some(Received::bytes(0));
            }
            return Ok(Outcome::Done(empty));
        }
        let wait = if may_wait(&file, flags) { call.wait(now, timeout, POLLIN) } else { None };
        match wait {
            Some(wait) => Ok(wait),
            None if call.done > 0 => Ok(Outcome::Done(call.done)),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Gives a message the datagram, and the control messages that are asked for.
    fn fill(
        &self,
        message: &mut Incoming<'_>,
        datagram: &ReceivedDatagram,
        domain: Domain,
        asked: Asked,
        flags: i32,
    ) {
        let mut control = Control::new(message.control);
        if !asked.is_empty() {
            let spec_dst = self.answer_source(domain, datagram);
            control.put_datagram(domain, asked, datagram, spec_dst);
        }
        let received = give_datagram(flags, domain, datagram, message.buf, control);
        message.received = Some(received);
    }

    fn receive_one(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        message: &mut Incoming<'_>,
        flags: i32,
    ) -> Result<Outcome<usize>, Errno> {
        let Incoming { buf, control, received } = message;
        let one = self.recv_msg(now, call, fd, buf, control, flags)?;
        Ok(one.map(|one| {
            *received = Some(one);
            1
        }))
    }
}

/// What one attempt to send messages did.
#[derive(Debug, PartialEq, Eq)]
struct Attempt {
    /// So many were sent.
    sent: usize,
    /// Why the next one was not.
    error: Option<Errno>,
    /// The socket has no room for it, and room is worth a wait. A socket that finds no port answers
    /// `EAGAIN`, too, and nothing would end its wait.
    is_full: bool,
}

/// Sends messages in their order until one of them is refused. A message is made into a datagram by
/// `build` only when the one before it has room, so an attempt costs what it sends, however many
/// remain.
fn send_while_there_is_room(
    now: Instant,
    messages: &[Outgoing<'_>],
    mut build: impl FnMut(&Outgoing<'_>) -> Result<(UdpHandle, SendDatagram), Errno>,
) -> Attempt {
    let nothing = |error| Attempt { sent: 0, error, is_full: false };
    let Some((first, others)) = messages.split_first() else { return nothing(None) };
    let (handle, first) = match build(first) {
        Ok(built) => built,
        Err(error) => return nothing(Some(error)),
    };
    let has_source = first.from.is_some();
    let mut bad = None;
    let others = others.iter().map_while(|message| match build(message) {
        Ok((_, datagram)) => Some(datagram),
        Err(error) => {
            bad = Some(error);
            None
        }
    });
    let (sent, outcome) = handle.send_batch(now, core::iter::once(first).chain(others.fuse()));
    let is_full = outcome == Err(SocketError::WouldBlock);
    let error = outcome.err().map(|error| refusal(error, &handle, has_source)).or(bad);
    Attempt { sent, error, is_full }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use neap_stack::stack::{Stack, StackConfig, UdpOptions};

    #[test]
    fn an_attempt_builds_no_more_datagrams_than_there_is_room_for() {
        let now = Instant::from_nanos(1_000_000_000);
        let stack = Stack::new(StackConfig::default()).expect("default settings");
        let to = "127.0.0.1:53".parse().expect("an address");
        let socket = stack.bind_udp(to, UdpOptions::default()).expect("a free port");
        socket.set_buffers(None, Some(4096));
        let data = [7; 1000];
        let message = || Outgoing { data: &data, control: &[], to: None, sent: 0 };
        let messages: Vec<_> = core::iter::repeat_with(message).take(MOST).collect();
        let attempt = |messages: &[Outgoing<'_>]| {
            let mut built = 0;
            let Attempt { sent, error, is_full } =
                send_while_there_is_room(now, messages, |message| {
                    built += 1;
                    let data = bytes::Bytes::copy_from_slice(message.data);
                    Ok((socket.clone(), SendDatagram::new(data, Some(to))))
                });
            assert_eq!((error, is_full), (Some(Errno::EAGAIN), true));
            (built, sent)
        };
        let (built, sent) = attempt(&messages);
        assert!((1..MOST / 2).contains(&sent), "{sent}");
        assert!(built <= sent + 2, "{built} for {sent}");
        // Nothing has left meanwhile.
        assert_eq!(attempt(&messages[sent..]), (1, 0));
    }
}
