//! Descriptors, and the open files that they refer to.

use crate::Fd;
use crate::errno::Errno;
use crate::file::{File, Object};
use crate::sync::lock;
use std::sync::{Arc, Mutex, MutexGuard};

/// Most descriptors of a process (the hard limit of `RLIMIT_NOFILE` on most systems).
const MOST: usize = 1 << 20;

#[derive(Debug)]
struct Slot {
    /// `None` while a call is about to open the descriptor.
    file: Option<Arc<File>>,
    close_on_exec: bool,
}

#[derive(Debug)]
struct Slots {
    first: Fd,
    slots: Vec<Option<Slot>>,
    /// All slots below are taken.
    taken: usize,
}

/// All descriptors of a process. Its lock is held to look at descriptors and for nothing else.
///
/// Cost: O(1) and one mutex to look one up; a new one looks for the lowest that is free, from where
/// there may be one.
#[derive(Debug)]
pub(crate) struct Table(Mutex<Slots>);

/// A descriptor that is taken, and refers to nothing yet. It is free again if it is not
/// [opened](Self::open).
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    table: &'a Table,
    fd: Fd,
}

impl Reserved<'_> {
    /// Opens the descriptor.
    pub(crate) fn open(self, file: File) -> Fd {
        let Self { table, fd } = self;
        // Once it is open, other threads may close it and reserve its number, so the drop must not
        // look at the slot again.
        core::mem::forget(self);
        let mut slots = table.lock();
        if let Some(slot) = slots.slot_mut(fd) {
            slot.file = Some(Arc::new(file));
        }
        fd
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut slots = self.table.lock();
        if slots.slot_mut(self.fd).is_some_and(|slot| slot.file.is_none()) {
            slots.free(self.fd);
        }
    }
}

impl Slots {
    fn index(&self, fd: Fd) -> Option<usize> {
        usize::try_from(i64::from(fd) - i64::from(self.first)).ok()
    }

    fn slot_mut(&mut self, fd: Fd) -> Option<&mut Slot> {
        let index = self.index(fd)?;
        self.slots.get_mut(index)?.as_mut()
    }

    /// The slot of a descriptor that is open.
    fn open_slot(&mut self, fd: Fd) -> Result<(&mut Slot, Arc<File>), Errno> {
        let slot = self.slot_mut(fd).ok_or(Errno::EBADF)?;
        let file = slot.file.clone().ok_or(Errno::EBADF)?;
        Ok((slot, file))
    }

    /// The lowest slot from `from` on that is free.
    fn free_slot(&self, from: usize) -> Result<usize, Errno> {
        let from = from.max(self.taken);
        let free = self.slots.iter().skip(from).position(Option::is_none);
        let index = free.map_or(self.slots.len().max(from), |free| from + free);
        if index < MOST { Ok(index) } else { Err(Errno::EMFILE) }
    }

    /// Fills the lowest free slot for a descriptor of at least `least`.
    fn place(&mut self, least: Fd, slot: Slot) -> Result<Fd, Errno> {
        let from = self.index(least).unwrap_or(0);
        let index = self.free_slot(from)?;
        let fd = i64::from(self.first) + index as i64;
        let fd = Fd::try_from(fd).map_err(|_| Errno::EMFILE)?;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(slot);
        if from <= self.taken {
            self.taken = index + 1;
        }
        Ok(fd)
    }

    fn free(&mut self, fd: Fd) {
        if let Some(index) = self.index(fd) {
            self.slots[index] = None;
            self.taken = self.taken.min(index);
        }
        while matches!(self.slots.last(), Some(None)) {
            self.slots.pop();
        }
    }
}

impl Table {
    pub(crate) fn new(first: Fd) -> Self {
        Self(Mutex::new(Slots { first, slots: Vec::new(), taken: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        lock(&self.0)
    }

    /// The file of a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn file(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        Ok(self.lock().open_slot(fd)?.1)
    }

    /// Takes the lowest free descriptor.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn reserve(&self, close_on_exec: bool) -> Result<Reserved<'_>, Errno> {
        let mut slots = self.lock();
        let first = slots.first;
        let fd = slots.place(first, Slot { file: None, close_on_exec })?;
        Ok(Reserved { table: self, fd })
    }

    /// Opens the lowest free descriptor.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn open(
        &self,
        object: Object,
        nonblocking: bool,
        close_on_exec: bool,
    ) -> Result<Fd, Errno> {
        Ok(self.reserve(close_on_exec)?.open(File::new(object, nonblocking)))
    }

    /// Another descriptor, at least `least`, of the same file.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` for a descriptor out of range, `EMFILE`.
    pub(crate) fn duplicate(&self, fd: Fd, least: Fd, close_on_exec: bool) -> Result<Fd, Errno> {
        let mut slots = self.lock();
        let (_, file) = slots.open_slot(fd)?;
        if usize::try_from(least).is_ok_and(|least| least >= MOST) {
            return Err(Errno::EINVAL);
        }
        slots.place(least, Slot { file: Some(file), close_on_exec })
    }

    /// Makes `new` another descriptor of the file of `old`, at one stroke; the file that `new` had,
    /// which may have others.
    ///
    /// # Errors
    /// `EBADF`, also for a descriptor out of range; `EINVAL` for one and the same; `EBUSY` for one
    /// that another call is about to open.
    pub(crate) fn replace(
        &self,
        old: Fd,
        new: Fd,
        close_on_exec: bool,
    ) -> Result<Option<Arc<File>>, Errno> {
        if old == new {
            return Err(Errno::EINVAL);
        }
        let mut slots = self.lock();
        let index = slots.index(new).filter(|index| *index < MOST).ok_or(Errno::EBADF)?;
        let (_, file) = slots.open_slot(old)?;
        if index >= slots.slots.len() {
            slots.slots.resize_with(index + 1, || None);
        }
        let place = &mut slots.slots[index];
        if place.as_ref().is_some_and(|slot| slot.file.is_none()) {
            return Err(Errno::EBUSY);
        }
        let before = place.replace(Slot { file: Some(file), close_on_exec });
        Ok(before.and_then(|slot| slot.file))
    }

    /// Takes a descriptor out; its file, which may have others.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn remove(&self, fd: Fd) -> Result<Arc<File>, Errno> {
        let mut slots = self.lock();
        let (_, file) = slots.open_slot(fd)?;
        slots.free(fd);
        Ok(file)
    }

    /// All open descriptors.
    pub(crate) fn descriptors(&self) -> Vec<Fd> {
        let slots = self.lock();
        let is_open = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.file.is_some());
        let open = slots.slots.iter().enumerate().filter(|(_, slot)| is_open(slot));
        open.map(|(index, _)| slots.first + index as Fd).collect()
    }

    /// `FD_CLOEXEC`.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn close_on_exec(&self, fd: Fd) -> Result<bool, Errno> {
        Ok(self.lock().open_slot(fd)?.0.close_on_exec)
    }

    /// Sets `FD_CLOEXEC`.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn set_close_on_exec(&self, fd: Fd, on: bool) -> Result<(), Errno> {
        self.lock().open_slot(fd)?.0.close_on_exec = on;
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::epoll::Set;

    fn file() -> File {
        File::new(Object::Epoll(Set::default()), false)
    }

    #[test]
    fn a_descriptor_that_was_opened_leaves_the_next_reservation_of_its_number_alone() {
        for _ in 0..200 {
            let table = Table::new(0);
            std::thread::scope(|scope| {
                let reserved = table.reserve(false).expect("a free one");
                let opener = scope.spawn(move || reserved.open(file()));
                // As soon as it is open, another thread closes it, and a third takes its number.
                loop {
                    let mut slots = table.lock();
                    if slots.open_slot(0).is_ok() {
                        slots.free(0);
                        let next = Slot { file: None, close_on_exec: false };
                        assert_eq!(slots.place(0, next), Ok(0));
                        break;
                    }
                }
                assert_eq!(opener.join().expect("no panic"), 0);
                assert!(table.lock().slot_mut(0).is_some(), "the reservation was freed");
            });
        }
    }
}
