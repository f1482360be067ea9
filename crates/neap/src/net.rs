//! Addresses, prefixes, routes, neighbours and router advertisements.

pub use neap_stack::error::{AddressFault, NetError};
pub use neap_stack::interface::{Address, InterfaceId};
pub use neap_stack::neighbor::{LinkAddress, Neighbor, NeighborState};
pub use neap_stack::route::{Prefix, PrefixError, Route, RouteEntry};
pub use neap_stack::router::{
    AdvertisedDnsServer, AdvertisedDomain, AdvertisedPrefix, HeardRouter, RouterAdvertisement,
};
