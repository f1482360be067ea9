//! One connection that came to a door, from its first byte to its end.

use super::answer::Answering;
use super::body::Body;
use super::dialogue::Dialogue;
use super::figures::Counters;
use super::near::Near;
use super::step::{Failure, Request, Step};
use crate::holdings::FlowView;
use crate::news::News;
use crate::relay::{End, MOST_PIECE, Progress, Relay, Share, Side};
use crate::token::{Generation, Slot};
use crate::upstream::Far;
use bytes::{Bytes, BytesMut};
use neap::control::RelayReport;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Bytes that are taken at once of a client that says what it wants.
pub(super) const PIECE_OF_HEAD: usize = 4096;
/// Pieces that one visit passes over of a client that is to say no more.
const MOST_DISCARDED: usize = 8;

/// A connection that came to a door.
pub(super) struct Session {
    pub(super) generation: Generation,
    pub(super) door: usize,
    pub(super) near: Near,
    /// The address of the client, and the own one that it came to.
    pub(super) client: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) stage: Stage,
    /// What the client is told before anything else.
    pub(super) out: VecDeque<Bytes>,
    /// When the stage ends.
    pub(super) due: Option<Instant>,
    pub(super) has_error: bool,
    /// Its last visit moved much. It waits for its turn, and others do not wait for it.
    pub(super) is_bulk: bool,
    /// Bytes of its relay that are part of the sum of all.
    pub(super) noted: usize,
}

pub(super) enum Stage {
    /// The client says what it wants.
    Asks {
        dialogue: Dialogue,
        received: BytesMut,
    },
    /// The name of its target is looked up.
    LooksUp(Box<Wanted>),
    /// The other half is opened.
    Opens(Box<Opens>),
    /// The client learns that it is open.
    Joins {
        joined: Box<Joined>,
    },
    Joined(Box<Joined>),
    /// It keeps an association for datagrams.
    Associated(Slot),
    /// Both sides have ended, and the client takes the last bytes. What it says is for nobody.
    Lingers {
        /// It has taken some since its time began.
        has_moved: bool,
    },
    /// The client learns why it is refused, and ends the connection.
    Leaves {
        has_ended: bool,
    },
    /// The client was reset.
    Over,
}

/// A connection that a client wants.
pub(super) struct Wanted {
    pub(super) dialogue: Dialogue,
    pub(super) request: Request,
    /// Data that came with the request.
    pub(super) received: Bytes,
}

/// A far half that is not open yet. The target may have several addresses, and several of them may
/// be tried at the same time.
pub(super) struct Opens {
    pub(super) wanted: Wanted,
    /// The addresses that were tried, in their order: what is begun to each, or why it has failed.
    attempts: Vec<Result<Attempt, Failure>>,
    /// Those that are left.
    pub(super) others: VecDeque<SocketAddr>,
}

/// A connection that is begun.
pub(super) struct Attempt {
    pub(super) far: Box<dyn Far>,
    /// How others see it.
    pub(super) view: FlowView,
    /// What its events have. The other attempts of the session have others.
    pub(super) generation: Generation,
}

/// Two halves that are open.
pub(super) struct Joined {
    pub(super) far: Box<dyn Far>,
    /// What the events of the far half have.
    generation: Generation,
    pub(super) relay: Relay,
    pub(super) view: FlowView,
    /// Bytes to the client, and to the far side, may move.
    is_due: [bool; 2],
    is_finished: bool,
    /// Why a half was lost.
    pub(super) lost: Option<io::Error>,
}

/// What becomes of a session.
pub(super) enum Next {
    /// It waits for an event.
    Waits,
    /// It has more to do, after the others.
    HasMore,
    /// Another stage has begun.
    GoesOn,
    /// It says what it wants.
    Says(Step),
    /// Both sides have ended, and the client has not got all yet.
    Lingers,
    /// It is over: how, and what counts it.
    Over(&'static str, fn(&Counters) -> &AtomicU64),
}

const GIVEN_UP: Next = Next::Over("given up", |counters| &counters.given_up);
const FINISHED: Next = Next::Over("finished", |counters| &counters.finished);

impl Session {
    /// Whether events with this number are of a far half that the session has. One that was given
    /// up may have some yet.
    pub(super) fn has_far(&self, generation: Generation) -> bool {
        match &self.stage {
            Stage::Opens(opens) => {
                opens.attempts.iter().flatten().any(|attempt| attempt.generation == generation)
            }
            Stage::Joins { joined } | Stage::Joined(joined) => joined.generation == generation,
            _ => false,
        }
    }

    /// Notes what has happened at one side.
    pub(super) fn note(&mut self, news: News) {
        // A far half that is not open yet says by itself what is wrong.
        let is_joined = matches!(self.stage, Stage::Joined(_));
        self.has_error |= news.has_error && (news.side == Side::Client || is_joined);
        match &mut self.stage {
            Stage::Joined(joined) => {
                for to in [Side::Client, Side::Server] {
                    joined.is_due[to as usize] |= news.moves(to, &joined.relay);
                }
            }
            // A full socket has room again when the client has taken bytes.
            Stage::Lingers { has_moved } => {
                *has_moved |= news.side == Side::Client && news.is_writable;
            }
            _ => {}
        }
    }

    /// Sends what the client is to be told. Whether all of it has gone.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let is_empty = self.near.flush()?;
        // Data of a relay wait for room by themselves.
        if !is_empty && !matches!(self.stage, Stage::Joined(_)) {
            return Ok(false);
        }
        while !self.out.is_empty() {
            match self.near.send(&mut self.out, usize::MAX) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.out = VecDeque::new();
        Ok(true)
    }

    /// Goes on with the stage, and passes on a share to each side. The name and the
    /// connections of a client are the caller's.
    pub(super) fn go_on(&mut self, share: Share, moved: &mut [u64; 2]) -> Next {
        match self.flush() {
            Ok(true) => {}
            Ok(false) => return if self.has_error { GIVEN_UP } else { Next::Waits },
            Err(_) => {
                // The far side is not to take a stream that is cut for a whole one.
                self.reset();
                return GIVEN_UP;
            }
        }
        let Self { stage, near, has_error, .. } = self;
        match stage {
            Stage::Asks { .. } | Stage::LooksUp(_) | Stage::Opens(_) if *has_error => GIVEN_UP,
            Stage::Asks { .. } | Stage::LooksUp(_) | Stage::Opens(_) => Next::Waits,
            Stage::Joins { .. } => {
                self.join();
                Next::GoesOn
            }
            Stage::Joined(joined) => match joined.pump(near, *has_error, share, moved) {
                // What the near side has taken is not sent yet, or not received. A close would lose
                // it if the client said anything more (RFC 9112 section 9.6).
                Next::Over(..)
                    if joined.is_finished
                        && (near.may_say_more() || matches!(near.flush(), Ok(false))) =>
                {
                    Next::Lingers
                }
                next => next,
            },
            Stage::Associated(_) | Stage::Lingers { .. } => discard(near, FINISHED),
            Stage::Over => Next::Over("reset", |counters| &counters.lost),
            Stage::Leaves { has_ended } => {
                if !std::mem::replace(has_ended, true) && near.finish().is_err() {
                    return Next::Over("refused", |counters| &counters.given_up);
                }
                discard(near, Next::Over("refused", |counters| &counters.finished))
            }
        }
    }

    /// Takes more of what the client says.
    pub(super) fn receive(&mut self) -> io::Result<Option<()>> {
        let Stage::Asks { received, .. } = &mut self.stage else { return Ok(None) };
        let data = self.near.receive()?;
        Ok(data.map(|data| received.extend_from_slice(&data)))
    }

    fn join(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Leaves { has_ended: false });
        let Stage::Joins { mut joined } = stage else { return };
        self.near.set_piece(MOST_PIECE);
        joined.far.frame().into_iter().for_each(|frame| self.near.set_piece(frame));
        self.near.frame().into_iter().for_each(|frame| joined.far.set_piece(frame));
        self.stage = Stage::Joined(joined);
    }

    /// Bytes that one half has given and the other has not taken.
    pub(super) fn held(&self) -> usize {
        match &self.stage {
            Stage::Joins { joined } | Stage::Joined(joined) => joined.held(&self.near),
            _ => 0,
        }
    }

    /// Sets whether its relay receives only small pieces, one at a time.
    pub(super) fn save_memory(&mut self, saves: bool) {
        if let Stage::Joined(joined) = &mut self.stage {
            joined.relay.save_memory(saves);
        }
    }

    /// The connection of the session as others see it.
    pub(super) fn view(&self) -> Option<FlowView> {
        match &self.stage {
            Stage::Opens(opens) => opens.view(),
            Stage::Joins { joined } | Stage::Joined(joined) => {
                Some(FlowView { held: joined.held(&self.near), ..joined.view })
            }
            _ => None,
        }
    }

    /// What it holds and waits for, with its place in the stack. `far` is the side that the stack
    /// does not have.
    pub(super) fn report(&self, far: Side) -> Option<((SocketAddr, SocketAddr), RelayReport)> {
        let (view, report) = match &self.stage {
            Stage::Opens(opens) => opens.view().map(|view| (view, view.opening(far)))?,
            Stage::Joins { joined } | Stage::Joined(joined) => {
                let ends: (&dyn End, &dyn End) = (&self.near, &*joined.far);
                let report = joined.view.open(far, &joined.relay, ends, joined.is_due);
                (joined.view, report)
            }
            _ => return None,
        };
        Some((view.key(), report))
    }

    /// Ends both halves by resets.
    pub(super) fn reset(&mut self) {
        self.near.reset();
        match &mut self.stage {
            Stage::Opens(opens) => opens.reset(),
            Stage::Joins { joined } | Stage::Joined(joined) => joined.far.reset(),
            _ => {}
        }
    }
}

/// Passes over what a client says that is to say no more, until it ends the connection.
fn discard(near: &mut Near, over: Next) -> Next {
    for _ in 0..MOST_DISCARDED {
        match near.stream.receive() {
            Ok(Some(_)) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Waits,
            Ok(None) | Err(_) => return over,
        }
    }
    Next::HasMore
}

impl Opens {
    /// A client wants a connection to the first of some addresses that takes one.
    pub(super) fn new(wanted: Wanted, others: VecDeque<SocketAddr>) -> Self {
        Self { wanted, attempts: Vec::new(), others }
    }

    /// The next address has been tried.
    pub(super) fn add(&mut self, begun: io::Result<Attempt>) {
        self.attempts.push(begun.map_err(|error| Failure::of(&error)));
    }

    /// Whether something is begun that may come to a connection.
    pub(super) fn has_some(&self) -> bool {
        self.attempts.iter().any(Result::is_ok)
    }

    /// Whether the address that was tried last has failed.
    pub(super) fn has_lost_last(&self) -> bool {
        self.attempts.last().is_some_and(Result::is_err)
    }

    /// Takes the first attempt that is open, and resets all others. Notes those that have failed.
    pub(super) fn take_open(&mut self) -> Option<Attempt> {
        for index in 0..self.attempts.len() {
            let Ok(attempt) = &mut self.attempts[index] else { continue };
            match attempt.far.is_open() {
                Ok(false) => {}
                Ok(true) => {
                    let open = self.attempts.remove(index).ok();
                    self.reset();
                    return open;
                }
                Err(error) => self.attempts[index] = Err(Failure::of(&error)),
            }
        }
        None
    }

    /// Why the last of all addresses gave no connection. It has had its time.
    pub(super) fn why(&self) -> Failure {
        match self.attempts.last() {
            Some(Err(why)) => *why,
            Some(Ok(_)) => Failure::TimedOut,
            None => Failure::NoName,
        }
    }

    fn view(&self) -> Option<FlowView> {
        self.attempts.iter().rev().flatten().next().map(|attempt| attempt.view)
    }

    pub(super) fn reset(&mut self) {
        self.attempts.iter_mut().flatten().for_each(|attempt| attempt.far.reset());
    }
}

impl Joined {
    /// The far half is open.
    pub(super) fn new(wanted: &mut Wanted, near: &mut Near, open: Attempt) -> Self {
        let Attempt { far, view, generation } = open;
        near.body = wanted.request.body;
        let mut received = std::mem::take(&mut wanted.received);
        // What is behind the body is for nobody. What is no body was refused.
        let count = near.body.count(&received).unwrap_or(0);
        received.truncate(count);
        let head = std::mem::take(&mut wanted.request.head);
        let relay = Relay::with_first([head, received]);
        let far = match near.body {
            Body::Endless => far,
            Body::Length(_) | Body::Chunked(_) => Box::new(Answering::new(far)),
        };
        Self { far, generation, relay, view, is_due: [true; 2], is_finished: false, lost: None }
    }

    /// Bytes that one side does not take yet.
    fn held(&self, near: &Near) -> usize {
        self.relay.held() + self.far.held() + near.held()
    }

    fn pump(
        &mut self,
        near: &mut Near,
        has_error: bool,
        share: Share,
        moved: &mut [u64; 2],
    ) -> Next {
        let far = &mut *self.far;
        let sides = [Side::Server, Side::Client];
        let before = sides.map(|side| self.relay.bytes_to(side));
        let mut progress = Progress::Waits;
        // The second round is for a side that the end of the other one has ended.
        for to in [Side::Server, Side::Client, Side::Server] {
            if !std::mem::take(&mut self.is_due[to as usize]) {
                continue;
            }
            match self.relay.pump_to(to, near, far, share) {
                Progress::Waits => {}
                moved => {
                    self.is_due[to as usize] = matches!(moved, Progress::HasMore);
                    progress = moved;
                }
            }
            if progress.is_over() {
                break;
            }
            if to == Side::Client && self.relay.is_complete(to) && near.is_over() {
                self.is_due[Side::Server as usize] = true;
            }
        }
        if has_error && matches!(progress, Progress::Waits) {
            progress = self.relay.check(near, far);
        }
        let after = sides.map(|side| self.relay.bytes_to(side));
        *moved = [after[0] - before[0], after[1] - before[1]];
        match progress {
            Progress::Waits => Next::Waits,
            Progress::HasMore => Next::HasMore,
            Progress::Finished => {
                self.is_finished = true;
                FINISHED
            }
            Progress::Lost { error, .. } => {
                self.lost = Some(error);
                Next::Over("lost", |counters| &counters.lost)
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use neap::{Events, Poller};
    use std::net::Ipv4Addr;
    use std::sync::{Arc, Mutex, MutexGuard};

    impl Stage {
        /// How many connections are begun that are not open yet.
        pub(in crate::doors) fn begun(&self) -> usize {
            let Self::Opens(opens) = self else { return 0 };
            opens.attempts.iter().flatten().count()
        }
    }

    /// What a [`Fake`] does, and what was done to it.
    #[derive(Default)]
    pub(in crate::doors) struct Script {
        /// It holds sealed bytes that its socket has no room for.
        pub(in crate::doors) is_full: bool,
        /// Its connection is not open yet.
        pub(in crate::doors) is_opening: bool,
        /// Its connection is lost, which only sending tells.
        pub(in crate::doors) is_lost: bool,
        /// Its stream has ended.
        pub(in crate::doors) has_ended: bool,
        pub(in crate::doors) was_reset: bool,
    }

    /// An end without a socket.
    #[derive(Clone, Default)]
    pub(in crate::doors) struct Fake(Arc<Mutex<Script>>);

    impl Fake {
        pub(in crate::doors) fn script(&self) -> MutexGuard<'_, Script> {
            self.0.lock().expect("no panic")
        }
    }

    impl End for Fake {
        fn receive(&mut self) -> io::Result<Option<Bytes>> {
            if self.script().has_ended { Ok(None) } else { Err(io::ErrorKind::WouldBlock.into()) }
        }
        fn send(&mut self, _: &mut VecDeque<Bytes>, _: usize) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&mut self) -> io::Result<bool> {
            let script = self.script();
            if script.is_lost {
                Err(io::ErrorKind::ConnectionReset.into())
            } else {
                Ok(!script.is_full)
            }
        }
        fn reset(&mut self) {
            self.script().was_reset = true;
        }
    }

    impl Far for Fake {
        fn is_open(&mut self) -> io::Result<bool> {
            Ok(!self.script().is_opening)
        }
        fn enter(&self, _: &Poller, _: u64, _: Events) -> io::Result<()> {
            Ok(())
        }
    }

    /// A session whose two halves are open.
    pub(in crate::doors) fn joined(near: &Fake, far: &Fake) -> Session {
        let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let request = Request::plain(nobody.into());
        let dialogue = Dialogue::Fixed(request.target.clone());
        let mut wanted = Wanted { dialogue, request, received: Bytes::new() };
        let view = FlowView { local: nobody, guest: nobody, far: nobody, held: 0 };
        let mut near = Near::new(Box::new(near.clone()));
        let generation = Generation::default();
        let open = Attempt { far: Box::new(far.clone()), view, generation };
        let joined = Joined::new(&mut wanted, &mut near, open);
        Session {
            generation,
            door: 0,
            near,
            client: nobody,
            local: nobody,
            stage: Stage::Joined(Box::new(joined)),
            out: VecDeque::new(),
            due: None,
            has_error: false,
            is_bulk: false,
            noted: 0,
        }
    }

    #[test]
    fn a_client_that_is_lost_with_sealed_bytes_resets_the_far_half() {
        let (near, far) = (Fake::default(), Fake::default());
        let mut session = joined(&near, &far);
        near.script().is_full = true;
        let share = Share::Pieces(1);
        assert!(matches!(session.go_on(share, &mut [0; 2]), Next::Waits));
        assert!(!far.script().was_reset);
        near.script().is_lost = true;
        assert!(matches!(session.go_on(share, &mut [0; 2]), Next::Over("given up", _)));
        assert!(far.script().was_reset, "the far side takes a cut stream for a whole one");
    }
}
