//! Names that the host looks up: those of targets in its own network. Threads of their own ask, as
//! an answer may take long.
//!
//! Cost: a thread from the first name on, and one more, up to [`MOST_THREADS`], for a name that
//! finds all of them busy; about 100 bytes for each of [`MOST_LOOKUPS`] names that are waited for,
//! and 16 bytes for each of [`MOST_WAITERS`] connections that wait for one. Those who want the same
//! name share its question, and those who come within [`HOLDS`] its answer.

use super::cache::Cache;
use super::handle::Request;
use super::lookups::{MOST_LOOKUPS, MOST_WAITERS};
use super::step::{Failure, Found};
use crate::requests::Caller;
use crate::token::Slot;
use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Names that are looked up at the same time. More wait for one of these.
const MOST_THREADS: usize = 4;
/// How long the addresses of a name hold, as the host tells no time.
const HOLDS: Duration = Duration::from_secs(10);

/// Asks the host for a name, and waits for the answer.
type LookUp = Arc<dyn Fn(&str) -> Found + Send + Sync>;

/// Names that the host is asked for.
pub(super) struct HostNames {
    caller: Caller<Request>,
    look_up: LookUp,
    /// Names to the threads, which end when this is dropped.
    names: SyncSender<Arc<str>>,
    asked: Arc<Mutex<Receiver<Arc<str>>>>,
    threads: usize,
    waiting: HashMap<Arc<str>, Vec<Slot>>,
    cache: Cache,
}

impl HostNames {
    /// The answers are requests by this caller.
    pub(super) fn new(caller: Caller<Request>) -> Self {
        Self::by(caller, Arc::new(look_up))
    }

    fn by(caller: Caller<Request>, look_up: LookUp) -> Self {
        let (names, asked) = sync_channel(MOST_LOOKUPS);
        let (asked, waiting, cache) =
            (Arc::new(Mutex::new(asked)), HashMap::new(), Cache::default());
        Self { caller, look_up, names, asked, threads: 0, waiting, cache }
    }

    /// What is known of a name without a question.
    pub(super) fn known(&mut self, name: &Arc<str>) -> Option<Found> {
        self.cache.get(name, Instant::now()).map(Ok)
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
        // Each name that is waited for may keep a thread busy.
        if self.threads <= self.waiting.len() && self.threads < MOST_THREADS {
            match self.start() {
                Err(why) if self.threads == 0 => return Err(why),
                started => self.threads += usize::from(started.is_ok()),
            }
        }
        self.names.try_send(name.clone()).map_err(|_| Failure::Full)?;
        self.waiting.insert(name.clone(), vec![waiter]);
        Ok(())
    }

    /// Those who waited for a name that has an answer.
    pub(super) fn take(&mut self, name: &Arc<str>, found: &Found) -> Vec<Slot> {
        // Failures are not kept: the user may have given the name an address meanwhile.
        if let Ok(addresses) = found {
            self.cache.put(name.clone(), addresses.clone(), HOLDS, Instant::now());
        }
        self.waiting.remove(name).unwrap_or_default()
    }

    fn start(&self) -> Result<(), Failure> {
        let Self { caller, look_up, asked, .. } = self;
        let (caller, look_up, asked) = (caller.clone(), look_up.clone(), asked.clone());
        let thread = thread::Builder::new().name("host-names".to_owned());
        let started = thread.spawn(move || answer(&asked, &caller, &*look_up));
        started.map(drop).map_err(|_| Failure::Full)
    }
}

/// Looks up one name after the other, until nobody can ask any more.
fn answer(
    asked: &Mutex<Receiver<Arc<str>>>,
    caller: &Caller<Request>,
    look_up: &dyn Fn(&str) -> Found,
) {
    loop {
        // The threads wait in turn. The one with the next name lets the others go on.
        let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(name) = next else { return };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Requests;
    use crate::token::Generation;
    use neap::Poller;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// A host that answers for names that begin with `slow` once the gate is free, and for others
    /// at once.
    fn world(gate: &Arc<Mutex<()>>) -> (HostNames, Requests<Request>) {
        let requests = Requests::new(Arc::new(Poller::new().expect("a poller")));
        let gate = gate.clone();
        let look_up = move |name: &str| {
            let _passed = name.starts_with("slow").then(|| gate.lock());
            if name == "none" { Err(Failure::NoName) } else { Ok([OWN].into()) }
        };
        (HostNames::by(requests.caller(), Arc::new(look_up)), requests)
    }

    fn slot() -> Slot {
        Slot { key: 0, generation: Generation::default() }
    }

    /// The next answer, and how many waited for it.
    fn answered(names: &mut HostNames, requests: &Requests<Request>) -> (Arc<str>, Found, usize) {
        loop {
            if let Some(Request::Named(name, found)) = requests.next() {
                let waiters = names.take(&name, &found).len();
                return (name, found, waiters);
            }
            thread::yield_now();
        }
    }

    #[test]
    fn names_without_an_answer_stop_no_others_and_threads_are_bounded() {
        let gate = Arc::default();
        let (mut names, requests) = world(&gate);
        let _closed = gate.lock().expect("nobody has it");
        for number in 1..MOST_THREADS {
            names.find(&format!("slow{number}").into(), slot()).expect("room");
            assert_eq!(names.threads, number);
        }
        for _ in 0..10 {
            names.find(&"fast".into(), slot()).expect("room");
            names.find(&"fast".into(), slot()).expect("room");
            assert_eq!(answered(&mut names, &requests), ("fast".into(), Ok([OWN].into()), 2));
            assert_eq!(names.threads, MOST_THREADS);
        }
    }

    #[test]
    fn an_answer_is_known_from_then_on_and_a_failure_is_asked_for_again() {
        let (mut names, requests) = world(&Arc::default());
        let own = Ok([OWN].into());
        for (name, found, known) in
            [("fast", own.clone(), Some(own)), ("none", Err(Failure::NoName), None)]
        {
            let name: Arc<str> = name.into();
            assert_eq!(names.known(&name), None);
            names.find(&name, slot()).expect("room");
            assert_eq!(answered(&mut names, &requests), (name.clone(), found, 1));
            assert_eq!(names.known(&name), known);
            let later = Instant::now() + HOLDS;
            assert_eq!(names.cache.get(&name, later), None);
        }
    }
}
