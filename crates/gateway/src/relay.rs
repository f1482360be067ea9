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
mod tests;
