//! A relay between two virtual ends with random schedules: bytes arrive in order, an end arrives
//! behind them, and what one side has given away is delivered, or that side is reset.

use bytes::Bytes;
use neap_gateway::{End, MOST_PIECE, Progress, Relay, Side, take_front};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io;

/// Bytes that the ends like to be sent at once.
const AT_ONCE: usize = 100_000;

/// What the program behind an end does next.
#[derive(Clone, Copy, Debug)]
enum Act {
    Write(usize),
    Read(usize),
    Finish,
    Reset,
}

/// One side: a connection, and the program behind it.
#[derive(Default)]
struct Virtual {
    /// Bytes that the program has written, and how many the relay has taken. Byte `n` is `n % 251`.
    written: usize,
    given: usize,
    has_finished: bool,
    has_reset: bool,
    has_told: bool,
    /// Room for bytes of the relay, and what came.
    room: usize,
    arrived: usize,
    has_end: bool,
    was_reset: bool,
}

impl Virtual {
    fn act(&mut self, act: Act) {
        match act {
            Act::Write(count) if !self.has_finished && !self.has_reset => self.written += count,
            Act::Read(count) => self.room += count,
            Act::Finish => self.has_finished = true,
            Act::Reset => self.has_reset = true,
            Act::Write(_) => {}
        }
    }

    fn check(&mut self) -> io::Result<()> {
        self.has_told |= self.has_reset;
        if self.has_reset { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl End for Virtual {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        // As the kernel does it: what came before the reset can be read.
        let count = (self.written - self.given).min(MOST_PIECE);
        if count == 0 {
            self.check()?;
            let nothing = if self.has_finished { Ok(None) } else { Err(()) };
            return nothing.map_err(|()| io::ErrorKind::WouldBlock.into());
        }
        let bytes: Vec<_> = (self.given..self.given + count).map(|at| (at % 251) as u8).collect();
        self.given += count;
        Ok(Some(bytes.into()))
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        self.check()?;
        assert!(!self.has_end, "bytes behind the end");
        let held: usize = pieces.iter().map(Bytes::len).sum();
        let count = held.min(self.room).min(most);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (at, &byte) in (self.arrived..self.arrived + count).zip(pieces.iter().flatten()) {
            assert_eq!(usize::from(byte), at % 251, "byte {at}");
        }
        take_front(pieces, count);
        self.room -= count;
        self.arrived += count;
        Ok(count)
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn finish(&mut self) -> io::Result<()> {
        self.check()?;
        assert!(!self.has_end, "a second end");
        self.has_end = true;
        Ok(())
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.check()
    }

    fn reset(&mut self) {
        self.was_reset = true;
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1usize..200_000).prop_map(Act::Write),
        8 => (1usize..200_000).prop_map(Act::Read),
        2 => Just(Act::Finish),
        1 => Just(Act::Reset),
    ]
}

/// What must hold for one direction while the relay lives.
fn check_direction(from: &Virtual, to: &Virtual) {
    let held = from.given - to.arrived;
    assert!(held < AT_ONCE + MOST_PIECE, "{held} are held");
    if to.has_end {
        assert!(from.has_finished, "an end that nobody has sent");
        assert_eq!(to.arrived, from.written, "an end before the last byte");
    }
}

/// What must hold for one direction when the relay is over.
fn check_loss(from: &Virtual, to: &Virtual) {
    let is_complete = to.arrived == from.given && (to.has_end || !from.has_finished);
    assert!(is_complete || from.was_reset || from.has_reset, "lost without a reset");
}

fn visit(relay: &mut Relay, client: &mut Virtual, server: &mut Virtual) -> Progress {
    loop {
        match relay.pump(client, server) {
            Progress::HasMore => {}
            Progress::Waits if client.has_reset || server.has_reset => {
                return relay.check(client, server);
            }
            progress => return progress,
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_without_a_reset(
        acts in proptest::collection::vec((any::<bool>(), act()), 1..60),
    ) {
        let (mut client, mut server) = (Virtual::default(), Virtual::default());
        let mut relay = Relay::default();
        // In the end both read all that comes, and finish.
        let last = [Act::Finish, Act::Read(usize::MAX / 2)];
        let last = last.into_iter().flat_map(|act| [(true, act), (false, act)]);
        for (is_client, act) in acts.into_iter().chain(last) {
            if is_client { client.act(act) } else { server.act(act) }
            let progress = visit(&mut relay, &mut client, &mut server);
            check_direction(&client, &server);
            check_direction(&server, &client);
            match progress {
                Progress::Waits => continue,
                Progress::HasMore => unreachable!("a visit goes on until it waits"),
                Progress::Finished => {
                    prop_assert!(client.has_end && server.has_end);
                    prop_assert!(!client.was_reset && !server.was_reset);
                }
                Progress::Lost { side, .. } => {
                    let (lost, other) = match side {
                        Side::Client => (&client, &server),
                        Side::Server => (&server, &client),
                    };
                    prop_assert!(lost.has_told, "nobody has lost it");
                    prop_assert!(other.was_reset, "the other side does not know");
                }
            }
            check_loss(&client, &server);
            check_loss(&server, &client);
            prop_assert_eq!(relay.bytes(), (server.arrived as u64, client.arrived as u64));
            return Ok(());
        }
        prop_assert!(false, "it does not end");
    }
}
