//! The sending half of a connection.

pub mod delivery_rate;
pub mod rto;
pub mod windowed_min;
