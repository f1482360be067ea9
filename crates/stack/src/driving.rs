//! Who drives a shard, and how nothing that happens is left without a driver.
//!
//! The protocol has no clock and does no I/O: it answers what a thread is to do next, and the
//! thread sleeps, arms timers and polls. Three parts, small enough to be tried together in all
//! interleavings with few preemptions (`tests/loom_driving`):
//!
//! - [`roles::Roles`]: which thread leads, which ones follow, and when the worker takes over;
//! - [`seat::Seat`]: the driver's state, which one thread uses at a time, without a lost poll;
//! - [`doorbell::Doorbell`]: how a thread that leaves work calls the driver, at most once.

pub mod doorbell;
pub mod roles;
pub mod seat;
