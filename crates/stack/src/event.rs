//! Events of the network of a host, for subscribers.
//!
//! Cost: an event is copied to each subscriber, under one mutex each. A subscriber holds at most
//! [`CAPACITY`] events; what it misses beyond that is counted and told.

use crate::net::interface::{Address, InterfaceId};
use crate::sync::{Mutex, lock};
use core::net::IpAddr;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// Events that wait for one subscriber at the most.
pub const CAPACITY: usize = 256;

/// A change of the network of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackEvent {
    /// An interface was added.
    InterfaceAdded {
        /// The interface.
        interface: InterfaceId,
    },
    /// An interface was removed by a call.
    InterfaceRemoved {
        /// The interface. Its number is never used again.
        interface: InterfaceId,
    },
    /// The device of an interface was removed from outside, and the interface with it. Sockets
    /// that have no other way have failed with `NetworkDown`.
    DeviceGone {
        /// The interface. Its number is never used again.
        interface: InterfaceId,
        /// Name of the device.
        name: String,
    },
    /// The link of an interface is up again, and packets pass.
    LinkUp {
        /// The interface.
        interface: InterfaceId,
    },
    /// The link of an interface is down. Packets are lost and flows wait until it is up again.
    LinkDown {
        /// The interface.
        interface: InterfaceId,
    },
    /// The MTU of an interface changed.
    MtuChanged {
        /// The interface.
        interface: InterfaceId,
        /// The new one, in bytes.
        mtu: u16,
    },
    /// An interface got an address.
    AddressAdded {
        /// The interface.
        interface: InterfaceId,
        /// The address.
        address: Address,
    },
    /// An interface lost an address.
    AddressRemoved {
        /// The interface.
        interface: InterfaceId,
        /// The address.
        address: IpAddr,
    },
    /// The kernel of the machine got an address that an interface of the stack has. The kernel
    /// answers for it from then on, and resets the connections of the stack.
    AddressTaken {
        /// The interface.
        interface: InterfaceId,
        /// The address.
        address: IpAddr,
        /// Name of the kernel's interface.
        owner: String,
    },
    /// A router on the link of an interface has advertised itself
    /// ([`Stack::routers`](crate::stack::Stack::routers) has what it said). It is told where the
    /// interface listens to routers. Advertisements that follow before the event is taken are not
    /// told again.
    RouterAdvertised {
        /// The interface.
        interface: InterfaceId,
    },
    /// Events were lost because the subscriber did not take the earlier ones.
    Missed {
        /// The number of lost events.
        events: u64,
    },
}

/// What one subscriber has not taken yet.
#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<StackEvent>,
    missed: u64,
    is_over: bool,
    waker: Option<Waker>,
}

impl Queue {
    fn push(&mut self, event: StackEvent) {
        if self.events.len() < CAPACITY {
            self.events.push_back(event);
        } else {
            self.missed += 1;
        }
    }

    fn pop(&mut self) -> Option<StackEvent> {
        let next = self.events.pop_front();
        next.or_else(|| {
            let events = core::mem::take(&mut self.missed);
            (events > 0).then_some(StackEvent::Missed { events })
        })
    }
}

/// Receives the events of a stack from the moment when it was made.
#[derive(Debug)]
pub struct Subscription(Arc<Mutex<Queue>>);

impl Subscription {
    /// The oldest event that was not taken yet.
    pub fn take(&self) -> Option<StackEvent> {
        lock(&self.0).pop()
    }

    /// Whether no more events come: the stack is shut down. Those that wait can still be taken.
    pub fn is_over(&self) -> bool {
        lock(&self.0).is_over
    }

    /// Has `waker` called after each event and at the end, from the thread that causes it. It must
    /// not block.
    pub fn set_waker(&self, waker: Option<Waker>) {
        lock(&self.0).waker = waker;
    }
}

/// The subscribers of one stack.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<Vec<Weak<Mutex<Queue>>>>);

impl Subscribers {
    pub(crate) fn subscribe(&self) -> Subscription {
        let queue = Arc::new(Mutex::new(Queue::default()));
        lock(&self.0).push(Arc::downgrade(&queue));
        Subscription(queue)
    }

    /// Tells all subscribers.
    pub(crate) fn tell(&self, event: &StackEvent) {
        self.each(|queue| queue.push(event.clone()));
    }

    /// Tells all subscribers what `event` says while no other event is being told. Threads that
    /// tell of one thing at once may come in another order than its changes: the last event is
    /// right.
    pub(crate) fn tell_of_now(&self, event: impl Fn() -> StackEvent) {
        self.each(|queue| queue.push(event()));
    }

    /// Tells all subscribers that do not have an equal event already. So what strangers cause as
    /// often as they like takes no more than one place. Costs a look at what waits.
    pub(crate) fn tell_once(&self, event: &StackEvent) {
        self.each(|queue| {
            if !queue.events.contains(event) {
                queue.push(event.clone());
            }
        });
    }

    /// No more events come.
    pub(crate) fn end(&self) {
        self.each(|queue| queue.is_over = true);
    }

    fn each(&self, change: impl Fn(&mut Queue)) {
        let mut subscribers = lock(&self.0);
        let mut wakers = Vec::new();
        subscribers.retain(|one| {
            let Some(queue) = one.upgrade() else { return false };
            let mut queue = lock(&queue);
            change(&mut queue);
            wakers.extend(queue.waker.clone());
            true
        });
        drop(subscribers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_is_counted_not_kept() {
        let subscribers = Subscribers::default();
        let subscription = subscribers.subscribe();
        let event = StackEvent::LinkUp { interface: InterfaceId(3) };
        for _ in 0..CAPACITY + 7 {
            subscribers.tell(&event);
        }
        for _ in 0..CAPACITY {
            assert_eq!(subscription.take(), Some(event.clone()));
        }
        assert_eq!(subscription.take(), Some(StackEvent::Missed { events: 7 }));
        assert_eq!(subscription.take(), None);
        subscribers.end();
        assert!(subscription.is_over());
    }

    #[test]
    fn what_strangers_cause_takes_one_place() {
        let subscribers = Subscribers::default();
        let subscription = subscribers.subscribe();
        let event = StackEvent::RouterAdvertised { interface: InterfaceId(3) };
        for _ in 0..1000 {
            subscribers.tell_once(&event);
        }
        assert_eq!(subscription.take(), Some(event.clone()));
        assert_eq!(subscription.take(), None);
        subscribers.tell_once(&event);
        assert_eq!(subscription.take(), Some(event));
    }

    #[test]
    fn a_dropped_subscription_is_forgotten() {
        let subscribers = Subscribers::default();
        drop(subscribers.subscribe());
        subscribers.tell(&StackEvent::LinkUp { interface: InterfaceId(0) });
        assert!(lock(&subscribers.0).is_empty());
    }
}
