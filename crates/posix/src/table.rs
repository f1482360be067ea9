//! Descriptors, and the open descriptions that they refer to.

use crate::Fd;
use crate::epoll::{Epoll, Mark};
use crate::errno::Errno;
use crate::pipe::{Pipe, PipeEnd};
use crate::socket::Socket;
use slab::Slab;
use std::sync::Arc;

/// Most descriptors of a process (the hard limit of `RLIMIT_NOFILE` on most systems).
const MOST: usize = 1 << 20;

/// What a descriptor refers to, shared by duplicates (Linux's `struct file`).
#[derive(Debug)]
pub(super) struct Description {
    /// Descriptors that refer to it.
    references: usize,
    /// `O_NONBLOCK`.
    pub(super) nonblocking: bool,
    /// Flags that sockets keep and do not heed.
    pub(super) idle_flags: i32,
    pub(super) object: Object,
    /// Epoll sets that watch it.
    pub(super) watchers: Vec<Arc<Mark>>,
}

/// What is open.
#[derive(Debug)]
pub(super) enum Object {
    Socket(Box<Socket>),
    Epoll(Epoll),
    Pipe(PipeEnd),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    description: usize,
    close_on_exec: bool,
}

/// All descriptors of a process.
///
/// Cost: O(1) to look one up; a new one looks for the lowest that is free, from where there may be
/// one.
#[derive(Debug)]
pub(super) struct Table {
    first: Fd,
    slots: Vec<Option<Slot>>,
    /// All slots below are taken.
    taken: usize,
    descriptions: Slab<Description>,
    pub(super) pipes: Slab<Pipe>,
}

impl Table {
    pub(super) fn new(first: Fd) -> Self {
        Self { first, slots: Vec::new(), taken: 0, descriptions: Slab::new(), pipes: Slab::new() }
    }

    fn index(&self, fd: Fd) -> Option<usize> {
        usize::try_from(i64::from(fd) - i64::from(self.first)).ok()
    }

    fn slot(&self, fd: Fd) -> Result<Slot, Errno> {
        let index = self.index(fd).ok_or(Errno::EBADF)?;
        self.slots.get(index).copied().flatten().ok_or(Errno::EBADF)
    }

    /// The description of a descriptor.
    pub(super) fn id(&self, fd: Fd) -> Result<usize, Errno> {
        Ok(self.slot(fd)?.description)
    }

    pub(super) fn get(&self, id: usize) -> &Description {
        &self.descriptions[id]
    }

    pub(super) fn get_mut(&mut self, id: usize) -> &mut Description {
        &mut self.descriptions[id]
    }

    /// The epoll set of this description, if it still is one.
    pub(super) fn epoll_mut(&mut self, id: usize) -> Option<&mut Epoll> {
        match &mut self.descriptions.get_mut(id)?.object {
            Object::Epoll(epoll) => Some(epoll),
            Object::Socket(_) | Object::Pipe(_) => None,
        }
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.descriptions.iter().filter_map(|(_, description)| match &description.object {
            Object::Socket(socket) => Some(&**socket),
            Object::Epoll(_) | Object::Pipe(_) => None,
        })
    }

    pub(super) fn socket(&self, fd: Fd) -> Result<&Socket, Errno> {
        match &self.get(self.id(fd)?).object {
            Object::Socket(socket) => Ok(socket),
            Object::Epoll(_) | Object::Pipe(_) => Err(Errno::ENOTSOCK),
        }
    }

    pub(super) fn socket_mut(&mut self, fd: Fd) -> Result<&mut Socket, Errno> {
        let id = self.id(fd)?;
        match &mut self.get_mut(id).object {
            Object::Socket(socket) => Ok(socket),
            Object::Epoll(_) | Object::Pipe(_) => Err(Errno::ENOTSOCK),
        }
    }

    /// Whether calls on this descriptor return rather than wait.
    pub(super) fn is_nonblocking(&self, fd: Fd) -> bool {
        self.id(fd).is_ok_and(|id| self.get(id).nonblocking)
    }

    /// The lowest slot from `from` on that is free.
    fn free_slot(&self, from: usize) -> Result<usize, Errno> {
        let from = from.max(self.taken);
        let free = self.slots.iter().skip(from).position(Option::is_none);
        let index = free.map_or(self.slots.len().max(from), |free| from + free);
        if index < MOST { Ok(index) } else { Err(Errno::EMFILE) }
    }

    /// Whether another descriptor can be opened.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(super) fn check_room(&self) -> Result<(), Errno> {
        self.free_slot(0).map(drop)
    }

    fn place(&mut self, least: Fd, slot: Slot) -> Result<Fd, Errno> {
        let from = self.index(least).unwrap_or(0);
        let index = self.free_slot(from)?;
        let fd = i64::from(self.first) + index as i64;
        let fd = Fd::try_from(fd).map_err(|_| Errno::EMFILE)?;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, None);
        }
        self.slots[index] = Some(slot);
        if from <= self.taken {
            self.taken = index + 1;
        }
        self.descriptions[slot.description].references += 1;
        Ok(fd)
    }

    /// Opens the lowest free descriptor.
    pub(super) fn open(
        &mut self,
        object: Object,
        nonblocking: bool,
        close_on_exec: bool,
    ) -> Result<Fd, Errno> {
        let description = self.descriptions.insert(Description {
            references: 0,
            nonblocking,
            idle_flags: 0,
            object,
            watchers: Vec::new(),
        });
        let placed = self.place(self.first, Slot { description, close_on_exec });
        if placed.is_err() {
            self.descriptions.remove(description);
        }
        placed
    }

    /// Another descriptor, at least `least`, of the same description.
    pub(super) fn duplicate(
        &mut self,
        fd: Fd,
        least: Fd,
        close_on_exec: bool,
    ) -> Result<Fd, Errno> {
        let description = self.id(fd)?;
        if usize::try_from(least).is_ok_and(|least| least >= MOST) {
            return Err(Errno::EINVAL);
        }
        self.place(least, Slot { description, close_on_exec })
    }

    /// Closes a descriptor. The description, if that was its last.
    pub(super) fn close(&mut self, fd: Fd) -> Result<Option<Description>, Errno> {
        let id = self.id(fd)?;
        if let Some(index) = self.index(fd) {
            self.slots[index] = None;
            self.taken = self.taken.min(index);
        }
        while matches!(self.slots.last(), Some(None)) {
            self.slots.pop();
        }
        let description = self.get_mut(id);
        description.references -= 1;
        Ok((description.references == 0).then(|| self.descriptions.remove(id)))
    }

    /// All open descriptors.
    pub(super) fn descriptors(&self) -> Vec<Fd> {
        let open = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        open.map(|(index, _)| self.first + index as Fd).collect()
    }

    /// `FD_CLOEXEC`.
    pub(super) fn close_on_exec(&self, fd: Fd) -> Result<bool, Errno> {
        Ok(self.slot(fd)?.close_on_exec)
    }

    pub(super) fn set_close_on_exec(&mut self, fd: Fd, on: bool) -> Result<(), Errno> {
        let slot = Slot { close_on_exec: on, ..self.slot(fd)? };
        if let Some(index) = self.index(fd) {
            self.slots[index] = Some(slot);
        }
        Ok(())
    }
}
