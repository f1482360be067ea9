//! `sendmmsg` and `recvmmsg`: many datagrams in one call.

use super::transfer::{give_datagram, may_wait, refusal};
use crate::abi::*;
use crate::call::{Call, Outcome};
use crate::cmsg::Control;
use crate::errno::Errno;
use crate::socket::Kind;
use crate::{Fd, Incoming, Outgoing, Posix, Received};
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
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
        let (mut datagrams, mut handle, mut bad) = (Vec::new(), None, None);
        for message in rest.iter() {
            let Outgoing { data, control, to, .. } = *message;
            match self.datagram_to_send(shared, data, control, flags, to) {
                Ok((socket, datagram)) => {
                    handle = Some(socket);
                    datagrams.push(datagram);
                }
                Err(error) => {
                    bad = Some(error);
                    break;
                }
            }
        }
        let has_source = datagrams.first().is_some_and(|first| first.from.is_some());
        let (sent, outcome) =
            handle.map_or((0, Ok(())), |handle| handle.send_batch(now, datagrams));
        rest.iter_mut().take(sent).for_each(|message| message.sent = message.data.len());
        call.done += sent;
        let error = match outcome {
            Err(SocketError::WouldBlock) if may_wait(&file, flags) => {
                let timeout = shared.lock().common.send_timeout;
                if let Some(wait) = call.wait(now, timeout, POLLOUT) {
                    return Ok(wait);
                }
                Some(Errno::EAGAIN)
            }
            Err(error) => Some(refusal(error, has_source)),
            Ok(()) => bad,
        };
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
        // An error that comes behind a datagram is told to the next call.
        let is_over = call.done > 0 && handle.readiness().bits().contains(Ready::ERROR);
        if is_over {
            // The call may have been woken for the error that it leaves.
            handle.pass_on();
        }
        let rest = &mut messages[call.done.min(most)..];
        if rest.is_empty() || is_over {
            return Ok(Outcome::Done(call.done));
        }
        let mut datagrams = Vec::new();
        let taken = handle.recv_batch(rest.len(), |datagram| datagrams.push(datagram));
        for (message, datagram) in rest.iter_mut().zip(&datagrams) {
            let mut control = Control::new(message.control);
            if !asked.is_empty() {
                let spec_dst = self.answer_source(domain, datagram);
                control.put_datagram(domain, asked, datagram, spec_dst);
            }
            let received = give_datagram(flags, domain, datagram, message.buf, control);
            message.received = Some(received);
        }
        call.done += datagrams.len();
        match taken {
            Err(SocketError::WouldBlock) | Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let is_enough = call.done == most || call.done > 0 && flags & MSG_WAITFORONE != 0;
        if is_enough || is_shut && call.done > 0 {
            return Ok(Outcome::Done(call.done));
        }
        if is_shut && may_wait(&file, flags) {
            // Of the end a message without bytes tells.
            messages[0].received = Some(Received::bytes(0));
            return Ok(Outcome::Done(1));
        }
        let wait = if may_wait(&file, flags) { call.wait(now, timeout, POLLIN) } else { None };
        match wait {
            Some(wait) => Ok(wait),
            None if call.done > 0 => Ok(Outcome::Done(call.done)),
            None => Err(Errno::EAGAIN),
        }
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
