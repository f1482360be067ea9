//! What other threads ask of doors while they run.

use super::config::{Door, TunnelResolver};
use super::step::Found;
use super::tls::TlsIdentity;
use crate::holdings::{FlowView, Relays};
use crate::requests::Caller;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Number of a door. [`Doors`](super::Doors) give each number once, from 0 on: the doors of their
/// settings come first, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DoorId(pub(super) u64);

/// Opens and closes doors while they run, and ends the run. Any thread may use it, except for that
/// of the doors. A request waits for the run to begin.
#[derive(Clone, Debug)]
pub struct DoorsHandle(pub(super) Caller<Request>);

/// A request, with the way of its answer.
pub(super) enum Request {
    Open(Door, SyncSender<io::Result<DoorId>>),
    Close(DoorId, SyncSender<io::Result<()>>),
    SetResolver(TunnelResolver),
    SetIdentity(DoorId, TlsIdentity, SyncSender<io::Result<()>>),
    Look(SyncSender<Vec<FlowView>>),
    Relays(SyncSender<Relays>),
    Drain(Duration),
    /// The host has looked up a name.
    Named(Arc<str>, Found),
}

impl DoorsHandle {
    /// Ends the run. Connections are reset.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Ends the run when no connection is left and the peers of the stack have acknowledged all
    /// that was sent to them, and after `time` at the latest. The ports of the doors are closed at
    /// once.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn drain(&self, time: Duration) -> io::Result<()> {
        self.0.tell(Request::Drain(time))
    }

    /// Opens one more door.
    ///
    /// # Errors
    /// Why its port cannot be had; `BrokenPipe` if the run has ended.
    pub fn open(&self, door: Door) -> io::Result<DoorId> {
        self.0.ask(|answer| Request::Open(door, answer))?
    }

    /// Closes a door: its port, and its connections, which are reset. Cost: O(connections of all
    /// doors).
    ///
    /// # Errors
    /// `NotFound` if there is no such door; `BrokenPipe` if the run has ended.
    pub fn close(&self, id: DoorId) -> io::Result<()> {
        self.0.ask(|answer| Request::Close(id, answer))?
    }

    /// Changes who is asked for names from now on. What is known of names is forgotten.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn set_resolver(&self, resolver: TunnelResolver) -> io::Result<()> {
        self.0.tell(Request::SetResolver(resolver))
    }

    /// Changes who a [`Door::Http`] with TLS is to clients that come from now on.
    ///
    /// # Errors
    /// `NotFound` if there is no such door; `Unsupported` if it has no TLS; `BrokenPipe` if the run
    /// has ended.
    pub fn set_identity(&self, id: DoorId, identity: TlsIdentity) -> io::Result<()> {
        self.0.ask(|answer| Request::SetIdentity(id, identity, answer))?
    }

    /// The connections that there are; `None` if the doors do not answer within `patience`, or too
    /// many ask.
    pub(super) fn look(&self, patience: Duration) -> Option<Vec<FlowView>> {
        self.0.look(Request::Look, patience)
    }

    /// What each connection holds and waits for; `None` as of [`look`](Self::look).
    pub(super) fn relays(&self, patience: Duration) -> Option<Relays> {
        self.0.look(Request::Relays, patience)
    }
}
