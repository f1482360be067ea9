//! Why an interface cannot be opened or changed.

use crate::keys::{KeyError, PublicKey};
use std::io;

/// Why an interface cannot be opened or changed. No message has a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The UDP port cannot be had.
    #[error("UDP port {port}: {source}")]
    Port {
        /// The port; 0 is any.
        port: u16,
        /// What the host says.
        source: io::Error,
    },
    /// The mark cannot be set.
    #[error("fwmark {mark:#x} needs CAP_NET_ADMIN: {source}")]
    Mark {
        /// The mark.
        mark: u32,
        /// What the host says.
        source: io::Error,
    },
    /// A call of the system failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the host says.
        source: io::Error,
    },
    /// A value is out of range.
    #[error("{option} is {value}: expected {range}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// A peer's key is no key that a peer can have.
    #[error("peer {0}: this public key belongs to no private key")]
    BadPeer(PublicKey),
    /// Two peers have the same key, or a peer has the key of the interface.
    #[error("peer {0} is there twice")]
    DuplicatePeer(PublicKey),
    /// There is no such peer.
    #[error("there is no peer {0}")]
    NoPeer(PublicKey),
    /// A key cannot be made.
    #[error(transparent)]
    Key(#[from] KeyError),
}
