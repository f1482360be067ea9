//! Names that the host looks up: those of targets in its own network. A thread of its own asks, as
//! an answer may take long.
//!
//! Cost: a thread from the first name on, about 100 bytes for each of [`MOST_LOOKUPS`] names that
//! are waited for, and 16 bytes for each of [`MOST_WAITERS`] connections that wait for one. Those
//! who want the same name share its question.

use super::handle::Request;
use super::lookups::MOST_LOOKUPS;
use super::step::{Failure, Found};
use crate::requests::Caller;
use crate::token::Slot;
use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Connections that wait for one name. Those that were given up meanwhile are among them.
const MOST_WAITERS: usize = 1 << 14;

/// Names that the host is asked for.
pub(super) struct HostNames {
    caller: Caller<Request>,
    /// The thread, once it is needed. It ends when this is dropped.
    thread: Option<SyncSender<Arc<str>>>,
    waiting: HashMap<Arc<str>, Vec<Slot>>,
}

impl HostNames {
    /// The answers are requests by this caller.
    pub(super) fn new(caller: Caller<Request>) -> Self {
        Self { caller, thread: None, waiting: HashMap::new() }
    }

    /// Asks for a name. A [`Request::Named`] answers.
    ///
    /// # Errors
    /// There are too many names, or there is no thread.
    pub(super) fn find(&mut self, name: &Arc<str>, waiter: Slot) -> Result<(), Failure> {
        if let Some(waiters) = self.waiting.get_mut(name) {
            if waiters.len() >= MOST_WAITERS {
                return Err(Failure::Full);
            }
            waiters.push(waiter);
            return Ok(());
        }
        if self.waiting.len() >= MOST_LOOKUPS {
            return Err(Failure::Full);
        }
        let thread = match &self.thread {
            Some(thread) => thread,
            None => self.thread.insert(start(self.caller.clone())?),
        };
        thread.try_send(name.clone()).map_err(|_| Failure::Full)?;
        self.waiting.insert(name.clone(), vec![waiter]);
        Ok(())
    }

    /// Those who waited for a name that has an answer.
    pub(super) fn take(&mut self, name: &str) -> Vec<Slot> {
        self.waiting.remove(name).unwrap_or_default()
    }
}

fn start(caller: Caller<Request>) -> Result<SyncSender<Arc<str>>, Failure> {
    let (names, asked) = sync_channel(MOST_LOOKUPS);
    let thread = thread::Builder::new().name("host-names".to_owned());
    thread.spawn(move || answer(&asked, &caller)).map_err(|_| Failure::Full)?;
    Ok(names)
}

/// Looks up one name after the other, until nobody can ask any more.
fn answer(asked: &Receiver<Arc<str>>, caller: &Caller<Request>) {
    while let Ok(name) = asked.recv() {
        let found = look_up(&name);
        if caller.tell(Request::Named(name, found)).is_err() {
            return;
        }
    }
}

fn look_up(name: &str) -> Found {
    let mut found: Vec<IpAddr> = Vec::new();
    for address in (name, 0).to_socket_addrs().map_err(|_| Failure::NoName)? {
        if !found.contains(&address.ip()) {
            found.push(address.ip());
        }
    }
    if found.is_empty() { Err(Failure::NoName) } else { Ok(found.into()) }
}
