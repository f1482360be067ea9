//! Pipes, and `splice` between them and connections, as `fs/pipe.c` and `fs/splice.c` have it.
//!
//! Cost: from a connection bytes are copied once, to a connection not at all.

use super::transfer::is_open;
use crate::abi::*;
use crate::call::{Call, Outcome};
use crate::errno::Errno;
use crate::file::{File, Object};
use crate::pipe::{Contents, PAGE, PIPE_BUF, PipeEnd, pipe};
use crate::socket::SharedSocket;
use crate::{Fd, Posix};
use bytes::Bytes;
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::connection::WriteFlags;
use neap_tcp::connection::{ReadError, WriteError};
use neap_tcp::time::Instant;

impl PipeEnd {
    /// `read(2)` of a pipe.
    pub(super) fn read(
        &self,
        now: Instant,
        call: &mut Call,
        may_wait: bool,
        buf: &mut [u8],
    ) -> Result<Outcome<usize>, Errno> {
        if self.writes {
            return Err(Errno::EBADF);
        }
        let mut contents = self.lock();
        let (read, has_writer) = (contents.read(buf), contents.has_writer);
        drop(contents);
        if read > 0 || buf.is_empty() || !has_writer {
            self.tell_other_end();
            return Ok(Outcome::Done(read));
        }
        wait(now, call, may_wait, 0, POLLIN)
    }

    /// `write(2)` to a pipe: waits until everything is in it.
    pub(super) fn write(
        &self,
        now: Instant,
        call: &mut Call,
        may_wait: bool,
        data: &[u8],
    ) -> Result<Outcome<usize>, Errno> {
        if !self.writes {
            return Err(Errno::EBADF);
        }
        if data.is_empty() {
            return Ok(Outcome::Done(0));
        }
        let mut contents = self.lock();
        if !contents.has_reader {
            return if call.done > 0 { Ok(Outcome::Done(call.done)) } else { Err(Errno::EPIPE) };
        }
        let left = &data[call.done.min(data.len())..];
        let fits = contents.room().min(left.len());
        let is_parted = fits < left.len();
        if !is_parted || data.len() > PIPE_BUF {
            contents.write(&left[..fits]);
            call.done += fits;
            drop(contents);
            self.tell_other_end();
        } else {
            drop(contents);
        }
        if call.done >= data.len() {
            return Ok(Outcome::Done(call.done));
        }
        wait(now, call, may_wait, 0, POLLOUT)
    }
}

/// Waits for the other end of the pipe at this place of the call. Without a wait the answer is what
/// was done.
fn wait(
    now: Instant,
    call: &mut Call,
    may_wait: bool,
    place: usize,
    events: u32,
) -> Result<Outcome<usize>, Errno> {
    if may_wait {
        return call.wait_at(place, now, None, events).ok_or(Errno::EAGAIN);
    }
    all_or_again(call.done)
}

/// The bytes that were moved; `EAGAIN` if there are none.
fn all_or_again(done: usize) -> Result<Outcome<usize>, Errno> {
    if done > 0 { Ok(Outcome::Done(done)) } else { Err(Errno::EAGAIN) }
}

/// What `splice` moves between.
enum End<'a> {
    Pipe(&'a PipeEnd),
    Socket(&'a SharedSocket),
}

impl<'a> End<'a> {
    fn of(file: &'a File, writes: bool) -> Result<Self, Errno> {
        match &file.object {
            Object::Pipe(end) if end.writes == writes => Ok(Self::Pipe(end)),
            Object::Pipe(_) => Err(Errno::EBADF),
            Object::Socket(socket) if socket.lock().is_stream() => Ok(Self::Socket(socket)),
            Object::Socket(_) | Object::Epoll(_) => Err(Errno::EINVAL),
        }
    }
}

/// Place of the descriptor that `splice` reads from in the files of the call.
const INPUT: usize = 0;
/// Place of the one that it writes to.
const OUTPUT: usize = 1;

/// How one `splice` moves bytes.
#[derive(Clone, Copy)]
struct Splice {
    now: Instant,
    len: usize,
    /// `SPLICE_F_*`
    flags: u32,
    /// Whether it may wait for the input, as its descriptor says.
    waits_for_input: bool,
    /// The same for the output.
    waits_for_output: bool,
}

impl Splice {
    /// Whether it may wait for a pipe.
    fn is_patient(self) -> bool {
        self.flags & SPLICE_F_NONBLOCK == 0
    }

    /// Whether a pipe takes a slot; what the call does if not.
    fn check_room(
        self,
        call: &mut Call,
        to: &Contents,
        may_wait: bool,
    ) -> Result<Option<Outcome<usize>>, Errno> {
        if !to.has_reader {
            return Err(Errno::EPIPE);
        }
        if to.free_slots() > 0 {
            return Ok(None);
        }
        wait(self.now, call, may_wait, OUTPUT, POLLOUT).map(Some)
    }

    /// Moves the contents of one pipe into another (`splice_pipe_to_pipe`).
    fn pipe_to_pipe(
        self,
        call: &mut Call,
        from: &PipeEnd,
        to: &PipeEnd,
    ) -> Result<Outcome<usize>, Errno> {
        let may_wait = self.waits_for_input && self.waits_for_output && self.is_patient();
        let (mut input, mut output) = from.lock_both(to);
        if input.is_empty() {
            return match input.has_writer {
                true => wait(self.now, call, may_wait, INPUT, POLLIN),
                false => Ok(Outcome::Done(0)),
            };
        }
        if let Some(outcome) = self.check_room(call, &output, may_wait)? {
            return Ok(outcome);
        }
        let mut done = 0;
        while done < self.len
            && output.free_slots() > 0
            && let Some(front) = input.front()
        {
            let part = front.slice(..front.len().min(self.len - done));
            input.drop_front(part.len());
            done += part.len();
            output.splice(part);
        }
        drop((input, output));
        from.tell_other_end();
        to.tell_other_end();
        Ok(Outcome::Done(done))
    }

    /// Moves received bytes of a connection into a pipe (`tcp_splice_read`).
    fn socket_to_pipe(
        self,
        call: &mut Call,
        from: &SharedSocket,
        to: &PipeEnd,
    ) -> Result<Outcome<usize>, Errno> {
        let mut output = to.lock();
        let may_wait = self.waits_for_output && self.is_patient();
        if let Some(outcome) = self.check_room(call, &output, may_wait)? {
            return Ok(outcome);
        }
        let mut socket = from.lock();
        let (timeout, is_shut) = (socket.common.receive_timeout, socket.shut.0);
        let Some(handle) = socket.stream().cloned() else {
            socket.read_without_connection()?;
            return Ok(Outcome::Done(0));
        };
        drop(socket);
        let room = output.free_slots() * PAGE;
        let read = handle.read_with(self.now, |connection, now| {
            let unread = connection.unread() as usize;
            let mut data = vec![0; self.len.min(room).min(unread.max(1))];
            let read = connection.read(now, &mut data)?;
            data.truncate(read);
            Ok(data)
        });
        match read {
            Ok(data) => {
                let read = data.len();
                output.splice(data.into());
                drop(output);
                to.tell_other_end();
                Ok(Outcome::Done(read))
            }
            Err(ReadError::WouldBlock) if is_shut => Ok(Outcome::Done(0)),
            Err(ReadError::WouldBlock) if self.waits_for_input => {
                call.wait_at(INPUT, self.now, timeout, POLLIN).ok_or(Errno::EAGAIN)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the contents of a pipe on a connection (`splice_to_socket`).
    fn pipe_to_socket(
        self,
        call: &mut Call,
        from: &PipeEnd,
        to: &SharedSocket,
    ) -> Result<Outcome<usize>, Errno> {
        let socket = to.lock();
        let (handle, timeout) = (socket.stream().cloned(), socket.common.send_timeout);
        let is_shut = socket.shut.1;
        drop(socket);
        let before = call.done;
        let outcome = loop {
            if call.done >= self.len {
                break Ok(Outcome::Done(call.done));
            }
            let mut input = from.lock();
            let Some(front) = input.front() else {
                let may_wait = self.waits_for_input && self.is_patient();
                break match input.has_writer && call.done == 0 {
                    true => wait(self.now, call, may_wait, INPUT, POLLIN),
                    false => Ok(Outcome::Done(call.done)),
                };
            };
            let sent = match &handle {
                Some(handle) if is_shut && is_open(handle.readiness().bits()) => {
                    Err(WriteError::Closed)
                }
                Some(handle) => self.send(handle, &input, &front, call.done),
                None => Err(to.lock().write_without_connection()),
            };
            match sent {
                Ok(sent) => {
                    input.drop_front(sent);
                    call.done += sent;
                }
                Err(WriteError::WouldBlock) if self.waits_for_output => {
                    let waits = call.wait_at(OUTPUT, self.now, timeout, POLLOUT);
                    break waits.map_or_else(|| all_or_again(call.done), Ok);
                }
                Err(WriteError::WouldBlock) => break all_or_again(call.done),
                Err(_) if call.done > 0 => break Ok(Outcome::Done(call.done)),
                Err(error) => break Err(error.into()),
            }
        };
        if call.done > before {
            from.tell_other_end();
        }
        outcome
    }

    /// Sends the front of a pipe, as much as the connection takes.
    fn send(
        self,
        handle: &TcpHandle,
        input: &Contents,
        front: &Bytes,
        done: usize,
    ) -> Result<usize, WriteError> {
        let left = self.len - done;
        let mut part = front.slice(..front.len().min(left));
        let is_more = part.len() < left && input.len() > part.len();
        let mut marks = WriteFlags::empty();
        marks.set(WriteFlags::MORE, is_more || self.flags & SPLICE_F_MORE != 0);
        handle.send_bytes(self.now, &mut part, marks)
    }
}

impl Posix {
    /// `pipe2(2)`: makes a pipe and returns its reading end and its writing end.
    ///
    /// # Errors
    /// `EINVAL` for flags other than `O_CLOEXEC` and `O_NONBLOCK`, `EMFILE`.
    pub fn pipe2(&self, flags: i32) -> Result<[Fd; 2], Errno> {
        if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        let (nonblocking, on_exec) = (flags & O_NONBLOCK != 0, flags & O_CLOEXEC != 0);
        let (reader, writer) = (self.table.reserve(on_exec)?, self.table.reserve(on_exec)?);
        let (read, write) = pipe();
        let open = |end| File::new(Object::Pipe(end), nonblocking);
        Ok([reader.open(open(read)), writer.open(open(write))])
    }

    /// `splice(2)`: moves up to `len` bytes between a pipe and a pipe or connection, as many as are
    /// there.
    ///
    /// There are no offsets, which neither pipes nor sockets have. The call waits for the first
    /// bytes and for room, as the two descriptors and `SPLICE_F_NONBLOCK` say. `SPLICE_F_MORE` says
    /// that more data will follow.
    ///
    /// # Errors
    /// `EBADF`, also for the wrong end of a pipe; `EINVAL` if neither is a pipe, both are the same
    /// one, for a socket of datagrams, or for unknown flags; `EAGAIN`; `EPIPE`, `ENOTCONN` and the
    /// others of reading and writing.
    pub fn splice(
        &self,
        now: Instant,
        call: &mut Call,
        input: Fd,
        output: Fd,
        len: usize,
        flags: u32,
    ) -> Result<Outcome<usize>, Errno> {
        if len == 0 {
            return Ok(Outcome::Done(0));
        }
        if flags & !(SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT) != 0 {
            return Err(Errno::EINVAL);
        }
        let input = call.nth_file(INPUT, &self.table, input)?;
        let from = End::of(&input, false)?;
        let output = call.nth_file(OUTPUT, &self.table, output)?;
        let to = End::of(&output, true)?;
        let (waits_for_input, waits_for_output) =
            (!input.is_nonblocking(), !output.is_nonblocking());
        let splice = Splice { now, len, flags, waits_for_input, waits_for_output };
        match (from, to) {
            (End::Socket(_), End::Socket(_)) => Err(Errno::EINVAL),
            (End::Pipe(from), End::Pipe(to)) if from.is_same_pipe(to) => Err(Errno::EINVAL),
            (End::Pipe(from), End::Pipe(to)) => splice.pipe_to_pipe(call, from, to),
            (End::Socket(from), End::Pipe(to)) => splice.socket_to_pipe(call, from, to),
            (End::Pipe(from), End::Socket(to)) => splice.pipe_to_socket(call, from, to),
        }
    }
}
