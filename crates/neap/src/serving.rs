//! A small server for questions: one request for each connection, in one thread that sleeps until
//! somebody asks.
//!
//! Whoever asks is bounded in everything: the number of connections, the bytes of a request, the
//! time for it and the time in which the answer is to be taken. One more takes the place of the
//! connection that has been without a whole request for longest. So silent connections alone shut
//! nobody out. Whoever opens many all the time does: a request has to come before as many others as
//! there are places. An answer is made piece by piece, as it is taken.

mod stream;

pub(crate) use stream::{Listener, Stream};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Connections at the same time. Others wait in the queue of the listener only if all of these are
/// being answered.
const MOST_CONNECTIONS: usize = 16;
/// Longest request, bytes.
const MOST_REQUEST: usize = 4096;
/// Time in which a request has to be there.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time in which an answer has to be taken.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Bytes of an answer that are made before they are taken, besides one piece.
const AHEAD: usize = 64 << 10;
/// Pause after an accept that failed, for instance for lack of descriptors.
const REST: Duration = Duration::from_secs(1);

/// An answer, piece by piece.
pub(crate) type Answer = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// What a server serves.
pub(crate) trait Service: Send + 'static {
    /// Whether a peer may ask.
    fn admits(&self, peer: &Stream) -> bool;

    /// The answer to a request; `None` as long as it is not whole.
    fn answer(&self, received: &[u8]) -> Option<Answer>;

    /// The answer to a request that is longer than [`MOST_REQUEST`].
    fn too_long(&self) -> Answer;
}

/// A server that ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves at a listener, in a thread of this name.
    ///
    /// # Errors
    /// The system refuses a descriptor or the thread.
    pub(crate) fn start(name: &str, listener: Listener, service: impl Service) -> io::Result<Self> {
        listener.set_nonblocking()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let told = stop.clone();
        let serving = Serving { listener, service, connections: Vec::new(), rests_until: None };
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || serving.run(&told))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The counter of a new descriptor is not full.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

struct Serving<S> {
    listener: Listener,
    service: S,
    /// In the order in which they came.
    connections: Vec<Connection>,
    /// Nothing is accepted before.
    rests_until: Option<Instant>,
}

struct Connection {
    stream: Stream,
    deadline: Instant,
    phase: Phase,
}

enum Phase {
    /// The request so far.
    Asking(Vec<u8>),
    /// What is left of the answer, and what was made of it and not taken.
    Answering { rest: Answer, made: Vec<u8>, taken: usize },
}

impl<S: Service> Serving<S> {
    fn run(mut self, stop: &OwnedFd) {
        while self.turn(stop) {}
    }

    /// Waits once, and does what is to be done. Whether the server goes on.
    fn turn(&mut self, stop: &OwnedFd) -> bool {
        let now = Instant::now();
        self.rests_until = self.rests_until.filter(|until| *until > now);
        self.connections.retain(|connection| connection.deadline > now);
        let accepts = self.rests_until.is_none() && self.has_room();
        let Some(ready) = self.wait(stop, accepts, now) else { return false };
        let mut ready = ready.into_iter();
        if ready.next() == Some(true) {
            return false;
        }
        let is_asked = ready.next() == Some(true);
        let service = &self.service;
        // `retain_mut` visits in order.
        self.connections
            .retain_mut(|one| ready.next() != Some(true) || one.advance(service).is_ok());
        // All may be answered by now. Then the newcomer waits in the queue of the listener.
        if is_asked && self.has_room() {
            self.accept();
        }
        true
    }

    /// Whether there is a place for one more, or one that it may take.
    fn has_room(&self) -> bool {
        self.connections.len() < MOST_CONNECTIONS || self.longest_asking().is_some()
    }

    /// Sleeps until there is something to do. What is ready: `stop`, the listener, the connections.
    /// `None` if the system cannot wait.
    fn wait(&self, stop: &OwnedFd, accepts: bool, now: Instant) -> Option<Vec<bool>> {
        let deadlines = self.connections.iter().map(|connection| connection.deadline);
        let due = deadlines.chain(self.rests_until).min();
        let listens = if accepts { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::new(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), listens),
        ];
        fds.extend(self.connections.iter().map(Connection::poll_fd));
        let timeout = due.map(|due| Timespec::try_from(due.saturating_duration_since(now)));
        match poll(&mut fds, timeout.and_then(Result::ok).as_ref()) {
            Ok(_) => Some(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(error) if error == rustix::io::Errno::INTR => Some(vec![false; fds.len()]),
            Err(_) => None,
        }
    }

    /// The place of the connection that has been without a whole request for longest.
    fn longest_asking(&self) -> Option<usize> {
        self.connections.iter().position(|one| matches!(one.phase, Phase::Asking(_)))
    }

    /// Accepts a connection. [There is room](Self::has_room) for it.
    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(stream) if self.service.admits(&stream) => {
                let is_full = self.connections.len() >= MOST_CONNECTIONS;
                if let Some(longest) = self.longest_asking().filter(|_| is_full) {
                    self.connections.remove(longest);
                }
                let deadline = Instant::now() + REQUEST_TIME;
                let phase = Phase::Asking(Vec::new());
                self.connections.push(Connection { stream, deadline, phase });
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The listener stays ready meanwhile.
            Err(_) => self.rests_until = Some(Instant::now() + REST),
        }
    }
}

impl Connection {
    fn poll_fd(&self) -> PollFd<'_> {
        let wants = match self.phase {
            Phase::Asking(_) => PollFlags::IN,
            Phase::Answering { .. } => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(self.stream.as_fd(), wants)
    }

    /// Goes on without waiting. An error is the end of the connection, its good one as well.
    fn advance(&mut self, service: &impl Service) -> io::Result<()> {
        let done = match &mut self.phase {
            Phase::Asking(_) => self.receive(service),
            Phase::Answering { .. } => self.send(),
        };
        match done {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            done => done,
        }
    }

    fn receive(&mut self, service: &impl Service) -> io::Result<()> {
        let Phase::Asking(request) = &mut self.phase else { return Ok(()) };
        let mut piece = [0; MOST_REQUEST];
        let count = self.stream.read(&mut piece[..MOST_REQUEST - request.len()])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        request.extend_from_slice(&piece[..count]);
        let answer = match service.answer(request) {
            Some(answer) => answer,
            None if request.len() >= MOST_REQUEST => service.too_long(),
            None => return Ok(()),
        };
        self.deadline = Instant::now() + ANSWER_TIME;
        self.phase = Phase::Answering { rest: answer, made: Vec::new(), taken: 0 };
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        let Phase::Answering { rest, made, taken } = &mut self.phase else { return Ok(()) };
        if *taken == made.len() {
            made.clear();
            *taken = 0;
            while made.len() < AHEAD {
                let Some(piece) = rest.next() else { break };
                made.extend_from_slice(&piece);
            }
        }
        if made.is_empty() {
            self.stream.finish();
            return Err(ErrorKind::UnexpectedEof.into());
        }
        *taken += self.stream.write(&made[*taken..])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Answers each line without an end.
    struct Endless;

    impl Service for Endless {
        fn admits(&self, _: &Stream) -> bool {
            true
        }

        fn answer(&self, received: &[u8]) -> Option<Answer> {
            let answer = || Box::new(std::iter::repeat(vec![b'a'; AHEAD])) as Answer;
            received.ends_with(b"\n").then(answer)
        }

        fn too_long(&self) -> Answer {
            unreachable!("no line is long")
        }
    }

    #[test]
    fn who_comes_when_all_are_being_answered_waits_for_a_place() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let listener = Listener::Tcp(listener);
        listener.set_nonblocking().expect("set");
        let connections = Vec::new();
        let mut serving = Serving { listener, service: Endless, connections, rests_until: None };
        let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        let connect = || TcpStream::connect(address).expect("connect");
        let ask = |mut client: &TcpStream| client.write_all(b"\n").expect("write");
        let answered = |serving: &Serving<Endless>| {
            let is_answered = |one: &&Connection| matches!(one.phase, Phase::Answering { .. });
            serving.connections.iter().filter(is_answered).count()
        };
        let mut clients: Vec<_> = (0..MOST_CONNECTIONS).map(|_| connect()).collect();
        while serving.connections.len() < MOST_CONNECTIONS {
            assert!(serving.turn(&stop));
        }
        clients[1..].iter().for_each(ask);
        while answered(&serving) < MOST_CONNECTIONS - 1 {
            assert!(serving.turn(&stop));
        }
        // One turn finds the last request and the newcomer.
        ask(&clients[0]);
        let newcomer = connect();
        ask(&newcomer);
        while answered(&serving) < MOST_CONNECTIONS {
            assert!(serving.turn(&stop));
        }
        newcomer.set_nonblocking(true).expect("set");
        let early = (&newcomer).read(&mut [0]).expect_err("nobody answers yet");
        assert_eq!(early.kind(), ErrorKind::WouldBlock);
        clients.remove(3);
        let mut byte = [0];
        while (&newcomer).read(&mut byte).is_err() {
            assert!(serving.turn(&stop));
        }
        assert_eq!(byte, [b'a']);
    }
}
