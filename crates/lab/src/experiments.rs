//! Experiments: worlds whose figures are worth printing.

pub mod small_queues;
