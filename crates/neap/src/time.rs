//! Points in time, lengths of time, and rates.

pub use neap_tcp::time::{Instant, Nanos, Rate, RateError};
