//! The one exit of a connection.
pub mod egress;
pub mod small_queue;
