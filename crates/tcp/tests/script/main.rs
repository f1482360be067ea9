//! Exact behaviour, segment by segment, against a peer that is played by hand.

#[path = "../peer/mod.rs"]
mod peer;

mod acknowledging;
mod closing;
mod controller;
mod loss;
mod opening;
mod order;
mod pacing;
mod probing;
mod reading;
mod records;
mod sending;
mod small_queues;
mod undo;
mod validity;
mod vectors;
mod writing;
