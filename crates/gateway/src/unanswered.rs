//! Connections of guests whose far side did not answer in time. The guest is left to its own time,
//! as if no host stood between. SYNs that it repeats meanwhile belong to the same connection, so
//! that none of them begins another one.
//!
//! Cost: a look at each of at most [`MOST`] when one more comes.

use neap::PendingConnection;
use std::collections::VecDeque;

/// Connections that are remembered. Beyond that the oldest is forgotten: the next SYN of its guest
/// begins another one.
const MOST: usize = 128;

/// The connections. The oldest is the first.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(VecDeque<PendingConnection>);

impl Unanswered {
    /// Lets a guest wait until it gives up.
    pub(crate) fn add(&mut self, pending: PendingConnection) {
        self.0.retain(|one| matches!(one.take_error(), Ok(None)));
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.ignore();
        }
        self.0.push_back(pending);
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // A reset would be an answer.
        self.0.drain(..).for_each(PendingConnection::ignore);
    }
}
