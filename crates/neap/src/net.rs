//! Addresses, prefixes, routes and neighbours.

pub use neap_stack::error::{AddressFault, NetError};
pub use neap_stack::interface::{Address, InterfaceId};
pub use neap_stack::neighbor::{LinkAddress, Neighbor, NeighborState};
pub use neap_stack::route::{Prefix, PrefixError, Route, RouteEntry};
