//! The head of the answer to the one request of a connection: the client has to learn that no other
//! answer follows, whatever the server wants (RFC 9112 section 9.6).

use super::http::{MOST_LINES, add_line, is_for_next, named};
use crate::host_errors::Undelivered;
use crate::relay::{End, Segments};
use crate::upstream::Far;
use bytes::{Buf, Bytes, BytesMut};
use httparse::{EMPTY_HEADER, Status};
use neap::{Events, Poller};
use std::collections::VecDeque;
use std::io;
use std::time::Instant;

/// Longest head of an answer, bytes. A longer one is passed on as it is.
const MOST_HEAD: usize = 16 << 10;

/// A connection to a server that answers one request.
pub(super) struct Answering {
    far: Box<dyn Far>,
    head: Head,
}

impl Answering {
    pub(super) fn new(far: Box<dyn Far>) -> Self {
        Self { far, head: Head::default() }
    }
}

/// The part of an answer that has no whole head yet.
#[derive(Debug, Default)]
struct Head {
    received: BytesMut,
    is_over: bool,
}

impl Head {
    /// Takes bytes from the server. Returns those for the client, which are none while the head
    /// goes on.
    fn take(&mut self, data: Bytes) -> Bytes {
        if self.is_over {
            return data;
        }
        self.received.extend_from_slice(&data);
        let mut out = BytesMut::new();
        while !self.is_over {
            match next(&self.received) {
                Part::More if self.received.len() <= MOST_HEAD => break,
                Part::More | Part::Other => self.is_over = true,
                Part::Interim(length) => out.unsplit(self.received.split_to(length)),
                Part::Final(length, head) => {
                    self.received.advance(length);
                    out.unsplit(head);
                    self.is_over = true;
                }
            }
        }
        if self.is_over {
            out.unsplit(std::mem::take(&mut self.received));
        }
        out.freeze()
    }

    /// The server has ended its stream: what is left of a head.
    fn end(&mut self) -> Option<Bytes> {
        self.is_over = true;
        let rest = std::mem::take(&mut self.received).freeze();
        (!rest.is_empty()).then_some(rest)
    }
}

/// What is at the front of the bytes of a server.
enum Part {
    /// A head that goes on.
    More,
    /// The head of an interim answer, of this length: others follow.
    Interim(usize),
    /// The head of the answer, of this length, and what the client gets of it.
    Final(usize, BytesMut),
    /// No head that is understood, or that of another protocol.
    Other,
}

fn next(received: &[u8]) -> Part {
    let mut lines = [EMPTY_HEADER; MOST_LINES];
    let mut answer = httparse::Response::new(&mut lines);
    let length = match answer.parse(received) {
        Ok(Status::Complete(length)) if length <= MOST_HEAD => length,
        Ok(Status::Complete(_)) => return Part::Other,
        Ok(Status::Partial) => return Part::More,
        Err(_) => return Part::Other,
    };
    match answer.code {
        None | Some(101) => return Part::Other,
        Some(100..200) => return Part::Interim(length),
        Some(_) => {}
    }
    // The parser takes empty lines before the first one.
    let begin = received.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(0);
    let end = received[begin..].iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let mut head = BytesMut::from(&received[begin..=begin + end]);
    let also: Vec<_> = named(answer.headers, "connection").collect();
    for line in answer.headers.iter().filter(|line| is_for_next(line, &also)) {
        add_line(&mut head, line);
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Part::Final(length, head)
}

impl End for Answering {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        // The length of a head bounds the turns.
        loop {
            let Some(data) = self.far.receive()? else { return Ok(self.head.end()) };
            let data = self.head.take(data);
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    fn lends(&self) -> bool {
        self.far.lends()
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        self.far.send(pieces, most)
    }

    fn at_once(&self) -> usize {
        self.far.at_once()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.far.finish()
    }

    fn frame(&self) -> Option<usize> {
        self.far.frame()
    }

    fn set_piece(&mut self, bytes: usize) {
        self.far.set_piece(bytes);
    }

    fn save_memory(&mut self, saves: bool) {
        self.far.save_memory(saves);
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.far.take_error()
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.far.flush()
    }

    fn reset(&mut self) {
        self.far.reset();
    }

    fn segments(&self) -> Segments {
        self.far.segments()
    }

    fn limit_unsent(&mut self, bytes: usize) {
        self.far.limit_unsent(bytes);
    }
}

impl Far for Answering {
    fn is_open(&mut self) -> io::Result<bool> {
        self.far.is_open()
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        self.far.enter(poller, token, events)
    }

    fn changes_within_calls(&self) -> bool {
        self.far.changes_within_calls()
    }

    fn undelivered(&mut self) -> Option<Undelivered> {
        self.far.undelivered()
    }

    fn opens_until(&self) -> Option<Instant> {
        self.far.opens_until()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client gets of an answer that comes in pieces of this length.
    fn pass(answer: &str, piece: usize) -> String {
        let mut head = Head::default();
        let mut got = Vec::new();
        for piece in answer.as_bytes().chunks(piece) {
            got.extend_from_slice(&head.take(Bytes::copy_from_slice(piece)));
        }
        got.extend_from_slice(&head.end().unwrap_or_default());
        String::from_utf8(got).expect("text")
    }

    #[test]
    fn a_client_is_told_that_no_other_answer_follows() {
        for (answer, expected) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=5\r\n\
                 Connection: keep-alive, X-Mine, content-length\r\nX-Mine: 1\r\n\r\nhi",
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\n\
                 HTTP/1.1 204 None\r\n\r\n",
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\n\
                 HTTP/1.1 204 None\r\nConnection: close\r\n\r\n",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
                 0\r\n\r\n",
            ),
        ] {
            for piece in [1, 2, 7, answer.len()] {
                assert_eq!(pass(answer, piece), expected, "pieces of {piece}");
            }
        }
    }

    #[test]
    fn what_is_no_answer_passes_as_it_is() {
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(MOST_HEAD));
        for answer in ["", "<html>", "HTTP/1.1 20", "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\ny", &long]
        {
            for piece in [1000, answer.len().max(1)] {
                assert!(pass(answer, piece) == answer, "{:.40}", answer);
            }
        }
    }
}
