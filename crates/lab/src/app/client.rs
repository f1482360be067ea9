//! The application that opens one connection.

use super::stream::Stream;
use super::task::{Task, run};
use super::{App, Step};
use core::net::SocketAddr;
use neap_stack::stack::{ConnectOptions, Stack};
use neap_tcp::time::Instant;
use std::task::Waker;

/// Connects at its time, and then does what its task is. Cost of a turn: that of the task.
pub(super) struct Client<T> {
    remote: SocketAddr,
    options: ConnectOptions,
    start: Instant,
    task: T,
    waker: Waker,
    stream: Option<Stream>,
    is_over: bool,
}

impl<T: Task> Client<T> {
    /// A client that connects to `remote` at the time `start`.
    pub(super) fn new(
        remote: SocketAddr,
        options: ConnectOptions,
        start: Instant,
        task: T,
    ) -> Self {
        let waker = Waker::noop().clone();
        Self { remote, options, start, task, waker, stream: None, is_over: false }
    }
}

impl<T: Task> App for Client<T> {
    fn step(&mut self, stack: &Stack, now: Instant) -> Step {
        if self.is_over {
            return Step::IDLE;
        }
        if now < self.start {
            return Step { next: self.start, did: false };
        }
        let is_new = self.stream.is_none();
        if is_new {
            match stack.connect(now, self.remote, self.options.clone()) {
                Ok(handle) => {
                    self.task.begin(now, &handle);
                    self.stream = Some(Stream::new(handle));
                }
                Err(error) => {
                    self.task.refuse(now, error);
                    self.is_over = true;
                }
            }
        }
        let Some(stream) = &mut self.stream else { return Step { did: is_new, ..Step::IDLE } };
        let turn = run(&mut self.task, stream, now, &self.waker);
        if turn.is_over {
            self.is_over = true;
            self.stream = None;
        }
        Step { next: turn.next, did: turn.did || is_new }
    }

    fn sleeps(&mut self, waker: &Waker) -> bool {
        self.waker = waker.clone();
        self.task.sleeps()
    }
}
