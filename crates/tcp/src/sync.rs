//! The atomics of the account, from `std` or, under `cfg(loom)`, from loom.

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, atomic};
