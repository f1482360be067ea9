//! Two byte streams joined to one: bytes, half-closes, resets and errors pass from each to the
//! other, and a side that does not read holds the other one back.
//!
//! A [`Relay`] has no sockets and does not wait. It moves what can be moved through the [`End`]s
//! that are passed to it, and says what it waits for.
//!
//! Cost: a relay holds what was received for one call of [`End::send`] and was not taken: at most
//! [`MOST_PIECE`] bytes more than [`End::at_once`] in each direction, and only while the other end
//! has no room for it. An allocation per visit that moves something. What waits for room is copied
//! if it holds the memory of others ([`End::lends`]), each byte once. So the memory is at most
//! about twice the bytes.

use bytes::{Buf, Bytes, BytesMut};
use neap::device::SendQueue;
use std::collections::VecDeque;
use std::io;

/// Most bytes that [`End::receive`] returns at once.
pub const MOST_PIECE: usize = 64 << 10;

/// Bytes after which a visit ends in one direction, so that other flows have their turn.
pub(crate) const VISIT: usize = 512 << 10;

/// Most bytes of the pages into which pieces are copied that wait, if fewer wait.
const PAGE: usize = 16 << 10;
/// Pieces of at most so many bytes are copied if they wait, as each costs some words besides. An
/// end that [saves memory](End::save_memory) returns no larger ones.
pub(crate) const SMALL: usize = 4 << 10;

/// One side of a relayed connection, which never waits.
///
/// An end that is made of another one names it by [`beneath`](Self::beneath) and
/// [`beneath_mut`](Self::beneath_mut). Whatever it does not implement itself is then asked of that
/// one.
pub trait End {
    /// The end of which this one is made, if there is one.
    fn beneath(&self) -> Option<&dyn End> {
        None
    }

    /// As [`beneath`](Self::beneath), to change it.
    fn beneath_mut(&mut self) -> Option<&mut dyn End> {
        None
    }

    /// Takes received bytes, at most [`MOST_PIECE`]; `Ok(None)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there; otherwise why the connection is lost.
    fn receive(&mut self) -> io::Result<Option<Bytes>>;

    /// Bytes that it has taken from its socket and that [`receive`](Self::receive) has not returned
    /// yet. They count as those that a relay holds.
    fn held(&self) -> usize {
        self.beneath().map_or(0, End::held)
    }

    /// Bytes that its socket has taken and the other end has not acknowledged, if it has a queue of
    /// them. It is asked only for somebody who looks, so it may cost system calls.
    fn send_queue(&self) -> Option<SendQueue> {
        self.beneath().and_then(End::send_queue)
    }

    /// Whether what [`receive`](Self::receive) returns keeps memory in use that is larger than
    /// twice the bytes, such as a buffer of packets of which it is a slice. A relay copies it if it
    /// has to wait.
    fn lends(&self) -> bool {
        self.beneath().is_some_and(End::lends)
    }

    /// Sends a part from the front of `pieces`, at most `most` bytes, and takes it away from them
    /// ([`take_front`]). Returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise why the connection is lost.
    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize>;

    /// Sends a part from the front of `data`, and takes it away from `data`.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn send_piece(&mut self, data: &mut Bytes) -> io::Result<usize> {
        let mut pieces = VecDeque::from([std::mem::take(data)]);
        let sent = self.send(&mut pieces, usize::MAX);
        *data = pieces.pop_front().unwrap_or_default();
        sent
    }

    /// Bytes that one call of [`send`](Self::send) is worth; more pieces are received for it until
    /// there are so many.
    fn at_once(&self) -> usize {
        self.beneath().map_or(1, End::at_once)
    }

    /// Sends the end of the stream after what was sent before.
    ///
    /// # Errors
    /// Why the connection is lost.
    fn finish(&mut self) -> io::Result<()>;

    /// Bytes of whole frames of the connection that make up a piece, if that is known.
    fn frame(&self) -> Option<usize> {
        self.beneath().and_then(End::frame)
    }

    /// Sets most bytes that [`receive`](Self::receive) returns: whole frames of the other end, so
    /// that none is followed by a small rest.
    fn set_piece(&mut self, bytes: usize) {
        if let Some(end) = self.beneath_mut() {
            end.set_piece(bytes);
        }
    }

    /// Sets whether [`receive`](Self::receive) returns at most 4 KiB, since too much waits in all
    /// relays together. An end of which there are few need not.
    fn save_memory(&mut self, saves: bool) {
        if let Some(end) = self.beneath_mut() {
            end.save_memory(saves);
        }
    }

    /// Says why the connection is lost, if it is (`SO_ERROR`). It is asked of an end that no other
    /// call is made of that would tell: its stream has ended, or its bytes wait for the other side.
    /// An end that cannot be lost then has nothing to say.
    ///
    /// # Errors
    /// Why the connection is lost.
    fn take_error(&mut self) -> io::Result<()> {
        self.beneath_mut().map_or(Ok(()), End::take_error)
    }

    /// Sends what was taken by [`send`](Self::send) and is still held here, as far as there is
    /// room. Whether nothing is left. An end that holds nothing has nothing to do.
    ///
    /// # Errors
    /// Why the connection is lost.
    fn flush(&mut self) -> io::Result<bool> {
        self.beneath_mut().map_or(Ok(true), End::flush)
    }

    /// Ends the connection with a reset, and forgets what was not sent.
    fn reset(&mut self);

    /// The segments that it sends, for an estimate of their headers.
    fn segments(&self) -> Segments {
        self.beneath().map_or_else(Segments::default, End::segments)
    }

    /// Takes at most about so many bytes that cannot be sent yet; [`send`](Self::send) then has no
    /// room.
    fn limit_unsent(&mut self, bytes: usize) {
        if let Some(end) = self.beneath_mut() {
            end.limit_unsent(bytes);
        }
    }
}

/// The segments of a connection: what an [`End`] that sends `n` bytes has on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Bytes of data in a full one.
    pub data: usize,
    /// Bytes of its headers: IP, and TCP with its options.
    pub headers: usize,
}

impl Default for Segments {
    /// Segments with time stamps over IPv4 on an Ethernet.
    fn default() -> Self {
        Self { data: 1448, headers: 52 }
    }
}

impl Segments {
    /// Bytes on the wire of so many bytes of data.
    pub fn on_wire(self, data: usize) -> usize {
        data + data.div_ceil(self.data.max(1)) * self.headers
    }

    /// Bytes of data that are so many on the wire: full segments, at least one.
    pub fn data_in(self, on_wire: usize) -> usize {
        let data = self.data.max(1);
        on_wire.div_ceil(data + self.headers).max(1) * data
    }
}

/// One side of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side whose program opened the connection.
    Client,
    /// The side that the connection was opened to.
    Server,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Takes `count` bytes away from the front of `pieces`, which have no fewer.
pub fn take_front(pieces: &mut VecDeque<Bytes>, mut count: usize) {
    while let Some(first) = pieces.front_mut() {
        if count < first.len() {
            return first.advance(count);
        }
        count -= first.len();
        pieces.pop_front();
    }
}

/// One direction of a relay.
#[derive(Debug, Default)]
struct Direction {
    /// Received by one side, and not yet taken by the other.
    held: VecDeque<Bytes>,
    held_bytes: usize,
    /// Bytes in the front of them that have waited before, and hold no memory of others.
    kept_bytes: usize,
    /// Why the receiving side is lost, which counts when what it gave before was passed on.
    lost: Option<io::Error>,
    /// The receiving side has ended its stream.
    has_ended: bool,
    /// The receiving side was told to save memory.
    saves_memory: bool,
    /// The end was passed on.
    is_closed: bool,
    /// Bytes that were passed on.
    bytes: u64,
}

/// What a visit came to.
#[derive(Debug)]
pub enum Progress {
    /// It waits until an end is readable or writable.
    Waits,
    /// It has used up its turn and has more to move.
    HasMore,
    /// Both directions have ended, and each side was told.
    Finished,
    /// A side was lost; the other one was reset.
    Lost {
        /// The side that was lost.
        side: Side,
        /// Why.
        error: io::Error,
    },
}

impl Progress {
    /// Whether the relay is over.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Finished | Self::Lost { .. })
    }
}

/// What a direction may pass on in one visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// At most so many bytes. The last piece may be cut.
    Bytes(usize),
    /// Whole pieces until they are so many bytes. What is received after a visit makes a frame of
    /// its own, so the rest of a piece would leave as a small one.
    Pieces(usize),
}

/// Why a direction stopped.
enum Stop {
    Waits,
    HasMore,
    Closed,
    SourceLost(io::Error),
    SinkLost(io::Error),
}

impl Direction {
    /// Receives until `bytes` are held or nothing more is there. Whether more may be there.
    fn gather(&mut self, source: &mut dyn End, bytes: usize) -> bool {
        while self.held_bytes < bytes && !self.has_ended && self.lost.is_none() {
            match source.receive() {
                Ok(Some(data)) => {
                    self.held_bytes += data.len();
                    self.held.push_back(data);
                }
                Ok(None) => self.has_ended = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => self.lost = Some(error),
            }
        }
        true
    }

    /// Passes on what a source that is lost has sent before, as far as the sink takes it in one
    /// visit. A lost connection looks like one that has ended, so no end is passed on.
    fn pass_last(&mut self, source: &mut dyn End, sink: &mut dyn End) {
        let most = self.bytes + VISIT as u64;
        while self.bytes < most {
            self.gather(source, sink.at_once());
            if self.held_bytes == 0 {
                return;
            }
            // It has no room, or is lost as well.
            let Ok(sent) = sink.send(&mut self.held, self.held_bytes) else { return };
            self.note_sent(sent);
        }
    }

    /// Why the source is lost, where [`pump`](Self::pump) has no call left that tells, or none
    /// until the sink has room.
    fn loss(&mut self, source: &mut dyn End) -> Option<io::Error> {
        if !self.has_ended && self.held.is_empty() {
            return None;
        }
        self.lost.take().or_else(|| source.take_error().err())
    }

    fn note_sent(&mut self, sent: usize) {
        self.held_bytes -= sent;
        self.kept_bytes = self.kept_bytes.saturating_sub(sent);
        self.bytes += sent as u64;
    }

    /// Lets what was received since the last call wait: copies what holds the memory of others,
    /// and small pieces.
    fn keep(&mut self, source: &dyn End) {
        if self.kept_bytes == self.held_bytes {
            return;
        }
        let (mut kept, mut bytes) = (0, 0);
        while bytes < self.kept_bytes {
            bytes += self.held[kept].len();
            kept += 1;
        }
        let fresh = self.held.split_off(kept);
        let is_copied = |piece: &Bytes| source.lends() || piece.len() <= SMALL;
        let mut left: usize = fresh.iter().filter(|piece| is_copied(piece)).map(Bytes::len).sum();
        let mut page = self.last_page();
        for piece in fresh {
            if !is_copied(&piece) {
                self.seal(&mut page);
                self.held.push_back(piece);
                continue;
            }
            let mut rest = &piece[..];
            while !rest.is_empty() {
                if page.len() == page.capacity() {
                    self.seal(&mut page);
                    page = BytesMut::with_capacity(left.max(self.held_bytes.min(PAGE)));
                }
                let room = page.capacity() - page.len();
                let (part, behind) = rest.split_at(rest.len().min(room));
                page.extend_from_slice(part);
                left -= part.len();
                rest = behind;
            }
        }
        self.seal(&mut page);
        self.kept_bytes = self.held_bytes;
    }

    /// Takes the last piece to put more behind it, unless its memory is shared.
    fn last_page(&mut self) -> BytesMut {
        match self.held.pop_back().map(Bytes::try_into_mut) {
            Some(Ok(page)) => return page,
            Some(Err(piece)) => self.held.push_back(piece),
            None => {}
        }
        BytesMut::new()
    }

    fn seal(&mut self, page: &mut BytesMut) {
        if !page.is_empty() {
            self.held.push_back(std::mem::take(page).freeze());
        }
    }

    /// Passes on bytes until the share is used up, and where memory is to be saved receives none
    /// while bytes wait. What then waits for long holds no memory of others: without room, or until
    /// the next turn under a rate.
    fn pump(
        &mut self,
        source: &mut dyn End,
        sink: &mut dyn End,
        share: Share,
        saves_memory: bool,
    ) -> Stop {
        if std::mem::replace(&mut self.saves_memory, saves_memory) != saves_memory {
            source.save_memory(saves_memory);
        }
        let stop = self.pass(source, sink, share);
        if matches!((&stop, share), (Stop::Waits, _) | (Stop::HasMore, Share::Bytes(_))) {
            self.keep(source);
        }
        stop
    }

    fn pass(&mut self, source: &mut dyn End, sink: &mut dyn End, share: Share) -> Stop {
        let most = if self.saves_memory { 1 } else { usize::MAX };
        let (mut budget, may_cut) = match share {
            Share::Bytes(most) => (most, true),
            Share::Pieces(least) => (least, false),
        };
        if self.is_closed {
            return Stop::Closed;
        }
        let mut may_have_more = true;
        loop {
            let bytes = sink.at_once().min(budget).min(most);
            may_have_more = may_have_more && self.gather(source, bytes);
            if self.held_bytes == 0 {
                // Keeps no memory of what was sent.
                self.held = VecDeque::new();
                if let Some(error) = self.lost.take() {
                    return Stop::SourceLost(error);
                }
                if self.has_ended {
                    self.is_closed = true;
                    return match sink.finish() {
                        Ok(()) => Stop::Closed,
                        Err(error) => Stop::SinkLost(error),
                    };
                }
            }
            if budget == 0 {
                return Stop::HasMore;
            }
            if self.held_bytes == 0 && !may_have_more {
                return Stop::Waits;
            }
            match sink.send(&mut self.held, if may_cut { budget } else { self.held_bytes }) {
                Ok(sent) => {
                    self.note_sent(sent);
                    budget = budget.saturating_sub(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Stop::Waits,
                Err(error) => return Stop::SinkLost(error),
            }
        }
    }
}

/// Two joined streams.
#[derive(Debug, Default)]
pub struct Relay {
    to_server: Direction,
    to_client: Direction,
    /// The side whose bytes have turns of their own.
    scheduled: Option<Side>,
    /// Each direction receives one small piece at a time, and none while bytes wait.
    saves_memory: bool,
}

impl Relay {
    /// A relay that has received data of the client already.
    pub(crate) fn with_first(data: impl IntoIterator<Item = Bytes>) -> Self {
        let held: VecDeque<_> = data.into_iter().filter(|data| !data.is_empty()).collect();
        let held_bytes = held.iter().map(Bytes::len).sum();
        let to_server = Direction { held, held_bytes, ..Direction::default() };
        Self { to_server, ..Self::default() }
    }

    /// Leaves the bytes to one side to turns of their own: nothing passes to it but what
    /// [`pump_to`](Self::pump_to) is told to.
    pub(crate) fn schedule(&mut self, to: Side) {
        self.scheduled = Some(to);
    }

    /// Sets whether each direction receives only one small piece for a call of [`End::send`], and
    /// none while bytes wait for room.
    pub(crate) fn save_memory(&mut self, saves: bool) {
        self.saves_memory = saves;
    }

    /// Moves what can be moved. Call it when an end has become readable or writable, or was lost.
    ///
    /// After [`Progress::Finished`] and [`Progress::Lost`] the relay is over, and both ends are to
    /// be dropped.
    pub fn pump(&mut self, client: &mut dyn End, server: &mut dyn End) -> Progress {
        let share = Share::Pieces(VISIT);
        let there = self.pump_to(Side::Server, client, server, share);
        if matches!(there, Progress::Lost { .. }) {
            return there;
        }
        match self.pump_to(Side::Client, client, server, share) {
            Progress::Waits => there,
            back => back,
        }
    }

    /// Moves a share to one side. [`Progress::HasMore`] and [`Progress::Waits`] are
    /// about this direction. If that side takes nothing any more, what it sent before it was lost
    /// passes to the other one first, as far as that has room.
    pub fn pump_to(
        &mut self,
        to: Side,
        client: &mut dyn End,
        server: &mut dyn End,
        share: Share,
    ) -> Progress {
        let saves_memory = self.saves_memory;
        let stop = match to {
            Side::Server => self.to_server.pump(client, server, share, saves_memory),
            Side::Client => self.to_client.pump(server, client, share, saves_memory),
        };
        let (side, error) = match stop {
            Stop::HasMore => return Progress::HasMore,
            Stop::Closed if self.to_server.is_closed && self.to_client.is_closed => {
                return Progress::Finished;
            }
            Stop::Waits | Stop::Closed => return Progress::Waits,
            Stop::SourceLost(error) => (to.other(), error),
            Stop::SinkLost(error) => {
                match to {
                    _ if self.scheduled == Some(to.other()) => {}
                    Side::Server => self.to_client.pass_last(server, client),
                    Side::Client => self.to_server.pass_last(client, server),
                }
                (to, error)
            }
        };
        lose(side, error, client, server)
    }

    fn direction(&self, to: Side) -> &Direction {
        match to {
            Side::Client => &self.to_client,
            Side::Server => &self.to_server,
        }
    }

    /// Whether a side got all that the other one had for it, and its end.
    pub(crate) fn is_complete(&self, to: Side) -> bool {
        self.direction(to).is_closed
    }

    /// Whether bytes that were taken wait for this side to have room.
    pub(crate) fn waits_for(&self, to: Side) -> bool {
        !self.direction(to).held.is_empty()
    }

    /// Whether bytes wait and nothing is received behind them, as memory is saved.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.saves_memory && self.held() > 0
    }

    pub(crate) fn bytes_to(&self, side: Side) -> u64 {
        self.direction(side).bytes
    }

    /// Bytes for one side that the other one has given, taken or not.
    pub(crate) fn given_to(&self, side: Side) -> u64 {
        let direction = self.direction(side);
        direction.bytes + direction.held_bytes as u64
    }

    /// Bytes for one side that the other one has given and this one has not taken.
    pub(crate) fn held_for(&self, side: Side) -> usize {
        self.direction(side).held_bytes
    }

    /// Bytes that one side has given and the other has not taken.
    pub fn held(&self) -> usize {
        self.to_server.held_bytes + self.to_client.held_bytes
    }

    /// Looks for the loss of a side that no call of [`pump`](Self::pump) tells of: it has ended its
    /// stream, and what was sent to it may not have arrived; or its bytes wait for the other side,
    /// and the loss is behind them. Those bytes go no further then, as that side may never read
    /// them. Call it when a side has an error and [`pump`](Self::pump) waits.
    pub fn check(&mut self, client: &mut dyn End, server: &mut dyn End) -> Progress {
        if let Some(error) = self.to_server.loss(client) {
            return lose(Side::Client, error, client, server);
        }
        if let Some(error) = self.to_client.loss(server) {
            return lose(Side::Server, error, client, server);
        }
        Progress::Waits
    }

    /// Bytes passed to the server, and bytes passed to the client.
    pub fn bytes(&self) -> (u64, u64) {
        (self.to_server.bytes, self.to_client.bytes)
    }
}

/// A side is lost, and the other one is reset.
fn lose(side: Side, error: io::Error, client: &mut dyn End, server: &mut dyn End) -> Progress {
    match side {
        Side::Client => server.reset(),
        Side::Server => client.reset(),
    }
    Progress::Lost { side, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Held;
    use std::collections::VecDeque;
    use std::sync::Arc;

    /// An end in memory.
    #[derive(Default)]
    struct Fake {
        incoming: VecDeque<Bytes>,
        has_ended: bool,
        is_lost: bool,
        room: usize,
        at_once: usize,
        lends: bool,
        saves_memory: bool,
        calls: usize,
        taken: Vec<u8>,
        is_finished: bool,
        is_reset: bool,
    }

    impl Fake {
        fn check(&self) -> io::Result<()> {
            if self.is_lost { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
        }
    }

    impl End for Fake {
        fn receive(&mut self) -> io::Result<Option<Bytes>> {
            self.check()?;
            match self.incoming.pop_front() {
                Some(mut data) if self.saves_memory && data.len() > SMALL => {
                    self.incoming.push_front(data.split_off(SMALL));
                    Ok(Some(data))
                }
                Some(data) => Ok(Some(data)),
                None if self.has_ended => Ok(None),
                None => Err(io::ErrorKind::WouldBlock.into()),
            }
        }
        fn lends(&self) -> bool {
            self.lends
        }
        fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
            self.check()?;
            let data: Vec<u8> = pieces.iter().flatten().copied().collect();
            let count = data.len().min(self.room).min(most);
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.room -= count;
            self.calls += 1;
            self.taken.extend_from_slice(&data[..count]);
            take_front(pieces, count);
            Ok(count)
        }
        fn at_once(&self) -> usize {
            self.at_once.max(1)
        }
        fn save_memory(&mut self, saves: bool) {
            self.saves_memory = saves;
        }
        fn finish(&mut self) -> io::Result<()> {
            self.check()?;
            assert!(!self.is_finished, "the end is passed on once");
            self.is_finished = true;
            Ok(())
        }
        fn take_error(&mut self) -> io::Result<()> {
            self.check()
        }
        fn reset(&mut self) {
            self.is_reset = true;
        }
    }

    fn ends() -> (Fake, Fake) {
        let room = usize::MAX;
        (Fake { room, ..Fake::default() }, Fake { room, ..Fake::default() })
    }

    /// An end that is made of another one, and says nothing itself.
    struct Above(Fake);

    impl End for Above {
        fn beneath(&self) -> Option<&dyn End> {
            Some(&self.0)
        }
        fn beneath_mut(&mut self) -> Option<&mut dyn End> {
            Some(&mut self.0)
        }
        fn receive(&mut self) -> io::Result<Option<Bytes>> {
            self.0.receive()
        }
        fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
            self.0.send(pieces, most)
        }
        fn finish(&mut self) -> io::Result<()> {
            self.0.finish()
        }
        fn reset(&mut self) {
            self.0.reset();
        }
    }

    #[test]
    fn what_an_end_does_not_say_is_asked_of_the_one_beneath() {
        let mut above = Above(Fake { lends: true, at_once: 9, ..Fake::default() });
        above.save_memory(true);
        assert!(above.lends() && above.at_once() == 9 && above.0.saves_memory);
        assert!(above.take_error().is_ok());
        above.0.is_lost = true;
        assert!(above.take_error().is_err());
    }

    #[test]
    fn bytes_and_half_closes_pass_in_both_directions() {
        let (mut client, mut server) = ends();
        let mut relay = Relay::default();
        client.incoming.push_back(Bytes::from_static(b"request"));
        client.has_ended = true;
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        assert_eq!(server.taken, b"request");
        assert!(server.is_finished, "the server learns of the half-close");
        assert!(!client.is_finished, "the other direction goes on");
        server.incoming.push_back(Bytes::from_static(b"answer"));
        server.has_ended = true;
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Finished));
        assert_eq!(client.taken, b"answer");
        assert!(client.is_finished && !client.is_reset && !server.is_reset);
        assert_eq!(relay.bytes(), (7, 6));
    }

    #[test]
    fn a_side_without_room_holds_the_other_back() {
        let (mut client, mut server) = ends();
        server.room = 3;
        client.incoming.extend([Bytes::from_static(b"abcd"), Bytes::from_static(b"efgh")]);
        let mut relay = Relay::default();
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        assert_eq!(server.taken, b"abc");
        assert_eq!(client.incoming.len(), 1, "the second piece stays with its sender");
        server.room = 100;
        client.has_ended = true;
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        assert_eq!(server.taken, b"abcdefgh", "in order, and before the end");
        assert!(server.is_finished);
    }

    /// A buffer of packets, which lives as long as a slice of it.
    struct Block {
        bytes: Vec<u8>,
        _alive: Arc<()>,
    }

    impl Block {
        const SIZE: usize = 256 << 10;
        const SLICE: usize = 4097;

        /// A slice of a block of its own. Byte `n` of the stream is `n % 251`.
        fn slice(alive: &Arc<()>, at: usize) -> Bytes {
            let bytes = (at..at + Self::SIZE).map(|at| (at % 251) as u8).collect();
            Bytes::from_owner(Self { bytes, _alive: alive.clone() }).slice(..Self::SLICE)
        }
    }

    impl AsRef<[u8]> for Block {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    #[test]
    fn what_waits_holds_no_buffers_of_packets() {
        let share = Share::Pieces(VISIT);
        for (share, room) in [(share, 0), (share, 5000), (Share::Bytes(1000), usize::MAX)] {
            let (mut client, mut server) = ends();
            (client.lends, server.room, server.at_once) = (true, room, 192 << 10);
            let (alive, mut relay, mut given) = (Arc::new(()), Relay::default(), 0);
            for _ in 0..60 {
                client.incoming.push_back(Block::slice(&alive, given));
                given += Block::SLICE;
                relay.pump_to(Side::Server, &mut client, &mut server, share);
                let blocks = Arc::strong_count(&alive) - 1 - client.incoming.len();
                assert!(blocks * Block::SIZE <= 2 * relay.held(), "{blocks} blocks");
            }
            server.room = usize::MAX;
            let all = Share::Pieces(usize::MAX);
            relay.pump_to(Side::Server, &mut client, &mut server, all);
            assert_eq!(server.taken.len(), given);
            let is_it = |(at, &byte): (usize, &u8)| usize::from(byte) == at % 251;
            assert!(server.taken.iter().enumerate().all(is_it), "in order");
        }
    }

    #[test]
    fn relays_that_save_memory_hold_a_small_piece_each() {
        let (bound, at_once, piece) = (1 << 20, 192 << 10, 10_000);
        let (mut held, mut waiting) = (Held::with_bounds(bound / 2, bound), Vec::new());
        let pump = |held: &mut Held, client: &mut Fake, server: &mut Fake, relay: &mut Relay| {
            let before = relay.held();
            relay.save_memory(held.is_too_much());
            relay.pump(client, server);
            held.change(before, relay.held())
        };
        let (mut sum, mut began) = (0, 0);
        for _ in 0..1000 {
            let (mut client, mut server) = ends();
            (server.room, server.at_once) = (0, at_once);
            client.incoming = vec![Bytes::from(vec![0; piece]); 50].into();
            let mut relay = Relay::default();
            for _ in 0..2 {
                began += u32::from(pump(&mut held, &mut client, &mut server, &mut relay));
            }
            sum += relay.held();
            waiting.push((client, server, relay));
            assert!(sum <= bound + at_once + piece + waiting.len() * SMALL);
        }
        assert_eq!((began, held.is_too_much()), (1, true));
        for (client, server, relay) in &mut waiting {
            server.room = usize::MAX;
            pump(&mut held, client, server, relay);
            assert_eq!(server.taken.len(), 50 * piece, "it goes on piece by piece");
        }
        assert!(!held.is_too_much());
    }

    #[test]
    fn many_small_pieces_wait_as_few() {
        for lends in [true, false] {
            let (mut client, mut server) = ends();
            (client.lends, server.room, server.at_once) = (lends, 0, 20_000);
            let mut relay = Relay::default();
            let large = Bytes::from(vec![1; SMALL + 1]);
            for number in 0..5000 {
                let is_large = number == 4000;
                client.incoming.push_back(if is_large { large.clone() } else { "0".into() });
                assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
            }
            let pieces = relay.to_server.held.len();
            assert!(pieces < 20, "{pieces}");
            server.room = usize::MAX;
            relay.pump(&mut client, &mut server);
            let place = server.taken.iter().position(|&byte| byte == 1);
            assert_eq!((server.taken.len(), place), (5000 + SMALL, Some(4000)));
        }
    }

    #[test]
    fn a_reset_passes_to_the_other_side() {
        for is_client in [true, false] {
            let (mut client, mut server) = ends();
            if is_client {
                client.is_lost = true;
            } else {
                server.is_lost = true;
            }
            let mut relay = Relay::default();
            let Progress::Lost { side, error } = relay.pump(&mut client, &mut server) else {
                panic!("a side was lost");
            };
            assert_eq!(side == Side::Client, is_client);
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(client.is_reset, !is_client);
            assert_eq!(server.is_reset, is_client);
        }
    }

    #[test]
    fn acknowledged_bytes_that_cannot_be_passed_on_are_not_lost_silently() {
        let (mut client, mut server) = ends();
        server.room = 0;
        client.incoming.push_back(Bytes::from_static(b"taken from the client"));
        let mut relay = Relay::default();
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        server.is_lost = true;
        let progress = relay.pump(&mut client, &mut server);
        assert!(matches!(progress, Progress::Lost { side: Side::Server, .. }), "{progress:?}");
        assert!(client.is_reset);
    }

    #[test]
    fn a_visit_moves_what_it_may_and_in_one_direction() {
        let (mut client, mut server) = ends();
        client.incoming.push_back(Bytes::from_static(b"abcdefgh"));
        server.incoming.push_back(Bytes::from_static(b"answer"));
        client.has_ended = true;
        let mut relay = Relay::default();
        let mut visit = |most, server: &mut Fake| {
            relay.pump_to(Side::Server, &mut client, server, Share::Bytes(most))
        };
        for sent in ["abc", "abcdef"] {
            assert!(matches!(visit(3, &mut server), Progress::HasMore));
            assert_eq!(server.taken, sent.as_bytes());
        }
        assert!(!server.is_finished, "the end comes after the last bytes");
        assert!(matches!(visit(3, &mut server), Progress::Waits));
        assert!(server.is_finished && server.taken == b"abcdefgh");
        assert!(client.taken.is_empty(), "the other direction has not moved");
    }

    #[test]
    fn a_share_of_pieces_ends_behind_a_piece() {
        let (mut client, mut server) = ends();
        client.incoming = ["abcd", "efgh", "ij"].map(Bytes::from).into();
        let mut relay = Relay::default();
        let mut visit =
            |server: &mut Fake| relay.pump_to(Side::Server, &mut client, server, Share::Pieces(5));
        assert!(matches!(visit(&mut server), Progress::HasMore));
        assert_eq!((&server.taken[..], server.calls), (&b"abcdefgh"[..], 2), "no piece is cut");
        assert!(matches!(visit(&mut server), Progress::Waits));
        assert_eq!(server.taken, b"abcdefghij");
    }

    #[test]
    fn pieces_are_gathered_for_one_call_and_pass_before_the_loss_of_their_sender() {
        /// Gives its pieces, and is lost behind them.
        struct LostAfter(VecDeque<Bytes>);
        impl End for LostAfter {
            fn receive(&mut self) -> io::Result<Option<Bytes>> {
                let piece = self.0.pop_front();
                piece.map(Some).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
            }
            fn send(&mut self, _: &mut VecDeque<Bytes>, _: usize) -> io::Result<usize> {
                Err(io::ErrorKind::WouldBlock.into())
            }
            fn finish(&mut self) -> io::Result<()> {
                unreachable!("it is lost")
            }
            fn reset(&mut self) {}
        }
        let (_, mut server) = ends();
        (server.room, server.at_once) = (5, 6);
        let mut client = LostAfter(["ab", "cd", "ef", "gh"].map(Bytes::from).into());
        let mut relay = Relay::default();
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        assert_eq!((&server.taken[..], server.calls), (&b"abcde"[..], 1));
        server.room = 100;
        let progress = relay.pump(&mut client, &mut server);
        assert!(matches!(progress, Progress::Lost { side: Side::Client, .. }), "{progress:?}");
        assert_eq!(server.taken, b"abcdefgh");
        assert!(server.is_reset && !server.is_finished);
    }

    #[test]
    fn headers_are_those_of_full_segments_and_a_last_one() {
        let segments = Segments { data: 1448, headers: 52 };
        assert_eq!([0, 1, 1448, 1449].map(|data| segments.on_wire(data)), [0, 53, 1500, 1553]);
        assert_eq!(
            [1, 1500, 1501, 4750].map(|wire| segments.data_in(wire)),
            [1448, 1448, 2896, 5792]
        );
        assert_eq!(Segments { data: 0, headers: 52 }.data_in(100), 2, "nothing is divided by zero");
    }

    #[test]
    fn a_reset_behind_the_end_of_a_stream_passes_to_the_other_side() {
        let (mut client, mut server) = ends();
        client.incoming.push_back(Bytes::from_static(b"may not have arrived"));
        server.has_ended = true;
        let mut relay = Relay::default();
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        assert!(matches!(relay.check(&mut client, &mut server), Progress::Waits));
        server.is_lost = true;
        // Nothing is to be sent, so no other call would tell.
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        let progress = relay.check(&mut client, &mut server);
        assert!(matches!(progress, Progress::Lost { side: Side::Server, .. }), "{progress:?}");
        assert!(client.is_reset);
    }

    /// A connection that takes nothing, as it is lost, and then looks as if it had ended.
    #[derive(Default)]
    struct Refuses(VecDeque<Bytes>);

    impl End for Refuses {
        fn receive(&mut self) -> io::Result<Option<Bytes>> {
            Ok(self.0.pop_front())
        }
        fn send(&mut self, _: &mut VecDeque<Bytes>, _: usize) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
        fn finish(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::NotConnected.into())
        }
        fn reset(&mut self) {}
    }

    #[test]
    fn the_last_words_of_a_side_that_takes_nothing_pass_before_its_reset() {
        for (has_ended, room, expected) in [(false, 100, "too large"), (true, 3, "too")] {
            let (mut client, _) = ends();
            (client.has_ended, client.room) = (has_ended, room);
            client.incoming = if has_ended { [].into() } else { ["upload".into()].into() };
            let mut server = Refuses(["too", " large"].map(Bytes::from).into());
            let progress = Relay::default().pump(&mut client, &mut server);
            assert!(matches!(progress, Progress::Lost { side: Side::Server, .. }), "{progress:?}");
            assert_eq!(client.taken, expected.as_bytes());
            assert!(client.is_reset && !client.is_finished, "that was not the end");
        }
    }

    #[test]
    fn the_last_words_for_a_side_under_a_rate_do_not_pass_it_by() {
        let (_, mut server) = ends();
        server.incoming.push_back(Bytes::from_static(b"download"));
        let mut client = Refuses(["upload".into()].into());
        let mut relay = Relay::default();
        relay.schedule(Side::Server);
        let share = Share::Pieces(VISIT);
        let progress = relay.pump_to(Side::Client, &mut client, &mut server, share);
        assert!(matches!(progress, Progress::Lost { side: Side::Client, .. }), "{progress:?}");
        assert!(server.taken.is_empty() && server.is_reset);
    }

    #[test]
    fn a_reset_behind_bytes_that_wait_passes_to_the_other_side() {
        let (mut client, mut server) = ends();
        client.incoming.push_back(Bytes::from_static(b"waits"));
        server.room = 0;
        let mut relay = Relay::default();
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        assert!(matches!(relay.check(&mut client, &mut server), Progress::Waits));
        client.is_lost = true;
        // The server has no room, so no other call would tell.
        assert!(matches!(relay.pump(&mut client, &mut server), Progress::Waits));
        let progress = relay.check(&mut client, &mut server);
        assert!(matches!(progress, Progress::Lost { side: Side::Client, .. }), "{progress:?}");
        assert!(server.is_reset);
    }

    #[test]
    fn a_flow_without_end_leaves_turns_to_others() {
        struct Endless;
        impl End for Endless {
            fn receive(&mut self) -> io::Result<Option<Bytes>> {
                Ok(Some(Bytes::from_static(&[0; MOST_PIECE])))
            }
            fn send(&mut self, _: &mut VecDeque<Bytes>, _: usize) -> io::Result<usize> {
                unreachable!("the other one receives nothing")
            }
            fn finish(&mut self) -> io::Result<()> {
                Ok(())
            }
            fn reset(&mut self) {}
        }
        let (_, mut server) = ends();
        let mut relay = Relay::default();
        assert!(matches!(relay.pump(&mut Endless, &mut server), Progress::HasMore));
        assert_eq!(server.taken.len(), VISIT);
    }
}
