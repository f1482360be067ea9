//! What a client says before data pass, and what it is told, without I/O.

use super::config::Target;
use super::step::{Failure, Request, Step};
use super::users::Users;
use super::{http, sni, socks};
use bytes::{Bytes, BytesMut};
use std::net::SocketAddr;

/// Most bytes that a client may say.
pub(super) const MOST_HEAD: usize = 16 << 10;

/// A dialogue with a client.
#[derive(Debug)]
pub(super) enum Dialogue {
    Socks(socks::Server),
    Http(http::Server),
    Sni,
    /// The door has one target.
    Fixed(Target),
}

impl Dialogue {
    /// Takes what it understands from the front of `received`.
    pub(super) fn take(&mut self, received: &mut BytesMut, users: &Users) -> Step {
        match self {
            Self::Socks(server) => server.take(received, users),
            Self::Http(server) => server.take(received, users),
            Self::Sni => sni::take(received),
            Self::Fixed(target) => Step::Open(Request::plain(target.clone())),
        }
    }

    /// What a client is told that has said too much without saying what it wants.
    pub(super) fn too_long(&self) -> Bytes {
        match self {
            Self::Http(_) => http::too_long(),
            Self::Socks(_) | Self::Sni | Self::Fixed(_) => Bytes::new(),
        }
    }

    /// What a client is told whose connection is open, from this address to the target.
    pub(super) fn opened(&self, from: Option<SocketAddr>) -> Bytes {
        match self {
            Self::Socks(_) => socks::granted(from),
            Self::Http(server) => server.opened(),
            Self::Sni | Self::Fixed(_) => Bytes::new(),
        }
    }

    /// What a client is told whose connection could not be opened. If it is nothing, the connection
    /// is reset.
    pub(super) fn failed(&self, why: Failure) -> Bytes {
        match self {
            Self::Socks(_) => socks::refused(why),
            Self::Http(_) => http::failed(why),
            Self::Sni | Self::Fixed(_) => Bytes::new(),
        }
    }
}
