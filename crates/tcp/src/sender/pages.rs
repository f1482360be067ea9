//! Pages of memory that connections write into. Their host hands them out.

use bytes::BytesMut;
use core::fmt;

/// Size of a page, in bytes.
pub const PAGE: usize = 64 << 10;

/// Source of pages for connections.
///
/// A connection asks once per page, and gives each page back when nothing refers to its bytes any
/// more. Connections of several threads may share one source.
pub trait Pages: fmt::Debug + Send + Sync {
    /// Returns an empty page with room for [`PAGE`] bytes.
    fn take(&self) -> BytesMut;

    /// Takes back an empty page with room for [`PAGE`] bytes.
    fn give(&self, page: BytesMut);
}

/// Source that allocates each page and frees it, for a connection without a host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpooled;

impl Pages for Unpooled {
    fn take(&self) -> BytesMut {
        BytesMut::with_capacity(PAGE)
    }

    fn give(&self, _: BytesMut) {}
}
