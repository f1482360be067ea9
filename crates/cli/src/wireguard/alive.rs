//! CheckAlive: pings through the tunnel, and when each address answered last.

use bytes::{BufMut, Bytes, BytesMut};
use neap::{Events, IcmpMessage, IcmpOptions, IcmpSocket, Poller, Stack};
use neap_wireguard::file::InterfaceSection;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What an answer may take besides the time between two pings.
const LEEWAY: Duration = Duration::from_secs(2);
/// Types of ICMP and ICMPv6.
const ECHO_REQUESTS: [u8; 2] = [8, 128];
/// Bytes behind the header of a ping.
const PAYLOAD: usize = 16;
/// Rounds of pings whose answers are taken, at most. With the least interval there are four, and
/// another file begins the next one early.
const ROUNDS_MAX: usize = 8;

/// A moment, by two clocks.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// Time since the start of the machine, its sleeps as well. Nobody sets this clock.
    uptime: Duration,
    /// Seconds since 1970, which are shown.
    second: u64,
}

impl Moment {
    fn now() -> Self {
        let uptime = clock_gettime(ClockId::Boottime);
        let uptime = Duration::try_from(uptime).unwrap_or_default();
        let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { uptime, second }
    }
}

/// The addresses of a file, each with its last answer.
#[derive(Debug, Default)]
struct Watched {
    interval: Duration,
    answered: BTreeMap<IpAddr, Option<Moment>>,
}

impl Watched {
    /// The second in which each address answered last, or 0, and whether all have answered in time.
    fn answers(&self, now: Moment) -> (Vec<(IpAddr, u64)>, bool) {
        let answers = |answer: &Option<Moment>| {
            answer.is_some_and(|at| is_in_time(at.uptime, now.uptime, self.interval))
        };
        let is_alive = self.answered.values().all(answers);
        let second = |answer: Option<Moment>| answer.map_or(0, |at| at.second);
        (self.answered.iter().map(|(&ip, &answer)| (ip, second(answer))).collect(), is_alive)
    }

    fn learn(&mut self, from: IpAddr, now: Moment) {
        if let Some(answer) = self.answered.get_mut(&from) {
            *answer = Some(now);
        }
    }
}

/// Whether something that happened at `then` is recent enough at `now`, with this interval between
/// pings.
fn is_in_time(then: Duration, now: Duration, interval: Duration) -> bool {
    now.saturating_sub(then) <= interval + LEEWAY
}

/// The pings, as other threads see them.
#[derive(Clone, Debug)]
pub(super) struct Alive(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    watched: Mutex<Watched>,
    /// Where the pings wait, for answers and for another file.
    poller: Poller,
}

impl Alive {
    /// No addresses.
    ///
    /// # Errors
    /// There is no descriptor.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared { watched: Mutex::default(), poller: Poller::new()? })))
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the addresses of a file. Those that stay keep their last answers.
    pub(super) fn set(&self, interface: &InterfaceSection) {
        let mut watched = self.watched();
        watched.interval = interface.check_alive_interval;
        let answered = &watched.answered;
        let of = |ip: &IpAddr| (*ip, answered.get(ip).copied().flatten());
        watched.answered = interface.check_alive.iter().map(of).collect();
        drop(watched);
        self.0.poller.notify();
    }

    /// When each address answered last, and whether all have answered in time.
    pub(super) fn answers(&self) -> (Vec<(IpAddr, u64)>, bool) {
        self.watched().answers(Moment::now())
    }

    /// Pings for as long as the stack runs. There is no socket while there are no addresses.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn watch(&self, stack: &Arc<Stack>) -> io::Result<()> {
        let (alive, stack) = (self.clone(), Arc::downgrade(stack));
        let thread = thread::Builder::new().name("alive".to_owned());
        // It ends with an error when the stack is gone.
        thread.spawn(move || drop(alive.ping(&stack))).map(drop)
    }

    fn ping(&self, stack: &Weak<Stack>) -> io::Result<()> {
        let mut pings = None;
        loop {
            let (addresses, interval) = self.wanted();
            if addresses.is_empty() {
                // What comes to a socket that nobody reads would end each wait.
                pings = None;
                self.0.poller.wait(&mut Vec::new(), None)?;
                continue;
            }
            let pings = match &mut pings {
                Some(pings) => pings,
                None => {
                    let stack = stack.upgrade().ok_or(ErrorKind::ConnectionAborted)?;
                    pings.insert(Pings::open(&stack, &self.0.poller)?)
                }
            };
            let end = Instant::now() + interval;
            pings.send(&addresses, end)?;
            while self.is_current(&addresses, interval) {
                while let Some(message) = pings.receive()? {
                    let now = Moment::now();
                    if pings.is_answer(&message, now.uptime, interval) {
                        self.watched().learn(message.source, now);
                    }
                }
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.0.poller.wait(&mut Vec::new(), Some(left))?;
            }
        }
    }

    fn wanted(&self) -> (Vec<IpAddr>, Duration) {
        let inside = self.watched();
        (inside.answered.keys().copied().collect(), inside.interval)
    }

    /// Whether these are still the addresses and the interval of the file.
    fn is_current(&self, addresses: &[IpAddr], interval: Duration) -> bool {
        let inside = self.watched();
        inside.interval == interval && inside.answered.keys().eq(addresses)
    }
}

/// Pings that were sent together.
#[derive(Debug)]
struct Round {
    sequence: u16,
    /// What their answers carry. Nobody else knows it.
    payload: [u8; PAYLOAD],
    /// Time since the start of the machine.
    at: Duration,
}

/// The last rounds. An answer may take longer than the time between two of them.
#[derive(Debug, Default)]
struct Rounds(VecDeque<Round>);

impl Rounds {
    fn add(&mut self, round: Round) {
        self.0.truncate(ROUNDS_MAX - 1);
        self.0.push_front(round);
    }

    /// Whether an answer with this sequence number and payload, which comes at `now`, is that of a
    /// round and not too late.
    fn has(&self, (sequence, payload): (u16, &[u8]), now: Duration, interval: Duration) -> bool {
        self.0.iter().any(|round| {
            (round.sequence, &round.payload[..]) == (sequence, payload)
                && is_in_time(round.at, now, interval)
        })
    }
}

/// A socket for pings.
#[derive(Debug)]
struct Pings {
    socket: IcmpSocket,
    identifier: u16,
    sequence: u16,
    rounds: Rounds,
}

impl Pings {
    fn open(stack: &Stack, poller: &Poller) -> io::Result<Self> {
        let options =
            IcmpOptions { foreign: false, own: true, transparent: false, ..IcmpOptions::default() };
        let socket = IcmpSocket::open(stack, options)?;
        poller.add(&socket, 0, Events::IN)?;
        let identifier = u16::from_ne_bytes(random()?);
        Ok(Self { socket, identifier, sequence: 0, rounds: Rounds::default() })
    }

    /// Pings all addresses once, by `end` at the latest.
    ///
    /// # Errors
    /// The stack is gone, or there are no random bytes.
    fn send(&mut self, addresses: &[IpAddr], end: Instant) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let payload = random()?;
        self.socket.set_nonblocking(false)?;
        for &to in addresses {
            let left = end.saturating_duration_since(Instant::now());
            self.socket.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.socket.send(&self.request(to, &payload)) {
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Err(error),
                // It stays without an answer.
                Err(error) => tracing::debug!(%to, %error, "no ping is sent"),
                Ok(()) => {}
            }
        }
        // The last one may have waited for room.
        let at = Moment::now().uptime;
        self.rounds.add(Round { sequence: self.sequence, payload, at });
        self.socket.set_nonblocking(true)
    }

    /// A message that has come, if there is one.
    ///
    /// # Errors
    /// The stack is gone.
    fn receive(&self) -> io::Result<Option<IcmpMessage>> {
        match self.socket.recv() {
            Ok(message) => Ok(Some(message)),
            // Without a network the pings stay without an answer.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NetworkDown) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a message that comes at `now` answers a ping.
    fn is_answer(&self, message: &IcmpMessage, now: Duration, interval: Duration) -> bool {
        match (message.echo(), message.data.get(8..)) {
            (Some((identifier, sequence)), Some(payload)) if identifier == self.identifier => {
                !message.is_echo_request() && self.rounds.has((sequence, payload), now, interval)
            }
            _ => false,
        }
    }

    fn request(&self, to: IpAddr, payload: &[u8]) -> IcmpMessage {
        let own: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut data = BytesMut::with_capacity(8 + payload.len());
        data.put_u8(ECHO_REQUESTS[usize::from(to.is_ipv6())]);
        // Code and checksum.
        data.put_bytes(0, 3);
        data.put_u16(self.identifier);
        data.put_u16(self.sequence);
        data.put_slice(payload);
        IcmpMessage::new(own, to, Bytes::from(data))
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

#[cfg(test)]
#[allow(dead_code, reason = "an example has a `main`")]
#[path = "../../../neap/examples/device.rs"]
mod device;

#[cfg(test)]
mod tests {
    use super::*;
    use neap_wireguard::file::File;
    use std::os::unix::net::UnixDatagram;

    /// The section of a file with these lines.
    fn section(name: &str, lines: &str) -> InterfaceSection {
        let path = std::env::temp_dir().join(format!("neap-alive-{name}-{}", std::process::id()));
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        let peer = format!("[Peer]\nPublicKey = {key}\nAllowedIPs = 10.0.0.0/24\n");
        let own = format!("[Interface]\nPrivateKey = {key}\nAddress = 10.0.0.2/32\n{lines}");
        let text = own + &peer;
        std::fs::write(&path, text).expect("written");
        let file = File::read(&path);
        std::fs::remove_file(&path).expect("it is there");
        file.expect("it is right").interface
    }

    #[test]
    fn without_addresses_there_is_no_socket() {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let device = device::device("cable", own).expect("a device");
        let stack = Stack::builder().device(device).address("10.0.0.2/32").build();
        let stack = Arc::new(stack.expect("a stack"));
        let alive = Alive::new().expect("a descriptor");
        alive.watch(&stack).expect("a thread");
        let until = Instant::now() + Duration::from_secs(60);
        for (name, lines, sockets) in [("one", "CheckAlive = 10.0.0.1\n", 1), ("none", "", 0)] {
            alive.set(&section(name, lines));
            while stack.host().usage().icmp != sockets {
                assert!(Instant::now() < until, "there are not {sockets} sockets");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn addresses_of_both_families_answer() {
        let (one, other) = UnixDatagram::pair().expect("a pair");
        let stack = |end, v4: &str, v6: &str| {
            let device = device::device("cable", end).expect("a device");
            let stack = Stack::builder().device(device).address(v4).address(v6).build();
            Arc::new(stack.expect("a stack"))
        };
        let own = stack(one, "10.0.0.2/24", "fd00::2/64");
        let _far = stack(other, "10.0.0.1/24", "fd00::1/64");
        let alive = Alive::new().expect("a descriptor");
        alive.set(&section("both", "CheckAlive = 10.0.0.1, fd00::1\nCheckAliveInterval = 1\n"));
        alive.watch(&own).expect("a thread");
        let until = Instant::now() + Duration::from_secs(60);
        while alive.answers().0.iter().any(|&(_, second)| second == 0) {
            assert!(Instant::now() < until, "{:?}", alive.answers());
            thread::yield_now();
        }
        assert_eq!(alive.answers().0.len(), 2);
    }

    /// Carries packets from one cable to another, each after a time. Ends when nothing comes.
    fn delay(from: UnixDatagram, to: UnixDatagram, time: Duration) {
        from.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        thread::spawn(move || {
            let mut packet = [0; 1500];
            while let Ok(len) = from.recv(&mut packet) {
                thread::sleep(time);
                if to.send(&packet[..len]).is_err() {
                    break;
                }
            }
        });
    }

    #[test]
    fn an_answer_may_take_longer_than_the_interval() {
        let stack = |end, address: &str| {
            let device = device::device("cable", end).expect("a device");
            Arc::new(Stack::builder().device(device).address(address).build().expect("a stack"))
        };
        let [(one, near), (other, far)] = [(); 2].map(|()| UnixDatagram::pair().expect("a pair"));
        // A ping is there before the next one is sent, and so is its answer: none has to wait.
        let half = Duration::from_millis(750);
        let copy = |end: &UnixDatagram| end.try_clone().expect("a descriptor");
        delay(copy(&near), copy(&far), half);
        delay(far, near, half);
        let own = stack(one, "10.0.0.2/24");
        let _far = stack(other, "10.0.0.1/24");
        let alive = Alive::new().expect("a descriptor");
        alive.set(&section("slow", "CheckAlive = 10.0.0.1\nCheckAliveInterval = 1\n"));
        alive.watch(&own).expect("a thread");
        let until = Instant::now() + Duration::from_secs(20);
        while !alive.answers().1 {
            assert!(Instant::now() < until, "{:?}", alive.answers());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn answers_count_for_as_long_as_is_promised_and_rounds_have_a_bound() {
        let (second, millis) = (Duration::from_secs(1), Duration::from_millis(1));
        let mut rounds = Rounds::default();
        for sequence in 1..=3 {
            let at = second * sequence.into();
            rounds.add(Round { sequence, payload: [sequence as u8; PAYLOAD], at });
        }
        let has = |sequence, payload, now| rounds.has((sequence, &[payload; PAYLOAD]), now, second);
        assert!([1, 2, 3].map(|one: u8| has(one.into(), one, second * 4)) == [true; 3]);
        assert!(!has(1, 1, second * 4 + millis), "too late");
        assert!(has(2, 2, second * 4 + millis));
        assert!(!has(1, 2, second * 3) && !has(4, 4, second * 3), "nobody has sent it");
        assert!(!rounds.has((3, &[3; PAYLOAD - 1]), second * 3, second));
        for sequence in 4..100 {
            rounds.add(Round { sequence, payload: [0; PAYLOAD], at: second });
        }
        assert_eq!(rounds.0.len(), ROUNDS_MAX);
        assert!(rounds.has((99, &[0; PAYLOAD]), second, second));
    }

    #[test]
    fn a_clock_that_is_set_keeps_nobody_alive() {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let interval = Duration::from_secs(5);
        let mut watched = Watched { interval, answered: [(ip, None)].into() };
        let (uptime, second) = (Duration::from_secs(1000), 1_000_000_000);
        let later =
            |seconds, second| Moment { uptime: uptime + Duration::from_secs(seconds), second };
        assert_eq!(watched.answers(later(0, second)), (vec![(ip, 0)], false));
        watched.learn(ip, later(0, second));
        assert_eq!(watched.answers(later(7, second + 7)), (vec![(ip, second)], true));
        assert!(!watched.answers(later(8, second + 8)).1);
        assert!(!watched.answers(later(8, second - 3600)).1, "set back");
        assert!(watched.answers(later(7, second + 3600)).1, "put forward");
    }
}
