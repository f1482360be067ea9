//! Shared part of a running stack: the host, and the drivers of its shards.

use crate::clock;
use crate::descriptors::Descriptors;
use crate::driver::Driver;
use crate::resolver::Resolver;
use neap_stack::qdisc::kinds::QdiscKinds;
use neap_stack::stack;
use neap_stack::wait::{Condition, Drive, WriteTally};
use neap_tcp::time::Instant;
use std::sync::Arc;

/// The host of a running stack with its drivers. The stack, its workers and its sockets share it.
#[derive(Debug)]
pub struct Engine {
    pub(crate) stack: Arc<stack::Stack>,
    drivers: Vec<Driver>,
    /// The descriptors of the devices.
    pub(crate) descriptors: Arc<Descriptors>,
    /// The kinds of qdiscs that can be set by name.
    pub(crate) qdiscs: QdiscKinds,
    /// The resolver of the sockets' names.
    pub(crate) resolver: Resolver,
}

impl Engine {
    pub(crate) fn new(
        stack: stack::Stack,
        drivers: Vec<Driver>,
        descriptors: Arc<Descriptors>,
        qdiscs: QdiscKinds,
        resolver: Resolver,
    ) -> Self {
        Self { stack: Arc::new(stack), drivers, descriptors, qdiscs, resolver }
    }

    /// The drivers, by shard.
    pub(crate) fn drivers(&self) -> &[Driver] {
        &self.drivers
    }

    /// The driver of a shard.
    pub(crate) fn driver(&self, shard: usize) -> &Driver {
        &self.drivers[shard % self.drivers.len()]
    }

    /// Forgets the descriptors of interfaces that the stack no longer has.
    pub(crate) fn detach_gone(&self) {
        self.descriptors.detach_gone(&self.stack);
    }

    /// The stack is being dropped: workers and tasks end.
    pub(crate) fn end(&self) {
        self.drivers.iter().for_each(Driver::end);
    }

    /// The worker thread of a shard, until the stack is dropped.
    pub(crate) fn work(&self, shard: usize) {
        self.driver(shard).work(&self.stack);
    }
}

impl Drive for Engine {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn look_in(&self, shard: usize) {
        self.driver(shard).look_in(&self.stack);
    }

    fn written(&self, shard: usize) -> &WriteTally {
        self.driver(shard).written()
    }

    fn wait(&self, shard: usize, deadline: Instant, condition: &mut dyn Condition) -> bool {
        self.driver(shard).wait(&self.stack, deadline, condition)
    }
}
