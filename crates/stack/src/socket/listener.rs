//! [`ListenerHandle`]: the application's reference to a listener.

use super::tcp::TcpHandle;
use crate::host::Host;
use crate::host::error::SocketError;
use crate::host::listener::{Inherited, Listener};
use crate::host::readiness::{Ready, ReadyState};
use crate::host::run_list::Work;
use core::net::SocketAddr;
use neap_tcp::options::{OptionError, SocketOption, SocketOptions};
use neap_tcp::time::Instant;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// The application's reference to a listener; clones share it, the last one closes it.
#[derive(Clone, Debug)]
pub struct ListenerHandle(Arc<Held>);

#[derive(Debug)]
struct Held {
    listener: Arc<Listener>,
    host: Arc<Host>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The address is free at once. The children wait for the driver of the shard, which resets
        // them: dropping knows no time.
        self.host.demux.unlisten(&self.listener);
        self.listener.cell.request(Work::CLOSE);
    }
}

/// A reference to a listener that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakListenerHandle(Weak<Held>);

impl WeakListenerHandle {
    /// The listener, while an application holds it.
    pub fn upgrade(&self) -> Option<ListenerHandle> {
        self.0.upgrade().map(ListenerHandle)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl ListenerHandle {
    pub(crate) fn new(listener: Arc<Listener>, host: Arc<Host>) -> Self {
        Self(Arc::new(Held { listener, host }))
    }

    /// The oldest connection that waits to be accepted, with the peer's address.
    ///
    /// # Errors
    /// `WouldBlock`; `ShutDown` once closed.
    pub fn accept(&self) -> Result<(TcpHandle, SocketAddr), SocketError> {
        let Held { listener, host } = &*self.0;
        match listener.accept() {
            Ok(socket) => {
                let remote = socket.tuple().remote_addr();
                Ok((TcpHandle::new(socket, host.clone()), remote))
            }
            Err(error) => Err(error),
        }
    }

    /// `SO_ERROR`: the error that the next [`accept`](Self::accept) without a connection would
    /// return, once.
    pub fn take_error(&self) -> Option<SocketError> {
        self.0.listener.take_error()
    }

    /// Stops listening: what nobody accepted is reset.
    pub fn close(&self, now: Instant) {
        self.0.host.close_listener(&self.0.listener, now);
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.listener.local()
    }

    /// Returns what the listener is ready for ([`Ready::READABLE`]: to accept), and the generation
    /// to register with.
    pub fn readiness(&self) -> ReadyState {
        self.0.listener.readiness.state()
    }

    /// Registers a waker as [`TcpHandle::register`] does.
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.0.listener.readiness.register(seen, interest, waker)
    }

    /// Registers a waker as [`register`](Self::register) does, for a thread that will accept: each
    /// connection wakes one of these, the one that has waited longest. One that `drives` the stack
    /// comes first. The end of the listener wakes all.
    ///
    /// Who was woken, or may have been woken before it unregistered, calls
    /// [`accept`](Self::accept) or [`pass_on`](Self::pass_on). Otherwise a connection may wait
    /// while others sleep.
    #[must_use = "false means: look again"]
    pub fn register_exclusive(
        &self,
        seen: ReadyState,
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        self.0.listener.readiness.register_exclusive(seen, interest, waker, drives)
    }

    /// Wakes the next waker of [`register_exclusive`](Self::register_exclusive) if a connection or
    /// an error is there, for a caller that leaves what it was woken for.
    pub fn pass_on(&self) {
        self.0.listener.readiness.pass_on();
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.0.listener.readiness.unregister(waker);
    }

    /// A reference that does not keep the listener open.
    pub fn downgrade(&self) -> WeakListenerHandle {
        WeakListenerHandle(Arc::downgrade(&self.0))
    }

    /// Half-open connections, and connections that wait to be accepted.
    pub fn queued(&self) -> (usize, usize) {
        self.0.listener.queued()
    }

    /// Connections that may wait to be accepted, `somaxconn` at the most.
    pub fn max_queued(&self) -> usize {
        self.0.listener.max_queued()
    }

    /// Changes the backlog, as another `listen` does; `somaxconn` is the upper bound.
    pub fn set_backlog(&self, backlog: u32) {
        let most = backlog.min(self.0.host.config().somaxconn);
        self.0.listener.set_max_queued(most as usize);
    }

    /// `SO_REUSEADDR`, which accepted sockets inherit from now on.
    pub fn set_reuse(&self, on: bool) {
        self.0.listener.set_reuse(on);
    }

    /// Options that accepted sockets inherit: those of the family of the bound address.
    pub fn options(&self) -> SocketOptions {
        SocketOptions::clone(&self.0.listener.options(self.local_addr().ip()))
    }

    /// Sets an option that accepted sockets inherit, of both families.
    ///
    /// # Errors
    /// As [`SocketOptions::set`].
    pub fn set_option(&self, option: &SocketOption) -> Result<(), OptionError> {
        let Held { listener, host } = &*self.0;
        listener.set_option(option, &host.config())
    }

    /// Replaces the options that accepted sockets inherit. `v4` are those of accepted sockets of
    /// IPv4, where they differ.
    pub fn set_options(&self, options: SocketOptions, v4: Option<SocketOptions>) {
        self.0.listener.set_options(Inherited::new(options, v4));
    }
}
