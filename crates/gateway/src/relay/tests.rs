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
    assert_eq!([1, 1500, 1501, 4750].map(|wire| segments.data_in(wire)), [1448, 1448, 2896, 5792]);
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
