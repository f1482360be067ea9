//! Doors into a stack: proxies, tunnels and names, with clients of the host and servers on another
//! stack.

mod names;
mod proxies;
mod tunnels;
mod upstream;
mod world;
