//! Questions over TCP that the gateway answers itself (RFC 7766), as the far side of a flow.

use super::message::answer_by_name;
use super::names::Names;
use crate::relay::{End, take_front};
use crate::upstream::Far;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use neap::{Events, Poller};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Bytes of answers that wait for the guest; more questions are not taken meanwhile.
const MOST_ANSWERS: usize = 16 << 10;

/// A connection on which the gateway answers.
#[derive(Debug)]
pub(super) struct NameStream {
    names: Arc<Mutex<Names>>,
    questions: BytesMut,
    answers: BytesMut,
    has_ended: bool,
}

impl NameStream {
    pub(super) fn new(names: Arc<Mutex<Names>>) -> Self {
        Self { names, questions: BytesMut::new(), answers: BytesMut::new(), has_ended: false }
    }

    /// Answers the questions that are there as a whole.
    fn answer(&mut self) -> io::Result<()> {
        while let Some((length, rest)) = self.questions.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length));
            let Some(question) = rest.get(..length) else { break };
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = answer_by_name(&mut names, question, Instant::now());
            // Who does not ask is no client.
            let answer = answer.ok_or(io::ErrorKind::ConnectionReset)?;
            let count = u16::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
            self.answers.put_u16(count);
            self.answers.put_slice(&answer);
            drop(names);
            self.questions.advance(2 + length);
        }
        Ok(())
    }
}

impl Far for NameStream {
    fn is_open(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn enter(&self, _: &Poller, _: u64, _: Events) -> io::Result<()> {
        // Only the guest brings changes.
        Ok(())
    }

    fn changes_within_calls(&self) -> bool {
        true
    }
}

impl End for NameStream {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        if !self.answers.is_empty() {
            return Ok(Some(std::mem::take(&mut self.answers).freeze()));
        }
        if self.has_ended { Ok(None) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        let Some(data) = pieces.front_mut() else { return Ok(0) };
        if self.answers.len() >= MOST_ANSWERS {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // One at a time, so that many short ones do not bring more answers than may wait.
        let missing = match self.questions.split_first_chunk::<2>() {
            None => 2 - self.questions.len(),
            Some((length, rest)) => usize::from(u16::from_be_bytes(*length)) - rest.len(),
        };
        let count = missing.min(data.len()).min(most);
        self.questions.extend_from_slice(&data.split_to(count));
        take_front(pieces, 0);
        self.answer()?;
        Ok(count)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.has_ended = true;
        Ok(())
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question for the address of `example.org`, with its length.
    fn question() -> Vec<u8> {
        let message = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\
                        \x00\x01\x00\x01";
        [&[0, message.len() as u8][..], message].concat()
    }

    #[test]
    fn questions_in_any_pieces_are_answered_in_order() {
        let mut stream = NameStream::new(Arc::default());
        let bytes = [question(), question()].concat();
        for piece in bytes.chunks(7) {
            let mut piece = Bytes::copy_from_slice(piece);
            while !piece.is_empty() {
                stream.send_piece(&mut piece).expect("room");
            }
        }
        stream.finish().expect("open");
        let answers = stream.receive().expect("open").expect("answers");
        let length = usize::from(u16::from_be_bytes([answers[0], answers[1]]));
        assert_eq!(answers.len(), 2 * (2 + length));
        assert_eq!(answers[..2 + length], answers[2 + length..]);
        assert!(stream.receive().expect("open").is_none(), "the end");
    }

    #[test]
    fn answers_that_wait_are_bounded_and_nonsense_ends_the_connection() {
        let mut stream = NameStream::new(Arc::default());
        let mut many = Bytes::from(question().repeat(10_000));
        let error = loop {
            if let Err(error) = stream.send_piece(&mut many) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(stream.answers.len() < MOST_ANSWERS + 100 && !many.is_empty());
        let mut stream = NameStream::new(Arc::default());
        let mut nonsense = Bytes::from_static(b"\x00\x02hi");
        while stream.send_piece(&mut nonsense).is_ok() {
            assert!(!nonsense.is_empty(), "it is refused");
        }
    }
}
