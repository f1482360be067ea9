//! The descriptors of the devices of a stack.

use crate::sleeper::Sources;
use crate::sync::lock;
use neap_stack::interface::InterfaceId;
use neap_stack::stack::Stack;
use rustix::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// What is waited for at each queue of a device, each with whether it tells of complete frames,
/// too.
pub(crate) type QueueDescriptors = Vec<Vec<(Arc<OwnedFd>, bool)>>;

/// What the shards of a stack sleep on, and the descriptors of devices that are not read yet. A
/// device stays open as long as one of them is here.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    shards: Mutex<Vec<Arc<Mutex<Sources>>>>,
    unread: Mutex<Vec<(InterfaceId, QueueDescriptors)>>,
}

impl Descriptors {
    /// One shard more.
    pub(crate) fn add_shard(&self, sources: Arc<Mutex<Sources>>) {
        lock(&self.shards).push(sources);
    }

    /// Keeps the descriptors of a device that is not read yet.
    pub(crate) fn put_off(&self, interface: InterfaceId, queues: QueueDescriptors) {
        lock(&self.unread).push((interface, queues));
    }

    /// The descriptors of a device that is read from here on; `None` if it was read before.
    pub(crate) fn take_unread(&self, interface: InterfaceId) -> Option<QueueDescriptors> {
        let taken = lock(&self.unread).extract_if(.., |unread| unread.0 == interface).next();
        taken.map(|(_, queues)| queues)
    }

    /// Forgets the descriptors of interfaces that the stack no longer has.
    pub(crate) fn detach_gone(&self, stack: &Stack) {
        lock(&self.unread).retain(|(interface, _)| stack.has_interface(*interface));
        for sources in lock(&self.shards).iter() {
            // The lock comes first: the descriptors of an interface that another thread adds come
            // after the interface, so that they are not taken for those of one that is gone.
            let mut sources = lock(sources);
            let live = stack.interface_ids();
            sources.remove(|interface| !live.contains(&interface));
        }
    }
}
