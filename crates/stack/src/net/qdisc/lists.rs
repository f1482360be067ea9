//! Lists through slabs: where frames wait, and in which order flows are served.
//!
//! Cost: O(1) each; no allocation while the slab has seen as many members before.

use crate::frame::Frame;
use core::ops::{Index, IndexMut};
use neap_tcp::time::Instant;
use slab::Slab;

/// No member.
const NONE: u32 = u32::MAX;

/// The largest capacity that an empty slab of frames keeps.
const KEPT_SLOTS: usize = 1024;

/// The neighbours of a member in the one list that it is on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    next: u32,
    previous: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { next: NONE, previous: NONE }
    }
}

impl Links {
    pub(super) fn next(self) -> Option<u32> {
        (self.next != NONE).then_some(self.next)
    }
}

/// What can be on a list.
pub(super) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// A doubly linked list of members of a slab or vector, by index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl Chain {
    pub(super) fn first(self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn last(self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    pub(super) fn push_back<A>(&mut self, all: &mut A, id: u32)
    where
        A: IndexMut<usize, Output: Linked>,
    {
        *all[id as usize].links() = Links { next: NONE, previous: self.last };
        match self.last() {
            Some(last) => all[last as usize].links().next = id,
            None => self.first = id,
        }
        self.last = id;
    }

    pub(super) fn pop_front<A>(&mut self, all: &mut A) -> Option<u32>
    where
        A: IndexMut<usize, Output: Linked>,
    {
        let first = self.first()?;
        self.remove(all, first);
        Some(first)
    }

    /// Takes out a member of this list.
    pub(super) fn remove<A>(&mut self, all: &mut A, id: u32)
    where
        A: IndexMut<usize, Output: Linked>,
    {
        let Links { next, previous } = core::mem::take(all[id as usize].links());
        match previous {
            NONE => self.first = next,
            previous => all[previous as usize].links().next = next,
        }
        match next {
            NONE => self.last = previous,
            next => all[next as usize].links().previous = previous,
        }
    }
}

/// A frame that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) frame: Frame,
    /// When it came, or when it may go.
    pub(super) time: Instant,
    links: Links,
}

impl Linked for Waiting {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The frames of all queues of a qdisc.
#[derive(Debug, Default)]
pub(super) struct Frames(Slab<Waiting>);

impl Frames {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps a frame that is on no list.
    pub(super) fn insert(&mut self, frame: Frame, time: Instant) -> u32 {
        self.0.insert(Waiting { frame, time, links: Links::default() }) as u32
    }

    /// Gives out a frame that is on no list.
    pub(super) fn remove(&mut self, id: u32) -> Waiting {
        let waiting = self.0.remove(id as usize);
        if self.0.is_empty() && self.0.capacity() > KEPT_SLOTS {
            self.0 = Slab::new();
        }
        waiting
    }

    pub(super) fn push_back(&mut self, queue: &mut Chain, frame: Frame, time: Instant) {
        let id = self.insert(frame, time);
        queue.push_back(&mut self.0, id);
    }

    pub(super) fn pop_front(&mut self, queue: &mut Chain) -> Option<Waiting> {
        let id = queue.pop_front(&mut self.0)?;
        Some(self.remove(id))
    }

    /// The first frame of a queue.
    pub(super) fn front(&self, queue: Chain) -> Option<&Waiting> {
        queue.first().map(|id| &self[id])
    }

    /// All frames of a queue, in order.
    pub(super) fn drain(&mut self, queue: &mut Chain, out: &mut Vec<Frame>) {
        while let Some(waiting) = self.pop_front(queue) {
            out.push(waiting.frame);
        }
    }
}

impl Index<u32> for Frames {
    type Output = Waiting;
    fn index(&self, id: u32) -> &Waiting {
        &self.0[id as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::test_frame;

    #[derive(Default)]
    struct Member(Links);
    impl Linked for Member {
        fn links(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    #[test]
    fn members_leave_from_anywhere_and_the_rest_keeps_its_order() {
        let mut all: Vec<Member> = (0..5).map(|_| Member::default()).collect();
        let mut chain = Chain::default();
        for id in 0..5 {
            chain.push_back(&mut all, id);
        }
        for id in [2, 0, 4] {
            chain.remove(&mut all, id);
        }
        chain.push_back(&mut all, 2);
        let order: Vec<_> = core::iter::from_fn(|| chain.pop_front(&mut all)).collect();
        assert_eq!(order, [1, 3, 2]);
        assert_eq!((chain.first(), chain.last()), (None, None));
        chain.push_back(&mut all, 3);
        assert_eq!((chain.first(), chain.last()), (Some(3), Some(3)));
    }

    #[test]
    fn an_empty_slab_gives_back_the_memory_of_a_long_queue() {
        let mut frames = Frames::default();
        let mut queue = Chain::default();
        for _ in 0..2 * KEPT_SLOTS {
            frames.push_back(&mut queue, test_frame(1), Instant::ZERO);
        }
        let mut out = Vec::new();
        frames.drain(&mut queue, &mut out);
        assert_eq!((out.len(), frames.len()), (2 * KEPT_SLOTS, 0));
        assert!(frames.0.capacity() <= KEPT_SLOTS);
    }
}
