//! Hosts and links in virtual time, running the same stack code.
