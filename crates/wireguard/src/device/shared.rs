//! What both halves of the device, its monitor and the handles share.

use crate::config::{DEFAULT_MTU, MTU_MAX, MTU_MIN, Peer, WireguardConfig};
use crate::counters::Counters;
use crate::device::path::{LEAST, Path};
use crate::device::socket::{Batch, HANDSHAKE_CLASS, HostSocket, MOST_SEGMENTS, Sent};
use crate::device::suspends::Suspends;
use crate::device::unreachable::Unreachables;
use crate::engine::{Engine, Outgoing};
use crate::error::Error;
use crate::keys::{KeyError, PrivateKey, PublicKey};
use crate::protocol::Chosen;
use crate::status::Status;
use core::net::SocketAddr;
use core::time::Duration;
use neap_device::clock;
use neap_tcp::time::Instant;
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::SystemTime;
use zeroize::Zeroizing;

const SEALERS_MAX: usize = 64;
/// Turns of the processor that are given to others who wait for the engine. A thread takes about
/// as long as a hundred to wake up.
const YIELDS: u32 = 200;
/// The longest persistent keepalive, as `wg(8)` has it.
const KEEPALIVE_MAX: Duration = Duration::from_secs(65_535);

/// What is called when the failed handshakes of a peer have become more or none.
type OnFailures = Box<dyn Fn() + Send + Sync>;

/// Socket, engine, and what is read without the engine's lock.
pub(crate) struct Shared {
    pub(crate) socket: HostSocket,
    pub(crate) counters: Arc<Counters>,
    pub(crate) path: Path,
    pub(crate) unreachables: Unreachables,
    engine: Mutex<Engine<Chosen>>,
    /// When the engine has something to do, in nanoseconds.
    deadline: AtomicU64,
    /// Frames that wait for a handshake or an endpoint may be able to go.
    is_revived: AtomicBool,
    /// Threads that wait for the engine.
    waiting: AtomicUsize,
    /// The host has told an error of an earlier datagram, whose record is in the queue of errors.
    has_error: AtomicBool,
    suspends: Suspends,
    fwmark: Mutex<Option<u32>>,
    /// Whom to tell when the failed handshakes of a peer have become more or none.
    on_failures: OnceLock<OnFailures>,
    /// Readable when the driver is to look at the link, and at the engine's deadline.
    bell: Arc<OwnedFd>,
}

impl Shared {
    pub(crate) fn open(config: &WireguardConfig) -> Result<Self, Error> {
        check_mtu(config.mtu)?;
        check_least_mtu(config.least_mtu)?;
        check("sealers", config.sealers as u64, SEALERS_MAX as u64, "0 to 64")?;
        check_peers(&config.peers)?;
        let socket = HostSocket::open(config.listen_port, config.fwmark)?;
        let counters = Arc::<Counters>::default();
        let now = clock::now();
        let engine = Engine::new(config, seed()?, counters.clone(), now, unix())?;
        let path = Path::new(config.mtu.unwrap_or(DEFAULT_MTU), config.least_mtu);
        path.look(engine.endpoints(), config.fwmark, now);
        socket.let_be_cut(path.is_narrow());
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|errno| Error::System { call: "eventfd", source: errno.into() })?;
        Ok(Self {
            deadline: AtomicU64::new(engine.deadline().as_nanos()),
            is_revived: AtomicBool::new(false),
            unreachables: Unreachables::default(),
            waiting: AtomicUsize::new(0),
            has_error: AtomicBool::new(false),
            suspends: Suspends::new(),
            fwmark: Mutex::new(config.fwmark),
            on_failures: OnceLock::new(),
            engine: Mutex::new(engine),
            bell: Arc::new(bell),
            socket,
            counters,
            path,
        })
    }

    /// Works with the engine. What it has to say is sent, and a handshake that has failed, or a
    /// peer that answers again, is told afterwards, without its lock.
    pub(crate) fn engine<R>(&self, work: impl FnOnce(&mut Engine<Chosen>) -> R) -> R {
        let (result, unsent) = self.engine_unsent(work);
        if unsent > 0 {
            self.send_outgoing();
        }
        result
    }

    /// The same, but the messages that the engine wants sent are left. Returns their number.
    pub(crate) fn engine_unsent<R>(
        &self,
        work: impl FnOnce(&mut Engine<Chosen>) -> R,
    ) -> (R, usize) {
        let mut engine = self.wait_for_engine();
        let result = work(&mut engine);
        let (has_failed, has_recovered) = (engine.take_failure(), engine.take_recovery());
        if has_failed {
            engine.put_forward(clock::now(), unix());
        }
        if engine.has_undated_handshakes() {
            engine.date_handshakes(clock::now(), unix());
        }
        self.deadline.store(engine.deadline().as_nanos(), Ordering::Release);
        if engine.take_revival() {
            self.is_revived.store(true, Ordering::Release);
        }
        let (has_moved, has_appeared) = (engine.take_move(), engine.take_appearance());
        let unsent = engine.outgoing();
        drop(engine);
        if has_moved {
            self.path.has_moved();
        }
        // Nothing was known of its path, and frames are cut for it from now on.
        if has_appeared && self.path.tell() {
            self.ring();
        }
        if has_moved || has_appeared {
            self.socket.way_has_changed();
        }
        if (has_failed || has_recovered)
            && let Some(tell) = self.on_failures.get()
        {
            tell();
        }
        (result, unsent)
    }

    fn wait_for_engine(&self) -> MutexGuard<'_, Engine<Chosen>> {
        match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(engine)) => engine.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let engine = lock(&self.engine);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                engine
            }
        }
    }

    /// Lets a thread that waits for the engine have it before this one takes it again. The lock is
    /// not fair: whoever has it gets it back before the other one is awake.
    pub(crate) fn give_way(&self) {
        self.give_turns(std::thread::yield_now);
    }

    /// Calls `give_turn` until one of the threads that wait has the engine, at most [`YIELDS`]
    /// times.
    fn give_turns(&self, mut give_turn: impl FnMut()) {
        let waiting = || self.waiting.load(Ordering::Relaxed);
        let (before, mut yields) = (waiting(), 0);
        while before > 0 && waiting() == before && yields < YIELDS {
            give_turn();
            yields += 1;
        }
    }

    /// Sends the messages that the engine wants sent: those of one length to one address together.
    pub(crate) fn send_outgoing(&self) {
        let outgoing = lock(&self.engine).take_outgoing();
        let is_alike = |a: &Outgoing, b: &Outgoing| {
            (a.to, a.message.bytes().len(), a.message.is_step())
                == (b.to, b.message.bytes().len(), b.message.is_step())
        };
        for alike in outgoing.chunk_by(is_alike) {
            alike.chunks(MOST_SEGMENTS).for_each(|messages| self.send(messages));
        }
    }

    /// Sends messages of the protocol of one length to one address. What the host does not take is
    /// lost like any datagram.
    fn send(&self, messages: &[Outgoing]) {
        let Some(first) = messages.first() else { return };
        let parts: SmallVec<[&[u8]; 8]> = messages.iter().map(|one| one.message.bytes()).collect();
        let class = if first.message.is_step() { HANDSHAKE_CLASS } else { 0 };
        let (segment, to) = (first.message.bytes().len(), first.to);
        let batch = Batch { parts: &parts, segment, to, class, may_be_cut: false };
        let mut done = 0;
        if self.send_batch(batch, &mut done).is_err() {
            self.counters.dropped_send_error.add((messages.len() - done) as u64);
        }
    }

    /// Sends a batch (see [`HostSocket::send`]), and follows what the host has told meanwhile: of
    /// the path, of errors of earlier datagrams, and of an own address that is gone.
    pub(crate) fn send_batch(&self, mut batch: Batch<'_>, done: &mut usize) -> nix::Result<Sent> {
        let to = batch.to;
        let sent = self.socket.send(&mut batch, done);
        if batch.to != to {
            lock(&self.engine).forget_own(to);
            self.socket.way_has_changed();
        }
        if self.socket.take_has_errors() {
            self.ring_for_error();
        }
        // A look in the pause after the last one is planned.
        if sent == Ok(Sent::Fragmentable) && !self.path.is_narrow() && self.path.tell() {
            self.ring();
        }
        sent
    }

    /// When the engine has something to do.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Does what is due. After a sleep of the machine all sessions begin anew.
    pub(crate) fn advance(&self, now: Instant) {
        if self.suspends.has_slept(now, clock::asleep) {
            self.engine(|engine| engine.begin_all_anew(now));
        }
        if self.deadline() <= now {
            self.engine(|engine| engine.advance(now));
        }
    }

    /// Whether frames that wait may be able to go.
    pub(crate) fn is_revived(&self) -> bool {
        self.is_revived.load(Ordering::Acquire)
    }

    /// The same, once.
    pub(crate) fn take_revival(&self) -> bool {
        self.is_revived() && self.is_revived.swap(false, Ordering::AcqRel)
    }

    /// Has the driver look at the link and the deadline.
    pub(crate) fn ring(&self) {
        // It fails only if it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Has the driver look at the paths, at once.
    pub(crate) fn ring_for_path(&self) {
        self.path.ask();
        self.ring();
    }

    /// Has the driver look at the queue of errors, since the host has told one. Whoever can forge
    /// ICMP makes many, so that the paths are looked at if it tells of one, and not too often.
    pub(crate) fn ring_for_error(&self) {
        self.has_error.store(true, Ordering::Relaxed);
        self.ring();
    }

    pub(crate) fn bell(&self) -> &Arc<OwnedFd> {
        &self.bell
    }

    /// Takes what the queue of errors has, looks at the paths to the peers if there is a reason,
    /// and returns the MTU inside.
    pub(crate) fn look_at_path(&self, now: Instant) -> u16 {
        let has_error = self.has_error.swap(false, Ordering::Relaxed);
        let errors = self.socket.take_errors();
        self.counters.icmp_errors.add(errors.of_icmp);
        if !errors.is_empty {
            // The next look takes the rest.
            self.ring();
        }
        // The host has no record of an error that the socket had no room for.
        if errors.is_of_path || (has_error && errors.count == 0) {
            self.path.tell();
        }
        if self.path.begin_look(now) {
            self.look_at_all_paths(now);
        }
        self.path.mtu()
    }

    fn look_at_all_paths(&self, now: Instant) {
        self.counters.path_looks.one();
        let endpoints: Vec<SocketAddr> = lock(&self.engine).endpoints().collect();
        if self.path.look(endpoints.into_iter(), *lock(&self.fwmark), now) {
            self.counters.path_mtu_changes.one();
        }
        self.socket.let_be_cut(self.path.is_narrow());
    }

    pub(crate) fn status(&self) -> Status {
        let (public_key, peers) = {
            let engine = lock(&self.engine);
            (engine.public_key(), engine.status())
        };
        let (send_buffer, receive_buffer) = self.socket.buffers();
        Status {
            public_key,
            send_buffer,
            receive_buffer,
            listen_port: self.socket.port(),
            fwmark: *lock(&self.fwmark),
            peers,
            counters: self.counters.figures(),
        }
    }

    pub(crate) fn set_peers(&self, peers: Vec<Peer>) -> Result<(), Error> {
        check_peers(&peers)?;
        let now = clock::now();
        self.change(|engine| engine.set_peers(peers, now))
    }

    /// Whether nobody was to be told before.
    pub(crate) fn on_failed_handshakes(&self, tell: OnFailures) -> bool {
        self.on_failures.set(tell).is_ok()
    }

    pub(crate) fn set_endpoint(&self, key: &PublicKey, endpoint: SocketAddr) -> Result<(), Error> {
        let now = clock::now();
        self.change(|engine| engine.set_endpoint(key, endpoint, now))
    }

    pub(crate) fn set_next_endpoint(
        &self,
        key: &PublicKey,
        endpoint: SocketAddr,
    ) -> Result<(), Error> {
        let now = clock::now();
        self.change(|engine| engine.set_next_endpoint(key, endpoint, now))
    }

    pub(crate) fn set_private_key(&self, key: PrivateKey) -> Result<(), Error> {
        let (seed, now) = (seed()?, clock::now());
        self.change(|engine| engine.set_private_key(key, seed, now))
    }

    pub(crate) fn set_fwmark(&self, fwmark: Option<u32>) -> Result<(), Error> {
        let mut current = lock(&self.fwmark);
        if *current != fwmark {
            self.socket.set_mark(fwmark.unwrap_or(0))?;
            *current = fwmark;
            self.socket.way_has_changed();
            lock(&self.engine).forget_all_own();
        }
        drop(current);
        self.ring_for_path();
        Ok(())
    }

    pub(crate) fn set_mtu(&self, mtu: Option<u16>) -> Result<(), Error> {
        check_mtu(mtu)?;
        let (mtu, most) = (mtu.unwrap_or(DEFAULT_MTU), self.path.largest());
        check("mtu", mtu.into(), most.into(), "576 to 59000 bytes, or to that of the start")?;
        self.path.set_most(mtu);
        self.ring_for_path();
        Ok(())
    }

    pub(crate) fn set_least_mtu(&self, least: Option<u16>) -> Result<(), Error> {
        check_least_mtu(least)?;
        self.path.set_least(least);
        self.ring_for_path();
        Ok(())
    }

    pub(crate) fn set_listen_port(&self, port: u16) -> Result<(), Error> {
        if port == self.socket.port() {
            return Ok(());
        }
        // A mark that is set meanwhile would be that of the old socket alone.
        let fwmark = lock(&self.fwmark);
        self.socket.rebind(port, *fwmark)?;
        drop(fwmark);
        let now = clock::now();
        self.engine(|engine| engine.announce(now));
        self.ring_for_path();
        Ok(())
    }

    /// Makes changes, and holds the handshakes back that they need until all are made.
    pub(crate) fn batch<R>(&self, changes: impl FnOnce() -> R) -> R {
        struct Held<'a>(&'a Shared);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                let now = clock::now();
                self.0.engine(|engine| engine.release(now));
                // The driver waits for an earlier deadline.
                self.0.ring();
            }
        }
        lock(&self.engine).hold();
        let _held = Held(self);
        changes()
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Engine<Chosen>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let changed = self.engine(change);
        self.socket.way_has_changed();
        self.ring_for_path();
        changed
    }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("port", &self.socket.port()).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time of day.
fn unix() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn seed() -> Result<Zeroizing<[u8; 32]>, Error> {
    let mut seed = Zeroizing::new([0; 32]);
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut seed[..], flags) {
        Ok(32) => Ok(seed),
        _ => Err(KeyError::Random.into()),
    }
}

fn check(option: &'static str, value: u64, most: u64, range: &'static str) -> Result<(), Error> {
    if value <= most { Ok(()) } else { Err(Error::OutOfRange { option, value, range }) }
}

fn check_mtu(mtu: Option<u16>) -> Result<(), Error> {
    match mtu {
        Some(mtu) if !(MTU_MIN..=MTU_MAX).contains(&mtu) => {
            let (option, range) = ("mtu", "576 to 65000 bytes");
            Err(Error::OutOfRange { option, value: mtu.into(), range })
        }
        _ => Ok(()),
    }
}

fn check_least_mtu(least: Option<u16>) -> Result<(), Error> {
    match least {
        Some(least) if !(MTU_MIN..=LEAST).contains(&least) => {
            let (option, range) = ("least mtu", "576 to 1280 bytes");
            Err(Error::OutOfRange { option, value: least.into(), range })
        }
        _ => Ok(()),
    }
}

fn check_peers(peers: &[Peer]) -> Result<(), Error> {
    let keepalives = peers.iter().filter_map(|peer| peer.persistent_keepalive);
    for keepalive in keepalives {
        let (value, most) = (keepalive.as_secs(), KEEPALIVE_MAX.as_secs());
        check("persistent keepalive", value, most, "0 to 65535 seconds")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::namespace::{in_namespace, run};
    use crate::protocol::Message;
    use std::sync::Barrier;

    /// The traffic class of a datagram that a socket of IPv4 gets.
    fn class_of_next(socket: &std::net::UdpSocket) -> u8 {
        use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg};
        use std::os::fd::AsRawFd;
        let (mut bytes, mut control) = ([0; 2048], HostSocket::control_room());
        let parts = &mut [std::io::IoSliceMut::new(&mut bytes)];
        let fd = socket.as_raw_fd();
        let received = recvmsg::<SockaddrIn>(fd, parts, Some(&mut control), MsgFlags::empty());
        let received = received.expect("a datagram");
        let mut messages = received.cmsgs().expect("room");
        let class = messages.find_map(|message| match message {
            ControlMessageOwned::Ipv4Tos(class) => Some(class),
            _ => None,
        });
        class.expect("a traffic class")
    }

    /// Says why a test cannot run, where the harness does not keep it to itself.
    fn skip(reason: &str) {
        use std::io::Write;
        writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
    }

    #[test]
    fn the_two_steps_of_a_handshake_have_the_traffic_class_of_the_kernels() {
        use nix::sys::socket::{setsockopt, sockopt::IpRecvTos};
        let shared = Shared::open(&WireguardConfig::new(PrivateKey::from([1; 32])));
        let shared = shared.expect("a socket");
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        setsockopt(&peer, IpRecvTos, &true).expect("an option");
        let to = peer.local_addr().expect("an address");
        let messages = [
            (Message::Initiation(vec![1; 148]), 0x88),
            (Message::Response(vec![2; 92]), 0x88),
            (Message::Cookie(vec![3; 64]), 0),
            (Message::Keepalive(vec![4; 32]), 0),
        ];
        for (message, class) in messages {
            let outgoing = Outgoing { to: to.into(), message };
            shared.send(core::slice::from_ref(&outgoing));
            assert_eq!(class_of_next(&peer), class, "{outgoing:?}");
        }
    }

    #[test]
    fn messages_that_have_left_before_the_host_was_full_are_not_dropped() {
        const SENT: u64 = 4000;
        in_namespace(|| {
            run("ip tuntap add dev held0 mode tap");
            run("ip address add 10.9.9.1/24 dev held0");
            run("ip link set held0 up");
            // The host holds what it is given for an address that does not answer.
            let most = "/proc/sys/net/ipv4/neigh/held0/unres_qlen_bytes";
            std::fs::write(most, "100000000").expect("a setting");
            let shared = Shared::open(&WireguardConfig::new(PrivateKey::from([1; 32])));
            let shared = shared.expect("a socket");
            shared.socket.is_plain_now();
            let to = SocketAddr::from(([10, 9, 9, 2], 9)).into();
            let message = |_| Outgoing { to, message: Message::Initiation(vec![1; 148]) };
            shared.send(&(0..SENT).map(message).collect::<Vec<_>>());
            let dropped = shared.counters.dropped_send_error.get();
            assert!((1..SENT).contains(&dropped), "{dropped} of {SENT}");
        });
    }

    #[test]
    fn a_peer_that_is_elsewhere_may_take_super_datagrams() {
        let mut config = WireguardConfig::new(PrivateKey::from([1; 32]));
        config.peers = vec![Peer::new(PrivateKey::from([2; 32]).public_key())];
        let shared = Shared::open(&config).expect("a socket");
        shared.socket.is_plain_now();
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 9));
        shared.engine(|engine| engine.hear(0, elsewhere.into()));
        assert!(!shared.socket.is_plain());
        shared.engine(|engine| engine.hear(0, elsewhere.into()));
        shared.socket.is_plain_now();
        shared.set_endpoint(&config.peers[0].public_key, elsewhere).expect("a peer");
        assert!(!shared.socket.is_plain());
    }

    #[test]
    fn handshakes_begin_anew_after_a_sleep_of_the_machine() {
        use neap_tcp::time::Nanos;
        let mut config = WireguardConfig::new(PrivateKey::from([1; 32]));
        let mut peer = Peer::new(PrivateKey::from([2; 32]).public_key());
        peer.allowed_ips = vec!["10.0.0.0/24".parse().expect("a prefix")];
        // Nobody answers there.
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        peer.endpoint = Some(silent.local_addr().expect("an address"));
        config.peers = vec![peer];
        let shared = Shared::open(&config).expect("a socket");
        // The first look that is not interrupted is the one to compare with.
        let mut now = clock::now();
        let mut look = || {
            for _ in 0..100 {
                now += Nanos::from_millis(101);
                shared.advance(now);
            }
            now
        };
        let begun = look();
        let to = "10.0.0.2".parse().expect("an address");
        shared.engine(|engine| engine.begin_send(to, (1, 100), &mut Vec::new(), begun));
        let sent = || shared.counters.initiations_sent.get();
        assert_eq!(sent(), 1);
        shared.suspends.sleep(Nanos::from_secs(3600));
        shared.advance(begun + Nanos::from_millis(101));
        shared.advance(begun + Nanos::from_millis(202));
        assert_eq!(sent(), 2);
    }

    #[test]
    fn packets_of_another_mark_leave_from_where_the_route_says() {
        let mut config = WireguardConfig::new(PrivateKey::from([1; 32]));
        config.peers = vec![Peer::new(PrivateKey::from([2; 32]).public_key())];
        let shared = Shared::open(&config).expect("a socket");
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let heard = crate::engine::Ends { peer, own: Some(peer.ip()) };
        shared.engine(|engine| engine.hear(0, heard));
        if shared.set_fwmark(Some(1)).is_err() {
            return skip("this user may set no mark");
        }
        assert_eq!(lock(&shared.engine).ends(0), Some(peer.into()));
        shared.engine(|engine| engine.hear(0, heard));
        shared.set_fwmark(Some(1)).expect("the same mark");
        assert_eq!(lock(&shared.engine).ends(0), Some(heard));
    }

    /// An ICMP error for each of so many datagrams to a port that nobody has.
    fn provoke(shared: &Shared, errors: usize) {
        let closed = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 9)).into();
        let batch =
            Batch { parts: &[b"anybody?"], segment: 8, to: closed, class: 0, may_be_cut: false };
        for _ in 0..errors {
            assert_eq!(shared.send_batch(batch, &mut 0), Ok(Sent::Whole));
        }
    }

    #[test]
    fn errors_that_tell_nothing_of_the_path_cost_no_look_at_it_and_others_few() {
        let shared = Shared::open(&WireguardConfig::new(PrivateKey::from([1; 32])));
        let shared = shared.expect("a socket");
        let (looks, pause) = (|| shared.counters.path_looks.get(), crate::device::path::PAUSE);
        let mut now = clock::now() + pause;
        for _ in 0..100 {
            provoke(&shared, 10);
            shared.ring_for_error();
            shared.look_at_path(now);
        }
        assert_eq!((looks(), shared.counters.icmp_errors.get()), (0, 1000));
        // There is no record of these.
        for _ in 0..1000 {
            shared.ring_for_error();
            shared.look_at_path(now);
        }
        assert_eq!(looks(), 1, "once in a pause");
        assert_eq!(shared.path.next_look(), now + pause);
        now += pause;
        assert!(shared.path.wants_look(now), "the driver is told when it is over");
        shared.ring_for_path();
        shared.look_at_path(now);
        assert_eq!((looks(), shared.path.next_look()), (2, Instant::FAR_FUTURE));
        shared.set_mtu(Some(1300)).expect("an MTU");
        assert_eq!(
            (shared.look_at_path(now), looks()),
            (1300, 3),
            "no pause for what was asked for"
        );
    }

    #[test]
    fn an_error_of_this_host_is_none_of_icmp() {
        let shared = Shared::open(&WireguardConfig::new(PrivateKey::from([1; 32])));
        let shared = shared.expect("a socket");
        let to = std::net::UdpSocket::bind("[::1]:0").expect("a port");
        let to = to.local_addr().expect("an address").into();
        // With its headers it is above the MTU of the loopback.
        let bytes = vec![7; 65_507];
        let batch =
            Batch { parts: &[&bytes], segment: bytes.len(), to, class: 0, may_be_cut: false };
        assert_eq!(shared.send_batch(batch, &mut 0), Ok(Sent::Fragmentable));
        let errors = shared.socket.take_errors();
        assert!(errors.count > 0 && errors.is_of_path && errors.of_icmp == 0, "{errors:?}");
    }

    #[test]
    fn turns_are_given_until_one_who_waits_has_the_engine() {
        let shared = Shared::open(&WireguardConfig::new(PrivateKey::from([1; 32])));
        let shared = shared.expect("a socket");
        // The turns that are given if one of so many has the engine in the turn `comes_in`.
        let turns = |waiting: usize, comes_in: u32| {
            shared.waiting.store(waiting, Ordering::Relaxed);
            let mut turns = 0;
            shared.give_turns(|| {
                turns += 1;
                if turns == comes_in {
                    shared.waiting.store(waiting - 1, Ordering::Relaxed);
                }
            });
            turns
        };
        assert_eq!(turns(0, 1), 0, "nobody waits");
        assert_eq!(turns(1, 3), 3);
        assert_eq!(turns(5, 3), 3, "those who still wait have had no worse a chance");
        assert_eq!(turns(1, u32::MAX), YIELDS, "one who does not wake up holds nobody up");
    }

    #[test]
    fn one_who_waits_for_the_engine_is_counted_until_he_has_it() {
        let shared = Shared::open(&WireguardConfig::new(PrivateKey::from([1; 32])));
        let shared = shared.expect("a socket");
        let waiting = || shared.waiting.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let held = lock(&shared.engine);
            let waiter = scope.spawn(|| shared.engine(|_| waiting()));
            while waiting() == 0 {
                std::thread::yield_now();
            }
            drop(held);
            assert_eq!(waiter.join().expect("it has had the engine"), 0);
        });
    }

    #[test]
    fn a_mark_that_is_set_while_the_port_changes_is_that_of_the_new_socket() {
        let config = WireguardConfig::new(PrivateKey::from([1; 32]));
        let shared = Shared::open(&config).expect("a socket");
        if shared.set_fwmark(Some(1)).is_err() {
            return skip("this user may set no mark");
        }
        let barrier = Barrier::new(2);
        for mark in 2..500 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    shared.set_listen_port(0).expect("a port");
                });
                barrier.wait();
                shared.set_fwmark(Some(mark)).expect("a mark");
            });
            assert_eq!(shared.socket.mark(), mark);
        }
    }
}
