//! How the kernel schedules the threads that drive a stack.
//!
//! [`Builder::scheduling`](crate::Builder::scheduling) asks for the workers of a stack.
//! [`Scheduling::apply`] asks for the thread that calls it, such as one that waits in a socket call
//! or in [`Poller::wait`](crate::Poller::wait) and drives the stack meanwhile.

pub use neap_device::{Scheduling, SchedulingError};
