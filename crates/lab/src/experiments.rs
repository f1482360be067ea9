//! Experiments: worlds whose figures are worth printing.

pub mod bottleneck;
