//! Registry: the table that names sockets for timers and the run list.

use super::listener::Listener;
use super::run_list::RunCell;
use super::socket_id::SocketId;
use super::tcp::TcpSocket;
use crate::sync::{Mutex, lock};
use slab::Slab;
use std::sync::Arc;

/// A socket that has timers and a place on the run list.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A connection.
    Tcp(Arc<TcpSocket>),
    /// A listener.
    Listener(Arc<Listener>),
}

impl Target {
    pub(crate) fn cell(&self) -> &RunCell {
        match self {
            Self::Tcp(socket) => &socket.cell,
            Self::Listener(listener) => &listener.cell,
        }
    }
}

struct Slot {
    id: SocketId,
    target: Option<Target>,
}

/// Sockets by id. O(1); one mutex per lookup; 24 bytes per socket.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Names>);

#[derive(Default)]
struct Names {
    slots: Slab<Slot>,
    issued: u32,
}

impl Registry {
    /// A name for a socket that is about to be made.
    pub(crate) fn reserve(&self) -> SocketId {
        let mut names = lock(&self.0);
        names.issued = names.issued.wrapping_add(1);
        let generation = u64::from(names.issued);
        let entry = names.slots.vacant_entry();
        let id = SocketId(generation << 32 | entry.key() as u64);
        entry.insert(Slot { id, target: None });
        id
    }

    /// Gives a reserved name to a socket, which `enter` then makes known to others. On an error the
    /// name is released.
    ///
    /// The order matters: who knows the socket may call its driver for it at once, and a driver
    /// that does not find it forgets it while the socket believes that it was called.
    pub(crate) fn enter<T, E>(
        &self,
        id: SocketId,
        target: Target,
        enter: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(slot) = lock(&self.0).slot(id) {
            slot.target = Some(target);
        }
        enter().inspect_err(|_| self.release(id))
    }

    /// The socket, if it is still there.
    pub(crate) fn get(&self, id: SocketId) -> Option<Target> {
        lock(&self.0).slot(id)?.target.clone()
    }

    /// Forgets a name.
    pub(crate) fn release(&self, id: SocketId) {
        let mut names = lock(&self.0);
        let target = match names.slot(id) {
            Some(slot) => slot.target.take(),
            None => return,
        };
        names.slots.remove(id.0 as u32 as usize);
        // The last reference may go with it: not under the lock.
        drop(names);
        drop(target);
    }

    /// Names in use.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).slots.len()
    }
}

impl Names {
    fn slot(&mut self, id: SocketId) -> Option<&mut Slot> {
        self.slots.get_mut(id.0 as u32 as usize).filter(|slot| slot.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::SocketError;
    use super::super::listener::Inherited;
    use super::super::run_list::{RunList, Work};
    use super::*;
    use neap_tcp::options::SocketOptions;

    fn listener(registry: &Registry, list: &Arc<RunList>) -> Arc<Listener> {
        let cell = RunCell::new(registry.reserve(), list.clone());
        let options = Inherited::new(SocketOptions::default(), None);
        let local = core::net::SocketAddr::from(([10, 0, 0, 1], 80));
        Arc::new(Listener::new(local, false, 1, true, options, cell))
    }

    /// A segment may find the socket as soon as the tables do.
    #[test]
    fn the_driver_finds_a_socket_that_is_just_becoming_known() {
        let (registry, list) = (Registry::default(), Arc::new(RunList::new(0, Arc::default())));
        let listener = listener(&registry, &list);
        let entered =
            registry.enter(listener.cell.id(), Target::Listener(listener.clone()), || {
                listener.cell.request(Work::TRANSMIT);
                let mut asked = Vec::new();
                list.take(&mut asked);
                let found = asked.iter().filter_map(|id| registry.get(*id));
                Ok::<_, SocketError>(found.map(|target| target.cell().take().1).collect::<Vec<_>>())
            });
        assert_eq!(entered, Ok(vec![Work::TRANSMIT]));
    }

    #[test]
    fn the_name_of_a_socket_that_is_refused_is_free_again() {
        let (registry, list) = (Registry::default(), Arc::new(RunList::new(0, Arc::default())));
        let listener = listener(&registry, &list);
        let id = listener.cell.id();
        let entered: Result<(), _> = registry
            .enter(id, Target::Listener(listener.clone()), || Err(SocketError::AddressInUse));
        assert_eq!(entered, Err(SocketError::AddressInUse));
        assert!(registry.get(id).is_none() && registry.len() == 0);
        assert_eq!(Arc::strong_count(&listener), 1);
    }
}
