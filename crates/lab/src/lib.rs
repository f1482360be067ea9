//! Hosts and links in virtual time, which run the same stack code as real hosts.
//!
//! # A tour, from the bottom to the top
//!
//! - [`rng`]: all randomness comes from one seed, forked by purpose, so that a run is the same
//!   every time, to the byte. [`histogram`]: distributions of times. [`pattern`]: the bytes of a
//!   stream as a function of the position, so that a receiver can check them.
//! - [`link`]: two cards, the wires between them, queues and impairments on the way.
//! - [`app`]: applications of hosts: groups of equal connections, and sessions with a plan each.
//! - [`world`]: hosts ([`neap_stack::stack::Stack`]), routers and links. A world finds the earliest
//!   event, sets the time and gives that host its turn, a little late, as real hosts are. Nothing
//!   in it reads a clock.
//! - [`hostile`]: peers that speak TCP badly on purpose, in place of a host.
//! - [`oracle`]: rules that hold in every world.
//! - [`report`]: views of a run for people: series, plots, pages, packets.
//! - [`scenario`]: files that describe a world, its applications, measurements and expectations;
//!   their runs, sweeps and tables. [`library`]: the scenarios that neap brings.
//! - [`swarm`]: scenarios drawn from a seed and run under every oracle; one that breaks is made
//!   smaller.
//! - [`bottleneck`]: flows of chosen congestion controllers through one queue, and their figures.
//!
//! Each of these uses only those above it in the list. Scripts in packetdrill's language are a
//! crate of their own, `neap-script`.
#![forbid(unsafe_code)]

pub mod app;
pub mod bottleneck;
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
