//! What the applications of connections differ in. [`client`](super::client) and
//! [`server`](super::server) do what they have in common.

use super::stream::{Failed, Stream};
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::time::Instant;
use std::task::Waker;

/// What a task says after a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// When it wants a turn even if nothing happens on its connection.
    pub(super) next: Instant,
    /// It changed something beside the positions of its stream.
    pub(super) did: bool,
    /// It has no more to do: its connection is closed.
    pub(super) is_over: bool,
}

/// What one end of a connection does.
pub(super) trait Task {
    /// Whether it has a turn only when its socket has changed or its time has come, as a program
    /// that sleeps. Otherwise it has one after everything that happens on its host, as a program
    /// that polls. The answer is always the same.
    fn sleeps(&self) -> bool;

    /// Its socket exists, and the handshake has begun.
    fn begin(&mut self, now: Instant, handle: &TcpHandle);

    /// One turn: it reads and writes all that it can.
    ///
    /// # Errors
    /// [`Failed`]: then its connection is closed.
    fn turn(&mut self, now: Instant, stream: &mut Stream) -> Result<Turn, Failed>;

    /// Notes how far its stream is, after each turn.
    fn note(&mut self, stream: &Stream);

    /// Its connection was closed: it is over, or it failed.
    fn end(&mut self, now: Instant, has_failed: bool);

    /// Its connection could not be opened.
    fn refuse(&mut self, now: Instant, error: SocketError);
}

/// Gives a task its turn, and another until nothing has changed since the last one began. Then a
/// task that sleeps has left its waker. The connection of a task that is over is closed.
pub(super) fn run<T: Task>(task: &mut T, stream: &mut Stream, now: Instant, waker: &Waker) -> Turn {
    let before = (stream.written, stream.read);
    let mut did = false;
    let result = loop {
        let seen = stream.handle.readiness();
        let result = task.turn(now, stream);
        did |= result.as_ref().is_ok_and(|turn| turn.did);
        let is_last = result.is_err() || !task.sleeps();
        if is_last || stream.handle.register(seen, Ready::all(), waker) {
            break result;
        }
    };
    task.note(stream);
    did |= before != (stream.written, stream.read);
    match result {
        Ok(turn) if !turn.is_over => Turn { did, ..turn },
        result => {
            stream.handle.close(now);
            task.end(now, result.is_err());
            let next = result.map_or(Instant::FAR_FUTURE, |turn| turn.next);
            Turn { next, did: true, is_over: true }
        }
    }
}
