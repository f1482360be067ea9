//! Questions over TCP that a resolver answers: the far side of a flow, which passes on what guests
//! may ask and nothing else.
//!
//! Each question is held until it is whole: 4 KiB at the most for a connection, and a copy of each.

use super::message::{HEADER, is_question, refusal};
use super::queries::MOST_QUESTION;
use crate::counters::Counters;
use crate::relay::{End, take_front};
use crate::upstream::Far;
use bytes::{Bytes, BytesMut};
use neap::{Events, Poller};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A connection to a resolver.
pub(super) struct AskedStream {
    far: Box<dyn Far>,
    /// A question that is not whole, with its length.
    question: BytesMut,
    /// What is left to send of one that is. The last byte of the question stays with the relay
    /// until the rest has left, so that the relay comes again when there is room.
    outgoing: Bytes,
    counters: Arc<Counters>,
}

impl AskedStream {
    pub(super) fn new(far: Box<dyn Far>, counters: Arc<Counters>) -> Self {
        Self { far, question: BytesMut::new(), outgoing: Bytes::new(), counters }
    }

    /// Sends what is left of a question. Whether nothing is.
    fn pass_on(&mut self) -> io::Result<bool> {
        while !self.outgoing.is_empty() {
            match self.far.send_piece(&mut self.outgoing) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Bytes that the question lacks, or its length.
    fn missing(&self) -> io::Result<usize> {
        let Some((length, rest)) = self.question.split_first_chunk::<2>() else {
            return Ok(2 - self.question.len());
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if !(HEADER..=MOST_QUESTION).contains(&length) {
            return Err(self.refused());
        }
        Ok(length - rest.len())
    }

    /// An answer of the gateway could stand in the middle of one of the resolver, so the connection
    /// ends.
    fn refused(&self) -> io::Error {
        self.counters.count(|counters| &counters.bad_dns);
        io::ErrorKind::ConnectionReset.into()
    }
}

impl Far for AskedStream {
    fn far_beneath(&self) -> Option<&dyn Far> {
        Some(&*self.far)
    }

    fn far_beneath_mut(&mut self) -> Option<&mut dyn Far> {
        Some(&mut *self.far)
    }

    fn is_open(&mut self) -> io::Result<bool> {
        self.far.is_open()
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        self.far.enter(poller, token, events)
    }
}

impl End for AskedStream {
    fn beneath(&self) -> Option<&dyn End> {
        Some(&*self.far)
    }

    fn beneath_mut(&mut self) -> Option<&mut dyn End> {
        Some(&mut *self.far)
    }

    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        self.far.receive()
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        let Some(data) = pieces.front_mut().filter(|_| most > 0) else { return Ok(0) };
        let mut count = 1;
        if self.outgoing.is_empty() {
            count = self.missing()?.min(data.len()).min(most);
            self.question.extend_from_slice(&data[..count]);
            if self.question.len() == 2 || self.missing()? > 0 {
                take_front(pieces, count);
                return Ok(count);
            }
            let message = &self.question[2..];
            if !is_question(message) || refusal(message).is_some() {
                return Err(self.refused());
            }
            self.outgoing = self.question.split().freeze();
        }
        if !self.pass_on()? {
            count -= 1;
        }
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        take_front(pieces, count);
        Ok(count)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.far.finish()
    }

    fn reset(&mut self) {
        self.outgoing = Bytes::new();
        self.far.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A resolver that takes as many bytes as there is room, and keeps them.
    #[derive(Clone, Default)]
    struct Resolver(Arc<Mutex<(Vec<u8>, usize)>>);

    impl End for Resolver {
        fn receive(&mut self) -> io::Result<Option<Bytes>> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
            let mut state = self.0.lock().expect("no panic");
            let (taken, room) = &mut *state;
            let Some(data) = pieces.front_mut() else { return Ok(0) };
            let count = data.len().min(*room).min(most);
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            *room -= count;
            taken.extend_from_slice(&data[..count]);
            take_front(pieces, count);
            Ok(count)
        }
        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn reset(&mut self) {}
    }

    impl Far for Resolver {
        fn is_open(&mut self) -> io::Result<bool> {
            Ok(true)
        }
        fn enter(&self, _: &Poller, _: u64, _: Events) -> io::Result<()> {
            Ok(())
        }
        fn is_by_proxy(&self) -> bool {
            true
        }
    }

    /// A question about `example.org`, with its length, opcode and type.
    fn question(opcode: u8, kind: u8) -> Vec<u8> {
        let mut message = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\
                            \x00\x01\x00\x01"
            .to_vec();
        let end = message.len();
        message[2] |= opcode << 3;
        message[end - 3] = kind;
        [&[0, end as u8][..], &message].concat()
    }

    fn stream() -> (AskedStream, Resolver, Arc<Counters>) {
        let (resolver, counters) = (Resolver::default(), Arc::<Counters>::default());
        (AskedStream::new(Box::new(resolver.clone()), counters.clone()), resolver, counters)
    }

    #[test]
    fn a_resolver_behind_a_proxy_shows_that_the_proxy_opens_connections() {
        assert!(stream().0.is_by_proxy());
    }

    #[test]
    fn questions_pass_as_they_are_in_pieces_of_any_size() {
        for piece in [1, 2, 7, 30, 1000] {
            let (mut stream, resolver, _) = stream();
            let all = [question(0, 1), question(0, 28), question(0, 255)].concat();
            for piece in all.chunks(piece) {
                let mut piece = Bytes::copy_from_slice(piece);
                while !piece.is_empty() {
                    resolver.0.lock().expect("no panic").1 += 3;
                    let sent = stream.send_piece(&mut piece);
                    assert!(sent.is_ok_and(|count| count > 0) || !piece.is_empty());
                }
            }
            assert_eq!(resolver.0.lock().expect("no panic").0, all, "{piece}");
        }
    }

    #[test]
    fn updates_notices_and_transfers_of_zones_end_the_connection() {
        let answer = {
            let mut answer = question(0, 1);
            answer[4] |= 0x80;
            answer
        };
        let zones = [(5, 6), (4, 6), (0, 252), (0, 251)];
        let zones = zones.map(|(opcode, kind)| question(opcode, kind));
        for refused in zones.into_iter().chain([answer, vec![0, 3, 0]]) {
            let (mut stream, resolver, counters) = stream();
            resolver.0.lock().expect("no panic").1 = 1000;
            let first = question(0, 1);
            let mut data = Bytes::from([&first[..], &refused].concat());
            let error = loop {
                if let Err(error) = stream.send_piece(&mut data) {
                    break error;
                }
                assert!(!data.is_empty(), "it is refused");
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(resolver.0.lock().expect("no panic").0, first);
            assert_eq!(counters.bad_dns.load(std::sync::atomic::Ordering::Relaxed), 1);
        }
    }
}
