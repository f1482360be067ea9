//! Pipes, and `splice` between them and connections, as `fs/pipe.c` and `fs/splice.c` have it.
//!
//! A pipe belongs to this process: both ends are descriptors here. Cost: a page per slot that is in
//! use, at most 64 KiB; from a connection bytes are copied once, to a connection not at all.

use crate::abi::*;
use crate::table::Object;
use crate::{Call, Errno, Fd, Outcome, Posix};
use bytes::{Buf, Bytes, BytesMut};
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::connection::{ReadError, WriteError, WriteFlags};
use neap_tcp::time::Instant;
use std::collections::VecDeque;

/// Slots of a pipe (`PIPE_DEF_BUFFERS`).
const SLOTS: usize = 16;
/// Bytes of a slot.
const PAGE: usize = 4096;
/// A write of no more bytes is not parted.
const PIPE_BUF: usize = 4096;

/// What was written and not read, and who holds the ends.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    slots: VecDeque<Bytes>,
    /// The last slot, as long as writes may be added to its page.
    page: BytesMut,
    /// Descriptions of the end that reads and of the one that writes, as long as they are open.
    ends: [Option<usize>; 2],
}

/// One end of a pipe.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipeEnd {
    pub(super) pipe: usize,
    pub(super) writes: bool,
}

impl Pipe {
    pub(super) fn len(&self) -> usize {
        self.slots.iter().map(Bytes::len).sum::<usize>() + self.page.len()
    }

    fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.page.is_empty()
    }

    fn free_slots(&self) -> usize {
        SLOTS - self.slots.len() - usize::from(!self.page.is_empty())
    }

    /// Bytes that a write finds room for.
    fn room(&self) -> usize {
        let rest = if self.page.is_empty() { 0 } else { PAGE - self.page.len() };
        rest + self.free_slots() * PAGE
    }

    fn end_page(&mut self) {
        if !self.page.is_empty() {
            self.slots.push_back(self.page.split().freeze());
        }
    }

    /// Adds bytes to the last page and to as many as are needed.
    fn write(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(PAGE - self.page.len()));
            self.page.extend_from_slice(now);
            if self.page.len() == PAGE {
                self.end_page();
            }
            data = later;
        }
    }

    /// Adds whole slots, to which later writes are not added.
    fn splice(&mut self, mut data: Bytes) {
        self.end_page();
        while !data.is_empty() {
            self.slots.push_back(data.split_to(data.len().min(PAGE)));
        }
    }

    /// The first bytes, which stay until they are [`drop_front`](Self::drop_front)ped.
    fn front(&mut self) -> Option<Bytes> {
        if self.slots.is_empty() {
            self.end_page();
        }
        self.slots.front().cloned()
    }

    fn drop_front(&mut self, len: usize) {
        if let Some(slot) = self.slots.front_mut() {
            slot.advance(len.min(slot.len()));
            if slot.is_empty() {
                self.slots.pop_front();
            }
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len()
            && let Some(front) = self.front()
        {
            let len = front.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&front[..len]);
            self.drop_front(len);
            done += len;
        }
        done
    }

    fn has_reader(&self) -> bool {
        self.ends[0].is_some()
    }

    fn has_writer(&self) -> bool {
        self.ends[1].is_some()
    }

    /// What an end is ready for (`pipe_poll`).
    pub(super) fn events(&self, writes: bool) -> u32 {
        let mut events = 0;
        if writes {
            if self.free_slots() > 0 {
                events |= POLLOUT | POLLWRNORM;
            }
            if !self.has_reader() {
                events |= POLLERR;
            }
        } else {
            if !self.is_empty() {
                events |= POLLIN | POLLRDNORM;
            }
            if !self.has_writer() {
                events |= POLLHUP;
            }
        }
        events
    }
}

/// A call on an end of a pipe.
#[derive(Clone, Copy)]
struct At {
    now: Instant,
    fd: Fd,
    end: PipeEnd,
    may_wait: bool,
}

impl At {
    /// Waits for the other end, or ends with what is done.
    fn wait(self, call: &mut Call) -> Result<Outcome<usize>, Errno> {
        let event = if self.end.writes { POLLOUT } else { POLLIN };
        match self.may_wait {
            true => call.wait(self.now, None, (self.fd, event)).ok_or(Errno::EAGAIN),
            false if call.done > 0 => Ok(Outcome::Done(call.done)),
            false => Err(Errno::EAGAIN),
        }
    }
}

/// What `splice` moves between.
enum Place {
    Pipe(PipeEnd),
    /// A socket, with its connection if it has one.
    Socket(Option<TcpHandle>),
}

impl Posix {
    /// `pipe2(2)`: the end that reads and the one that writes.
    ///
    /// # Errors
    /// `EINVAL` for flags other than `O_CLOEXEC` and `O_NONBLOCK`, `EMFILE`.
    pub fn pipe2(&mut self, flags: i32) -> Result<[Fd; 2], Errno> {
        if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        let pipe = self.table.pipes.insert(Pipe::default());
        let mut fds = [-1; 2];
        for (writes, fd) in [false, true].into_iter().zip(0..) {
            let object = Object::Pipe(PipeEnd { pipe, writes });
            let (nonblocking, on_exec) = (flags & O_NONBLOCK != 0, flags & O_CLOEXEC != 0);
            match self.table.open(object, nonblocking, on_exec) {
                Ok(opened) => fds[fd] = opened,
                Err(error) => {
                    if writes {
                        // It was opened just now.
                        let _ = self.table.close(fds[0]);
                    }
                    self.table.pipes.remove(pipe);
                    return Err(error);
                }
            }
            self.table.pipes[pipe].ends[fd] = self.table.id(fds[fd]).ok();
        }
        Ok(fds)
    }

    /// The end of a pipe that a descriptor is.
    pub(super) fn pipe_end(&self, fd: Fd) -> Option<PipeEnd> {
        match self.table.get(self.table.id(fd).ok()?).object {
            Object::Pipe(end) => Some(end),
            _ => None,
        }
    }

    fn at(&self, now: Instant, fd: Fd, end: PipeEnd) -> At {
        At { now, fd, end, may_wait: !self.table.is_nonblocking(fd) }
    }

    /// The other end has something to see.
    fn tell_other_end(&self, end: PipeEnd) {
        if let Some(other) = self.table.pipes[end.pipe].ends[usize::from(!end.writes)] {
            self.table.get(other).watchers.iter().for_each(std::task::Wake::wake_by_ref);
        }
    }

    pub(super) fn close_pipe_end(&mut self, end: PipeEnd) {
        let pipe = &mut self.table.pipes[end.pipe];
        pipe.ends[usize::from(end.writes)] = None;
        if pipe.ends == [None; 2] {
            self.table.pipes.remove(end.pipe);
        } else {
            self.tell_other_end(end);
        }
    }

    /// `read(2)` of a pipe.
    pub(super) fn read_pipe(
        &mut self,
        now: Instant,
        call: &mut Call,
        (fd, end): (Fd, PipeEnd),
        buf: &mut [u8],
    ) -> Result<Outcome<usize>, Errno> {
        if end.writes {
            return Err(Errno::EBADF);
        }
        let pipe = &mut self.table.pipes[end.pipe];
        let (read, has_writer) = (pipe.read(buf), pipe.has_writer());
        if read > 0 || buf.is_empty() || !has_writer {
            self.tell_other_end(end);
            return Ok(Outcome::Done(read));
        }
        self.at(now, fd, end).wait(call)
    }

    /// `write(2)` to a pipe: waits until everything is in it.
    pub(super) fn write_pipe(
        &mut self,
        now: Instant,
        call: &mut Call,
        (fd, end): (Fd, PipeEnd),
        data: &[u8],
    ) -> Result<Outcome<usize>, Errno> {
        if !end.writes {
            return Err(Errno::EBADF);
        }
        let pipe = &mut self.table.pipes[end.pipe];
        if !pipe.has_reader() {
            return if call.done > 0 { Ok(Outcome::Done(call.done)) } else { Err(Errno::EPIPE) };
        }
        let left = &data[call.done.min(data.len())..];
        let fits = pipe.room().min(left.len());
        if fits == left.len() || data.len() > PIPE_BUF {
            pipe.write(&left[..fits]);
            call.done += fits;
            self.tell_other_end(end);
        }
        if call.done >= data.len() {
            return Ok(Outcome::Done(call.done));
        }
        self.at(now, fd, end).wait(call)
    }

    fn place(&self, fd: Fd, writes: bool) -> Result<Place, Errno> {
        match &self.table.get(self.table.id(fd)?).object {
            Object::Pipe(end) if end.writes == writes => Ok(Place::Pipe(*end)),
            Object::Pipe(_) => Err(Errno::EBADF),
            Object::Socket(socket) => Ok(Place::Socket(socket.stream().cloned())),
            Object::Epoll(_) => Err(Errno::EINVAL),
        }
    }

    /// `splice(2)` without offsets, which neither pipes nor sockets have: moves up to `len` bytes,
    /// as many as are there. Waits for the first ones and for room as the two descriptors and
    /// `SPLICE_F_NONBLOCK` say; with `SPLICE_F_MORE` more will follow.
    ///
    /// # Errors
    /// `EBADF`, also for the wrong end of a pipe; `EINVAL` where neither is a pipe, both are the
    /// same one, or for unknown flags; `EAGAIN`; `EPIPE`, `ENOTCONN` and the others of reading and
    /// writing.
    pub fn splice(
        &mut self,
        now: Instant,
        call: &mut Call,
        (input, output): (Fd, Fd),
        len: usize,
        flags: u32,
    ) -> Result<Outcome<usize>, Errno> {
        if len == 0 {
            return Ok(Outcome::Done(0));
        }
        if flags & !(SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT) != 0 {
            return Err(Errno::EINVAL);
        }
        let (from, to) = (self.place(input, false)?, self.place(output, true)?);
        let never = flags & SPLICE_F_NONBLOCK != 0;
        match (from, to) {
            (Place::Socket(_), Place::Socket(_)) => Err(Errno::EINVAL),
            (Place::Pipe(from), Place::Pipe(to)) if from.pipe == to.pipe => Err(Errno::EINVAL),
            (Place::Pipe(from), Place::Pipe(to)) => {
                let (from, to) = (self.at(now, input, from), self.at(now, output, to));
                self.splice_pipes(call, from, to, (len, never))
            }
            (Place::Socket(handle), Place::Pipe(to)) => {
                let to = self.at(now, output, to);
                self.splice_from(call, (input, handle), to, (len, never))
            }
            (Place::Pipe(from), Place::Socket(handle)) => {
                let from = self.at(now, input, from);
                self.splice_to(call, from, (output, handle), (len, flags))
            }
        }
    }

    /// Whether a pipe takes a slot; what the call does if not.
    fn has_slot(
        &mut self,
        call: &mut Call,
        to: At,
        never: bool,
    ) -> Result<Option<Outcome<usize>>, Errno> {
        let pipe = &self.table.pipes[to.end.pipe];
        if !pipe.has_reader() {
            return Err(Errno::EPIPE);
        }
        if pipe.free_slots() > 0 {
            return Ok(None);
        }
        At { may_wait: to.may_wait && !never, ..to }.wait(call).map(Some)
    }

    fn splice_pipes(
        &mut self,
        call: &mut Call,
        from: At,
        to: At,
        (len, never): (usize, bool),
    ) -> Result<Outcome<usize>, Errno> {
        let may_wait = from.may_wait && to.may_wait && !never;
        if self.table.pipes[from.end.pipe].is_empty() {
            return match self.table.pipes[from.end.pipe].has_writer() {
                true => At { may_wait, ..from }.wait(call),
                false => Ok(Outcome::Done(0)),
            };
        }
        if let Some(outcome) = self.has_slot(call, to, !may_wait)? {
            return Ok(outcome);
        }
        let mut done = 0;
        while done < len
            && self.table.pipes[to.end.pipe].free_slots() > 0
            && let Some(front) = self.table.pipes[from.end.pipe].front()
        {
            let part = front.slice(..front.len().min(len - done));
            self.table.pipes[from.end.pipe].drop_front(part.len());
            done += part.len();
            self.table.pipes[to.end.pipe].splice(part);
        }
        self.tell_other_end(from.end);
        self.tell_other_end(to.end);
        Ok(Outcome::Done(done))
    }

    /// From a connection (`tcp_splice_read`).
    fn splice_from(
        &mut self,
        call: &mut Call,
        (input, handle): (Fd, Option<TcpHandle>),
        to: At,
        (len, never): (usize, bool),
    ) -> Result<Outcome<usize>, Errno> {
        if let Some(outcome) = self.has_slot(call, to, never)? {
            return Ok(outcome);
        }
        let handle = handle.ok_or(Errno::ENOTCONN)?;
        let room = self.table.pipes[to.end.pipe].free_slots() * PAGE;
        let unread = handle.unread(to.now) as usize;
        let mut data = vec![0; len.min(room).min(unread.max(1))];
        match handle.read(to.now, &mut data) {
            Ok(read) => {
                data.truncate(read);
                self.table.pipes[to.end.pipe].splice(data.into());
                self.tell_other_end(to.end);
                Ok(Outcome::Done(read))
            }
            Err(ReadError::WouldBlock) if self.table.is_nonblocking(input) => Err(Errno::EAGAIN),
            Err(ReadError::WouldBlock) => {
                let timeout = self.table.socket(input)?.common.receive_timeout;
                call.wait(to.now, timeout, (input, POLLIN)).ok_or(Errno::EAGAIN)
            }
            Err(ReadError::Failed(error)) => Err(error.into()),
        }
    }

    /// To a connection (`splice_to_socket`).
    fn splice_to(
        &mut self,
        call: &mut Call,
        from: At,
        (output, handle): (Fd, Option<TcpHandle>),
        (len, flags): (usize, u32),
    ) -> Result<Outcome<usize>, Errno> {
        let waits_for_room = !self.table.is_nonblocking(output);
        while call.done < len {
            let pipe = &mut self.table.pipes[from.end.pipe];
            let Some(front) = pipe.front() else {
                let may_wait = from.may_wait && flags & SPLICE_F_NONBLOCK == 0;
                return match pipe.has_writer() && call.done == 0 {
                    true => At { may_wait, ..from }.wait(call),
                    false => Ok(Outcome::Done(call.done)),
                };
            };
            let mut part = front.slice(..front.len().min(len - call.done));
            let is_more = part.len() < len - call.done && pipe.len() > part.len();
            let mut marks = WriteFlags::empty();
            marks.set(WriteFlags::MORE, is_more || flags & SPLICE_F_MORE != 0);
            let sent = match &handle {
                Some(handle) => handle.send_bytes(from.now, &mut part, marks),
                None => Err(WriteError::Closed),
            };
            match sent {
                Ok(sent) => {
                    self.table.pipes[from.end.pipe].drop_front(sent);
                    call.done += sent;
                    self.tell_other_end(from.end);
                }
                Err(WriteError::WouldBlock) if waits_for_room => {
                    let timeout = self.table.socket(output)?.common.send_timeout;
                    let wait = call.wait(from.now, timeout, (output, POLLOUT));
                    return wait.map_or_else(|| all_or_again(call.done), Ok);
                }
                Err(WriteError::WouldBlock) => return all_or_again(call.done),
                Err(_) if call.done > 0 => return Ok(Outcome::Done(call.done)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome::Done(call.done))
    }
}

/// What was done, or that nothing could be.
fn all_or_again(done: usize) -> Result<Outcome<usize>, Errno> {
    if done > 0 { Ok(Outcome::Done(done)) } else { Err(Errno::EAGAIN) }
}
