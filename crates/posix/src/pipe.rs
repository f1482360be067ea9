//! Pipes: their contents and their ends, after `fs/pipe.c`.
//!
//! A pipe belongs to this process: both ends are descriptors here. Cost: a page per slot that is in
//! use, at most 64 KiB.

use crate::abi::*;
use crate::sync::lock;
use crate::watch::{CHANGED, Seen, Watch};
use bytes::{Buf, Bytes, BytesMut};
use neap_stack::socket::readiness::{Readiness, Ready, ReadyState};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

/// Slots of a pipe (`PIPE_DEF_BUFFERS`).
const SLOTS: usize = 16;
/// Bytes of a slot.
pub(crate) const PAGE: usize = 4096;
/// A write of no more bytes is not parted.
pub(crate) const PIPE_BUF: usize = 4096;

/// What was written and not read, and which ends are open.
#[derive(Debug)]
pub(crate) struct Contents {
    slots: VecDeque<Bytes>,
    /// The last slot, as long as writes may be added to its page.
    page: BytesMut,
    pub(crate) has_reader: bool,
    pub(crate) has_writer: bool,
}

impl Contents {
    pub(crate) fn len(&self) -> usize {
        self.slots.iter().map(Bytes::len).sum::<usize>() + self.page.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.page.is_empty()
    }

    pub(crate) fn free_slots(&self) -> usize {
        SLOTS - self.slots.len() - usize::from(!self.page.is_empty())
    }

    /// Bytes that a write finds room for.
    pub(crate) fn room(&self) -> usize {
        let rest = if self.page.is_empty() { 0 } else { PAGE - self.page.len() };
        rest + self.free_slots() * PAGE
    }

    fn end_page(&mut self) {
        if !self.page.is_empty() {
            self.slots.push_back(self.page.split().freeze());
        }
    }

    /// Adds bytes to the last page and to as many as are needed.
    pub(crate) fn write(&mut self, mut data: &[u8]) {
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
    pub(crate) fn splice(&mut self, mut data: Bytes) {
        self.end_page();
        while !data.is_empty() {
            self.slots.push_back(data.split_to(data.len().min(PAGE)));
        }
    }

    /// The first bytes, which stay until they are [`drop_front`](Self::drop_front)ped.
    pub(crate) fn front(&mut self) -> Option<Bytes> {
        if self.slots.is_empty() {
            self.end_page();
        }
        self.slots.front().cloned()
    }

    pub(crate) fn drop_front(&mut self, len: usize) {
        if let Some(slot) = self.slots.front_mut() {
            slot.advance(len.min(slot.len()));
            if slot.is_empty() {
                self.slots.pop_front();
            }
        }
    }

    pub(crate) fn read(&mut self, buf: &mut [u8]) -> usize {
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
}

/// A pipe, which both ends share.
#[derive(Debug)]
struct Pipe {
    contents: Mutex<Contents>,
    /// Changes when there may be something to see for the end that reads.
    reader: Readiness,
    /// The same for the end that writes.
    writer: Readiness,
}

/// One end of a pipe.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    pipe: Arc<Pipe>,
    pub(crate) writes: bool,
}

/// A new pipe: the end that reads and the one that writes.
pub(crate) fn pipe() -> (PipeEnd, PipeEnd) {
    let contents = Contents {
        slots: VecDeque::new(),
        page: BytesMut::new(),
        has_reader: true,
        has_writer: true,
    };
    let (reader, writer) = (Readiness::new(), Readiness::new());
    let pipe = Arc::new(Pipe { contents: Mutex::new(contents), reader, writer });
    (PipeEnd { pipe: pipe.clone(), writes: false }, PipeEnd { pipe, writes: true })
}

impl PipeEnd {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Contents> {
        lock(&self.pipe.contents)
    }

    /// Whether both are ends of one pipe.
    pub(crate) fn is_same_pipe(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Locks two pipes, in the order of their addresses, so that no two threads wait for each other
    /// (`pipe_double_lock`).
    pub(crate) fn lock_both<'a>(
        &'a self,
        other: &'a Self,
    ) -> (MutexGuard<'a, Contents>, MutexGuard<'a, Contents>) {
        if Arc::as_ptr(&self.pipe) < Arc::as_ptr(&other.pipe) {
            let first = self.lock();
            (first, other.lock())
        } else {
            let second = other.lock();
            (self.lock(), second)
        }
    }

    /// The other end has something to see.
    pub(crate) fn tell_other_end(&self) {
        let word = if self.writes { &self.pipe.reader } else { &self.pipe.writer };
        word.signal(CHANGED);
    }

    fn word(&self) -> &Readiness {
        if self.writes { &self.pipe.writer } else { &self.pipe.reader }
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut contents = self.lock();
        *(if self.writes { &mut contents.has_writer } else { &mut contents.has_reader }) = false;
        drop(contents);
        self.tell_other_end();
    }
}

impl Watch for PipeEnd {
    /// What the end is ready for (`pipe_poll`).
    fn events(&self) -> u32 {
        let contents = self.lock();
        let mut events = 0;
        if self.writes {
            if contents.free_slots() > 0 {
                events |= POLLOUT | POLLWRNORM;
            }
            if !contents.has_reader {
                events |= POLLERR;
            }
        } else {
            if !contents.is_empty() {
                events |= POLLIN | POLLRDNORM;
            }
            if !contents.has_writer {
                events |= POLLHUP;
            }
        }
        events
    }

    fn words(&self) -> Seen {
        [self.word().state()].into_iter().collect()
    }

    fn register(&self, seen: &[ReadyState], _interest: Ready, waker: &Waker) -> bool {
        seen.iter().all(|seen| self.word().register(*seen, CHANGED, waker))
    }

    fn unregister(&self, waker: &Waker) {
        self.word().unregister(waker);
    }

    fn shard(&self) -> usize {
        0
    }
}
