//! The head of the answer to the one request of a connection: the client has to learn that no other
//! answer follows, whatever the server wants (RFC 9112 section 9.6).

use super::http::{MOST_LINES, add_line, is_for_next, values_of};
use crate::relay::{End, MOST_PIECE, SMALL};
use crate::upstream::Far;
use bytes::{Buf, Bytes, BytesMut};
use httparse::{EMPTY_HEADER, Status};
use neap::{Events, Poller};
use std::collections::VecDeque;
use std::io;

/// Longest head of an answer, bytes. A longer one is passed on as it is.
const MOST_HEAD: usize = 16 << 10;

/// A connection to a server that answers one request.
pub(super) struct Answering {
    far: Box<dyn Far>,
    head: Head,
    /// The head, and what came behind it, for the next calls.
    ready: [Bytes; 2],
    saves_memory: bool,
}

impl Answering {
    pub(super) fn new(far: Box<dyn Far>) -> Self {
        Self { far, head: Head::default(), ready: Default::default(), saves_memory: false }
    }

    /// The next bytes for the client that are there already.
    fn take_ready(&mut self) -> Option<Bytes> {
        let most = if self.saves_memory { SMALL } else { MOST_PIECE };
        let ready = self.ready.iter_mut().find(|bytes| !bytes.is_empty())?;
        Some(ready.split_to(most.min(ready.len())))
    }
}

/// The part of an answer that has no whole head yet.
///
/// Cost: a look at each byte. The head is parsed when an empty line ends it, and when it has twice
/// as many bytes as the last time.
#[derive(Debug, Default)]
struct Head {
    received: BytesMut,
    /// Bytes that were looked at for an empty line.
    looked_at: usize,
    /// Whether a line has begun that is not empty, and whether the last one has ended.
    has_begun: bool,
    is_between_lines: bool,
    /// It is parsed once it has so many bytes, whatever they are.
    parsed_at: usize,
    is_over: bool,
}

impl Head {
    /// Takes bytes from the server. Returns those for the client: the heads, which are none while
    /// the last one goes on, and then what is behind them.
    fn take(&mut self, mut data: Bytes) -> [Bytes; 2] {
        let mut out = BytesMut::new();
        while !self.is_over && !data.is_empty() {
            // More than a head may have is not copied.
            let part = data.len().min(MOST_HEAD + 1 - self.received.len());
            self.received.extend_from_slice(&data.split_to(part));
            self.parse(&mut out);
        }
        if self.is_over {
            out.unsplit(std::mem::take(&mut self.received));
        }
        [out.freeze(), data]
    }

    /// Moves the heads that are whole to `out`.
    fn parse(&mut self, out: &mut BytesMut) {
        while !self.is_over && self.may_tell_more() {
            match next(&self.received) {
                Part::More if self.received.len() <= MOST_HEAD => {
                    self.parsed_at = 2 * self.received.len();
                }
                Part::More | Part::Other => self.is_over = true,
                Part::Interim(length) => {
                    out.unsplit(self.received.split_to(length));
                    self.begin();
                }
                Part::Final(length, head) => {
                    self.received.advance(length);
                    out.unsplit(head);
                    self.is_over = true;
                }
            }
        }
    }

    /// Another head begins.
    fn begin(&mut self) {
        (self.looked_at, self.parsed_at) = (0, 0);
        (self.has_begun, self.is_between_lines) = (false, false);
    }

    /// Whether it is worth while to parse what has come. It looks no further than the empty line
    /// that ends a head, as others may follow.
    fn may_tell_more(&mut self) -> bool {
        for &byte in &self.received[self.looked_at..] {
            self.looked_at += 1;
            if byte == b'\n' && self.has_begun && self.is_between_lines {
                return true;
            }
            match byte {
                b'\n' => self.is_between_lines = true,
                b'\r' => {}
                _ => (self.has_begun, self.is_between_lines) = (true, false),
            }
        }
        self.looked_at > MOST_HEAD || self.looked_at > self.parsed_at
    }

    /// The server has ended its stream: what is left of a head.
    fn end(&mut self) -> Bytes {
        self.is_over = true;
        std::mem::take(&mut self.received).freeze()
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
    let also: Vec<_> = values_of(answer.headers, "connection").collect();
    for line in answer.headers.iter().filter(|line| is_for_next(line, &also)) {
        add_line(&mut head, line);
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Part::Final(length, head)
}

impl End for Answering {
    fn beneath(&self) -> Option<&dyn End> {
        Some(&*self.far)
    }

    fn beneath_mut(&mut self) -> Option<&mut dyn End> {
        Some(&mut *self.far)
    }

    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        // The length of a head bounds the turns.
        loop {
            if let Some(data) = self.take_ready() {
                return Ok(Some(data));
            }
            match self.far.receive()? {
                Some(data) => self.ready = self.head.take(data),
                None if self.head.received.is_empty() => return Ok(None),
                None => self.ready[0] = self.head.end(),
            }
        }
    }

    fn held(&self) -> usize {
        let ready: usize = self.ready.iter().map(Bytes::len).sum();
        self.head.received.len() + ready + self.far.held()
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        self.far.send(pieces, most)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.far.finish()
    }

    fn save_memory(&mut self, saves: bool) {
        self.saves_memory = saves;
        self.far.save_memory(saves);
    }

    fn reset(&mut self) {
        self.far.reset();
    }
}

impl Far for Answering {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client gets of an answer that comes in pieces of this length.
    fn pass(answer: &str, piece: usize) -> String {
        let mut head = Head::default();
        let mut got = Vec::new();
        for piece in answer.as_bytes().chunks(piece) {
            got.extend(head.take(Bytes::copy_from_slice(piece)).concat());
        }
        got.extend_from_slice(&head.end());
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

    /// A server that has sent pieces.
    struct Server(VecDeque<Bytes>);

    impl End for Server {
        fn receive(&mut self) -> io::Result<Option<Bytes>> {
            Ok(Some(self.0.pop_front().ok_or(io::ErrorKind::WouldBlock)?))
        }
        fn send(&mut self, _: &mut VecDeque<Bytes>, _: usize) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn take_error(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn reset(&mut self) {}
    }

    impl Far for Server {
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

    #[test]
    fn a_server_behind_a_proxy_shows_that_the_proxy_opens_connections() {
        assert!(Answering::new(Box::new(Server(VecDeque::new()))).is_by_proxy());
    }

    #[test]
    fn a_head_in_many_pieces_is_held_and_no_call_returns_more_than_a_piece() {
        let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r", "a".repeat(15 << 10));
        let (first, most) = (head.len(), MOST_PIECE);
        let mut pieces: VecDeque<_> =
            head.bytes().map(|byte| Bytes::copy_from_slice(&[byte])).collect();
        let mut answering = Answering::new(Box::new(Server(std::mem::take(&mut pieces))));
        let error = answering.receive().expect_err("the head goes on");
        assert_eq!((error.kind(), answering.held()), (io::ErrorKind::WouldBlock, first));
        let data = [b"\n".to_vec(), vec![b'b'; most - 1]].concat();
        answering.far = Box::new(Server([data.into()].into()));
        answering.save_memory(true);
        let first_piece = answering.receive().expect("the head").expect("some of it");
        assert_eq!(first_piece.len(), SMALL);
        answering.save_memory(false);
        let mut got = first_piece.to_vec();
        while let Ok(Some(piece)) = answering.receive() {
            assert!(!piece.is_empty() && piece.len() <= most, "{}", piece.len());
            got.extend_from_slice(&piece);
        }
        let added = b"Connection: close\r\n".len();
        assert_eq!((got.len(), answering.held()), (first + added + most, 0));
    }

    #[test]
    fn a_head_is_parsed_seldom_however_short_its_pieces_are() {
        for line in ["X: a\r\n", "\r\n"] {
            let mut head = Head::default();
            let bytes = ["HTTP/1.1 200 OK\r\n", &"X: a\r\n".repeat(2000)].concat();
            let bytes = if line == "\r\n" { line.repeat(8000) } else { bytes };
            let parsed = bytes.bytes().filter(|&byte| {
                head.received.extend_from_slice(&[byte]);
                let is_parsed = head.may_tell_more();
                if is_parsed {
                    head.parsed_at = 2 * head.received.len();
                }
                is_parsed
            });
            assert!(parsed.count() < 20);
        }
    }

    #[test]
    fn each_byte_of_many_heads_is_looked_at_once() {
        let interim = "HTTP/1.1 100 \r\n\r\n".repeat(MOST_HEAD / 17);
        let mut head = Head::default();
        head.received.extend_from_slice(interim.as_bytes());
        let mut looked_at = 0;
        while head.may_tell_more() {
            looked_at += head.looked_at;
            let Part::Interim(length) = next(&head.received) else { panic!("an interim answer") };
            head.received.advance(length);
            head.begin();
        }
        assert_eq!((head.received.len(), looked_at), (0, interim.len()));
    }

    #[test]
    fn interim_answers_that_are_longer_than_a_head_together_are_followed_by_another() {
        let interim = "HTTP/1.1 103 Early\r\nLink: a\r\n\r\n".repeat(1000);
        assert!(interim.len() > MOST_HEAD);
        let answer = |end| format!("{interim}HTTP/1.1 204 None\r\n{end}\r\n");
        for piece in [1, 1000, 100_000] {
            assert!(pass(&answer(""), piece) == answer("Connection: close\r\n"), "{piece}");
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
