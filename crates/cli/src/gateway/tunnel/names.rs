//! Endpoints by name: the host resolves them at the start, and again when handshakes fail. A thread
//! of its own does it, as a question may take long.

use super::silence::{FAILURES, Silence};
use neap_wireguard::file::{Host, HostPort, PeerSection};
use neap_wireguard::{PublicKey, WireguardHandle};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time between two questions for a name without an address, at first and at most.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The addresses of a host, by the resolver of this machine.
///
/// # Errors
/// The name has no address, or nobody answers.
pub(crate) fn resolve(target: &HostPort) -> io::Result<Vec<SocketAddr>> {
    match (&target.host, target.address()) {
        (_, Some(address)) => Ok(vec![address]),
        (Host::Name(name), None) => {
            let found: Vec<_> = (name.as_str(), target.port).to_socket_addrs()?.collect();
            if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Addresses of endpoints that were resolved before, by name.
pub(super) type Known = HashMap<HostPort, SocketAddr>;

/// Peers whose endpoints have names.
#[derive(Debug, Default)]
struct Named {
    peers: Vec<(PublicKey, HostPort)>,
    /// Those of them whose names are new and were not resolved yet, wherever they are reached.
    renamed: HashSet<PublicKey>,
    known: Known,
    /// Peers that may answer although they did not, since their settings are others.
    corrected: HashSet<PublicKey>,
    /// Whether there is something to look at: other peers, or a handshake that has failed.
    is_called: bool,
}

/// The thread, as others see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    shared: Arc<(Mutex<Named>, Condvar)>,
    /// Whoever has it may change the endpoints of peers. It is taken before all other locks.
    turn: Arc<Mutex<()>>,
}

impl Names {
    /// Resolves the endpoints of peers once, so that libraries are loaded before that is given up.
    pub(super) fn new(peers: &[PeerSection]) -> Self {
        let names = Self::default();
        names.set(peers, HashSet::new());
        for (_, name) in named(peers) {
            match resolve(&name) {
                Ok(found) => names.learn(&name, found[0]),
                Err(error) => {
                    tracing::warn!(endpoint = %name, %error, "the endpoint has no address yet");
                }
            }
        }
        // A peer without an address is looked at anyway.
        names.lock().renamed.clear();
        names
    }

    /// Takes the peers of a file, and which of them may answer although they did not.
    pub(super) fn set(&self, peers: &[PeerSection], others: HashSet<PublicKey>) {
        let mut inside = self.lock();
        let Named { peers: current, renamed, known, corrected, is_called } = &mut *inside;
        corrected.extend(others);
        let before: HashSet<_> = std::mem::replace(current, named(peers).collect())
            .into_iter()
            .filter(|(key, _)| !renamed.contains(key))
            .collect();
        let is_new = |one: &&(PublicKey, HostPort)| !before.contains(*one);
        let is_unknown = |one: &&(PublicKey, HostPort)| !known.contains_key(&one.1);
        *renamed = current.iter().filter(is_new).filter(is_unknown).map(|(key, _)| *key).collect();
        known.retain(|name, _| current.iter().any(|(_, one)| one == name));
        *is_called = true;
        self.shared.1.notify_all();
    }

    /// The address of a name that was resolved last.
    pub(super) fn known(&self, name: &HostPort) -> Option<SocketAddr> {
        self.lock().known.get(name).copied()
    }

    /// Whether a peer has a new name that was not resolved yet.
    fn is_renamed(&self, key: &PublicKey) -> bool {
        self.lock().renamed.contains(key)
    }

    /// Waits until no address is being taken, and has none be taken before the guard is dropped.
    /// Whoever changes peers together with their names holds it: a look-up that began before may
    /// end meanwhile, and its address is that of the old file.
    pub(super) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the address of a peer's name. Returns whether the peer still has that name.
    fn settle(&self, key: PublicKey, name: &HostPort, address: SocketAddr) -> bool {
        let mut inside = self.lock();
        let is_its_name = inside.peers.iter().any(|one| (one.0, &one.1) == (key, name));
        if is_its_name {
            inside.renamed.remove(&key);
            inside.known.insert(name.clone(), address);
        }
        is_its_name
    }

    fn lock(&self) -> MutexGuard<'_, Named> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self) {
        self.lock().is_called = true;
        self.shared.1.notify_all();
    }

    fn learn(&self, name: &HostPort, address: SocketAddr) {
        self.lock().known.insert(name.clone(), address);
    }

    /// Resolves names, and tells of silent peers, for as long as the process runs.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn watch(&self, handle: WireguardHandle) -> io::Result<()> {
        let (names, called) = (self.clone(), self.clone());
        handle.on_failed_handshakes(move || called.call());
        let thread = thread::Builder::new().name("names".to_owned());
        thread.spawn(move || names.run(&handle)).map(drop)
    }

    fn run(&self, handle: &WireguardHandle) {
        let (mut pause, mut retry) = (RETRY[0], None);
        let (mut failures, mut silence) = (Failures::default(), Silence::default());
        loop {
            let peers = self.wait(retry);
            let corrected = std::mem::take(&mut self.lock().corrected);
            let status = handle.status();
            silence.correct(&status.peers, &corrected);
            silence.tell(&status.peers);
            failures.forget_others(&peers);
            let mut is_unknown = false;
            for (key, name) in peers {
                let Some(peer) = status.peers.iter().find(|peer| peer.public_key == key) else {
                    continue;
                };
                let is_due = failures.are_due(key, peer.failed_handshakes);
                let is_wanted = peer.endpoint.is_none() || self.is_renamed(&key);
                if !is_wanted && !is_due {
                    continue;
                }
                // The present address is of the old name.
                let present = peer.endpoint.filter(|_| !is_wanted);
                match resolve(&name) {
                    Ok(found) => self.take(handle, key, &name, &found, present),
                    Err(error) => {
                        tracing::warn!(endpoint = %name, %error, "the endpoint has no address");
                        is_unknown |= is_wanted;
                    }
                }
            }
            retry = is_unknown.then_some(pause);
            pause = if is_unknown { (pause * 2).min(RETRY[1]) } else { RETRY[0] };
        }
    }

    /// Takes an address that was found: the one behind the present one, if that does not answer.
    /// It is not taken if the peer has another name or none since the look-up began.
    fn take(
        &self,
        handle: &WireguardHandle,
        key: PublicKey,
        name: &HostPort,
        found: &[SocketAddr],
        present: Option<SocketAddr>,
    ) {
        let next = next(found, present);
        if present == Some(next) {
            return;
        }
        // The engine may call this thread, so the names are not locked meanwhile.
        let _turn = self.take_turn();
        if !self.settle(key, name, next) {
            tracing::debug!(endpoint = %name, address = %next, "the endpoint has another name now");
            return;
        }
        tracing::info!(endpoint = %name, address = %next, "the endpoint has this address");
        // One that is new is tried at once, and those of one look-up take turns.
        let is_turn = present.is_some_and(|present| found.contains(&present));
        let set = if is_turn {
            handle.set_next_endpoint(&key, next)
        } else {
            handle.set_endpoint(&key, next)
        };
        if let Err(error) = set {
            // It was removed meanwhile.
            tracing::debug!(%error, "the endpoint is of no peer");
        }
    }

    /// Waits until somebody has to be looked at: for a call, and for no longer than `retry`.
    fn wait(&self, retry: Option<Duration>) -> Vec<(PublicKey, HostPort)> {
        let (mutex, changed) = &*self.shared;
        let mut inside = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let is_quiet = |inside: &mut Named| !inside.is_called;
        inside = match retry {
            None => changed.wait_while(inside, is_quiet).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = changed.wait_timeout_while(inside, time, is_quiet);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        inside.is_called = false;
        inside.peers.clone()
    }
}

/// How many times [`FAILURES`] each peer has had when it was looked at last: a look at all peers
/// for the failure of one does not turn the address of another that has not tried it yet.
#[derive(Debug, Default)]
struct Failures(HashMap<PublicKey, u32>);

impl Failures {
    /// Whether the name of a peer with so many failures is to be resolved. A look that comes late
    /// finds more of them, and counts as well.
    fn are_due(&mut self, key: PublicKey, failed: u32) -> bool {
        let times = failed / FAILURES;
        let before = self.0.insert(key, times).unwrap_or(0);
        times > 0 && times != before
    }

    fn forget_others(&mut self, peers: &[(PublicKey, HostPort)]) {
        self.0.retain(|key, _| peers.iter().any(|(one, _)| one == key));
    }
}

/// Peers whose endpoints have names.
fn named(peers: &[PeerSection]) -> impl Iterator<Item = (PublicKey, HostPort)> {
    let endpoints = peers.iter().filter_map(|peer| Some((peer.public_key, peer.endpoint.clone()?)));
    endpoints.filter(|(_, endpoint)| endpoint.address().is_none())
}

/// The address behind the present one, or the first.
fn next(found: &[SocketAddr], present: Option<SocketAddr>) -> SocketAddr {
    let at = found.iter().position(|&one| Some(one) == present);
    found[at.map_or(0, |at| (at + 1) % found.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::tunnel::tests::file;

    #[test]
    fn a_new_name_is_resolved_although_the_peer_has_an_address() {
        let named = |port: u16| file("", &format!("Endpoint = localhost:{port}"));
        let first = named(1001);
        let names = Names::new(&first.peers);
        let config = first.wireguard(|endpoint| names.known(endpoint));
        let wireguard = neap_wireguard::Wireguard::open(&config).expect("a tunnel");
        let handle = wireguard.handle();
        let port = || handle.status().peers[0].endpoint.expect("an endpoint").port();
        names.watch(handle.clone()).expect("a thread");
        assert_eq!(port(), 1001);
        let second = named(1002);
        handle.set_peers(second.wireguard(|endpoint| names.known(endpoint)).peers).expect("peers");
        names.set(&second.peers, HashSet::new());
        for _ in 0..1000 {
            if port() == 1002 {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("it still is at port {}", port());
    }

    #[test]
    fn a_look_up_that_ends_after_the_name_has_changed_is_not_taken() {
        let first = file("", "Endpoint = localhost:1001");
        let names = Names::new(&first.peers);
        let config = first.wireguard(|endpoint| names.known(endpoint));
        let wireguard = neap_wireguard::Wireguard::open(&config).expect("a tunnel");
        let handle = wireguard.handle();
        let second = file("", "Endpoint = 127.0.0.1:1002");
        handle.set_peers(second.wireguard(|endpoint| names.known(endpoint)).peers).expect("peers");
        names.set(&second.peers, HashSet::new());
        let (key, old_name) = named(&first.peers).next().expect("a name");
        names.take(&handle, key, &old_name, &[SocketAddr::from(([127, 0, 0, 1], 1001))], None);
        let endpoint = handle.status().peers[0].endpoint;
        assert_eq!(endpoint, Some(SocketAddr::from(([127, 0, 0, 1], 1002))));
        assert_eq!(names.known(&old_name), None, "nobody has it");
    }

    #[test]
    fn a_peer_is_due_once_for_each_failures_that_it_reaches() {
        let [one, other] = [1, 2].map(|byte| PublicKey::from([byte; 32]));
        let mut failures = Failures::default();
        let mut due = |key, failed| failures.are_due(key, failed);
        let first: Vec<_> = (0..=7).map(|failed| due(one, failed)).collect();
        assert_eq!(first, [false, false, false, true, false, false, true, false]);
        // The first one is at rest, and the other one goes on.
        assert!(due(one, 18));
        for failed in 0..=30 {
            assert_eq!(due(other, failed), [3, 6, 9, 12, 15, 18, 21, 24, 27, 30].contains(&failed));
            assert!(!due(one, 18), "the other one has {failed}");
        }
        // Answered, and not answered again; the look at the third failure comes late.
        assert!(!due(one, 0) && !due(one, 2) && due(one, 4) && !due(one, 5) && due(one, 6));
    }

    #[test]
    fn addresses_of_a_name_take_turns() {
        let [a, b] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        assert_eq!(next(&[a, b], None), a);
        assert_eq!(next(&[a, b], Some(a)), b);
        assert_eq!(next(&[a, b], Some(b)), a);
        assert_eq!(next(&[a], Some(a)), a);
        assert_eq!(next(&[a], Some(b)), a);
    }
}
