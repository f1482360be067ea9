//! Hosts and links in virtual time, running the same stack code as the real thing.
//!
//! # A tour
//!
//! A [`world::World`] has hosts ([`neap_stack::stack::Stack`]), [`link`]s between them and
//! [`app`]lications on them. It knows whose event is the earliest, sets the time, and lets that
//! host do what is due, a little late, as real hosts are. Nothing in it reads a clock, and all its
//! randomness ([`rng`]) comes from one seed, so a run is the same every time, to the byte.
//!
//! [`oracle`] says what must hold in every world, and [`swarm`] draws worlds to see whether it
//! does; [`experiments`] are worlds whose figures are worth printing ([`histogram`]). Bytes are
//! [`pattern`]s, so a receiver knows what must come.
#![forbid(unsafe_code)]

pub mod app;
pub mod experiments;
pub mod histogram;
pub mod hostile;
pub mod library;
pub mod link;
pub mod oracle;
pub mod pattern;
pub mod report;
pub mod rng;
pub mod scenario;
pub mod swarm;
pub mod world;
