//! The atomics of the account, from `std` or, under `cfg(loom)`, from loom.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;
