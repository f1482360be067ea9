//! [`BoundPort`]: a TCP address that a socket is bound to.

use super::listener::ListenerHandle;
use super::tcp::TcpHandle;
use crate::host::Host;
use crate::host::bound::Bound;
use crate::host::error::SocketError;
use crate::host::opening::{ConnectOptions, ListenOptions};
use core::net::SocketAddr;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// Address that a TCP socket is bound to. No other socket of the host gets it until this is
/// dropped. It is made by [`Stack::bind_tcp`](crate::stack::Stack::bind_tcp).
#[derive(Debug)]
pub struct BoundPort {
    bound: Arc<Bound>,
    host: Arc<Host>,
}

impl Drop for BoundPort {
    fn drop(&mut self) {
        self.host.demux.unbind(&self.bound);
    }
}

impl BoundPort {
    pub(crate) fn new(bound: Arc<Bound>, host: Arc<Host>) -> Self {
        Self { bound, host }
    }

    /// The bound address, with the port that was chosen if none was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.bound.local()
    }

    /// `SO_REUSEADDR`: whether sockets that have it too may be bound to the same address.
    /// Connections of this socket have a switch of their own.
    pub fn set_reuse(&self, on: bool) {
        self.bound.set_reuse(on);
    }

    /// As [`Stack::listen`](crate::stack::Stack::listen) on `local`, an address with the bound
    /// port. The own reservation is no obstacle.
    ///
    /// # Errors
    /// As [`Stack::listen`](crate::stack::Stack::listen).
    pub fn listen(
        &self,
        local: SocketAddr,
        options: ListenOptions,
    ) -> Result<ListenerHandle, SocketError> {
        let listener = self.host.listen(local, options, Some(&self.bound))?;
        Ok(ListenerHandle::new(listener, self.host.clone()))
    }

    /// As [`Stack::connect`](crate::stack::Stack::connect) from `options.local`, an address with
    /// the bound port. Who shares the port is no obstacle, if its connection has other ends.
    ///
    /// # Errors
    /// As [`Stack::connect`](crate::stack::Stack::connect).
    pub fn connect(
        &self,
        now: Instant,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> Result<TcpHandle, SocketError> {
        let socket = self.host.connect(now, remote, options, true)?;
        Ok(TcpHandle::new(socket, self.host.clone()))
    }
}
