//! A network namespace per test, a stack on a TUN in it, and data that can be recognised.

pub(crate) mod foreign;
mod processes;

use std::any::type_name;
use std::env;
use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use neap::info::{Counter, TxBlocked};
use neap::time::Nanos;
use neap::{SocketOption, Stack};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The longest that a test may take: far above what it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Begin of what a test in a namespace prints and the test outside repeats.
const FIGURES: &str = "figures: ";

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
pub(crate) fn skip(reason: &str) {
    writeln!(io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// Runs the calling test in a process of its own, in a network namespace that ends with it: the
/// test binary starts itself again for that. `test` must be written in the test function itself,
/// whose name is taken from it.
pub(crate) fn in_namespace<F: FnOnce()>(test: F) {
    if env::var_os(processes::INSIDE).is_some() {
        run("ip link set lo up");
        return test();
    }
    let flags = match flags_of_unshare() {
        Ok(flags) => flags,
        Err(reason) => return skip(reason),
    };
    let path = type_name::<F>().split_once("::").map_or("", |(_, path)| path);
    let name = path.split("::{{closure}}").next().unwrap_or_default();
    let own = env::current_exe().expect("the test knows its binary");
    let mut command = Command::new("unshare");
    command.arg(flags).arg(own).args(["--exact", name, "--nocapture"]);
    let ended = processes::run_inside(&mut command, PATIENCE);
    ended.expect_passed(name);
    let (out, err) = (ended.out, ended.err);
    for line in err.lines().filter_map(|line| line.strip_prefix("SKIP: ")) {
        skip(line);
    }
    for figures in out.lines().filter_map(|line| line.split_once(FIGURES)) {
        println!("{name}: {}", figures.1);
    }
}

/// How to make a namespace with a TUN interface here, if that is possible.
fn flags_of_unshare() -> Result<&'static str, &'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        ["-n", "-rn"].into_iter().find(|flags| {
            let probe = "ip tuntap add dev probe mode tun && ip tuntap del dev probe mode tun";
            let output = Command::new("unshare").args([flags, "sh", "-c", probe]).output();
            output.is_ok_and(|output| output.status.success())
        })
    });
    found.ok_or("no network namespace with a TUN interface (unshare, ip tuntap add)")
}

/// Runs a command line; it must succeed. Returns what it printed.
pub(crate) fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().expect("a program")).args(words).output().expect(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A version of IP with its two addresses: the kernel's end of a link, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) fn kernel(self) -> IpAddr {
        self.text("10.9.0.1", "fd00:9::1")
    }

    pub(crate) fn ours(self) -> IpAddr {
        self.text("10.9.0.2", "fd00:9::2")
    }

    pub(crate) fn cidr(self, address: IpAddr) -> String {
        format!("{address}/{}", if self == Self::V4 { 24 } else { 64 })
    }

    pub(crate) fn text(self, v4: &str, v6: &str) -> IpAddr {
        let text = if self == Self::V4 { v4 } else { v6 };
        text.parse().expect("an address")
    }

    /// A stack on a TUN named `t0`.
    pub(crate) fn stack(self) -> Stack {
        let stack = Stack::builder()
            .tun("t0")
            .host_address(self.cidr(self.kernel()))
            .address(self.cidr(self.ours()))
            .build()
            .expect("a stack on a TUN");
        self.await_kernel();
        stack
    }

    /// Waits until the kernel takes packets for its address. A work queue makes the route of an
    /// address of IPv6, and packets that come before are dropped.
    pub(crate) fn await_kernel(self) {
        let IpAddr::V6(address) = self.kernel() else { return };
        let route = format!("{:032x} 80 ", address.to_bits());
        while !std::fs::read_to_string("/proc/net/ipv6_route").expect("routes").contains(&route) {
            thread::yield_now();
        }
    }

    /// A listener of the kernel that the stack can reach.
    pub(crate) fn kernel_listener(self) -> (std::net::TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind((self.kernel(), 0)).expect("bind");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    /// A listener of the stack that the kernel can reach.
    pub(crate) fn listener(self, stack: &Stack) -> (neap::TcpListener, SocketAddr) {
        let any = SocketAddr::new(self.ours(), 0);
        let listener = neap::TcpListener::bind(stack, any).expect("bind");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    /// A connection that the stack opened, and the kernel's end of it.
    pub(crate) fn pair(self, stack: &Stack) -> (neap::TcpStream, std::net::TcpStream) {
        let (listener, address) = self.kernel_listener();
        let ours = neap::TcpStream::connect(stack, address).expect("connect");
        let (theirs, from) = listener.accept().expect("accept");
        assert_eq!(from, ours.local_addr().expect("an address"));
        (ours, theirs)
    }

    /// Connections that the stack opened, and the kernel's ends of them.
    pub(crate) fn pairs(
        self,
        stack: &Stack,
        count: usize,
    ) -> Vec<(neap::TcpStream, std::net::TcpStream)> {
        allow_descriptors();
        let (listener, address) = self.kernel_listener();
        let pair = |_| {
            let ours = neap::TcpStream::connect(stack, address).expect("connect");
            (ours, listener.accept().expect("accept").0)
        };
        (0..count).map(pair).collect()
    }

    /// Five connections whose peers are probed every other second, and answer.
    pub(crate) fn probed_pairs(self, stack: &Stack) -> Vec<(neap::TcpStream, std::net::TcpStream)> {
        let pairs = self.pairs(stack, 5);
        for (ours, _) in &pairs {
            let idle = SocketOption::KeepAliveIdle(Nanos::from_secs(1));
            ours.set_option(idle).expect("a second");
            // Longer than that, so that each timer that goes off sends a probe.
            let interval = SocketOption::KeepAliveInterval(Nanos::from_secs(2));
            ours.set_option(interval).expect("two seconds");
            ours.set_option(SocketOption::KeepAlive(true)).expect("set");
        }
        pairs
    }
}

/// Lets this process have as many descriptors as it may.
pub(crate) fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, most).expect("a limit up to the hard one");
}

/// A stream of bytes that tells at each place whether it is the right one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern(pub(crate) u64);

impl Pattern {
    /// Bytes `8 * index` to `8 * index + 7`.
    fn word(self, index: u64) -> [u8; 8] {
        let z = self.0.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).to_le_bytes()
    }

    pub(crate) fn fill(self, offset: u64, buf: &mut [u8]) {
        let head = (8 - offset as usize % 8) % 8;
        let (head, rest) = buf.split_at_mut(head.min(buf.len()));
        let word = self.word(offset / 8);
        head.copy_from_slice(&word[offset as usize % 8..][..head.len()]);
        let first = offset.div_ceil(8);
        for (chunk, index) in rest.chunks_mut(8).zip(first..) {
            chunk.copy_from_slice(&self.word(index)[..chunk.len()]);
        }
    }

    pub(crate) fn bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(0, &mut bytes);
        bytes
    }

    /// Panics at the first byte that is not the one that belongs at `offset`.
    pub(crate) fn check(self, offset: u64, got: &[u8]) {
        let mut wanted = vec![0; got.len()];
        self.fill(offset, &mut wanted);
        if let Some(at) = (0..got.len()).find(|&at| got[at] != wanted[at]) {
            let end = got.len().min(at + 16);
            let place = offset + at as u64;
            panic!("at byte {place}: got {:?}, not {:?}", &got[at..end], &wanted[at..end]);
        }
    }

    /// Writes the first `len` bytes, in writes of growing size.
    pub(crate) fn send(self, to: &mut impl Write, len: u64) {
        let mut buf = vec![0; 256 << 10];
        let mut offset = 0;
        let mut size = 1;
        while offset < len {
            let chunk = &mut buf[..size.min((len - offset) as usize)];
            self.fill(offset, chunk);
            to.write_all(chunk).unwrap_or_else(|error| panic!("write at {offset}: {error}"));
            offset += chunk.len() as u64;
            size = (size * 3 + 1).min(256 << 10);
        }
    }

    /// Reads `len` bytes, each of which must be right.
    pub(crate) fn receive(self, from: &mut impl Read, len: u64) {
        let mut buf = vec![0; 256 << 10];
        let mut offset = 0;
        while offset < len {
            let room = buf.len().min((len - offset) as usize);
            let got = from
                .read(&mut buf[..room])
                .unwrap_or_else(|error| panic!("read at {offset}: {error}"));
            assert!(got > 0, "the stream ends at {offset} of {len}");
            self.check(offset, &buf[..got]);
            offset += got as u64;
        }
    }
}

/// The stream must be over.
pub(crate) fn expect_end(from: &mut impl Read) {
    assert_eq!(from.read(&mut [0; 16]).expect("the end of the stream"), 0);
}

/// Waits for something that nobody tells of; shows what it last was if it never comes.
pub(crate) fn eventually<T: Debug>(what: impl Fn() -> T, is_right: impl Fn(&T) -> bool) -> T {
    let begin = Instant::now();
    loop {
        let now = what();
        if is_right(&now) {
            return now;
        }
        assert!(begin.elapsed() < PATIENCE / 4, "still {now:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Writes to a peer that reads nothing until it has closed its window and no more is taken.
pub(crate) fn fill(stream: &neap::TcpStream) {
    let is_shut = || stream.info().blocked == TxBlocked::Rwnd;
    let mut stream = stream;
    while Write::write(&mut stream, &[0; 1 << 16]).is_ok() || !is_shut() {}
}

/// No connection is left, and nobody holds memory for one: all credits came back.
pub(crate) fn expect_nothing_left(stack: &Stack, listeners: usize) {
    let host = stack.host();
    eventually(
        || host.usage(),
        |usage| {
            usage.tcp.connections == 0
                && usage.tcp.time_wait == 0
                && usage.tcp.listeners == listeners
                && usage.names == listeners
                && usage.loopback_bytes == 0
        },
    );
    expect_nothing_below(stack);
}

/// Qdiscs, devices and the accounts of all flows are empty.
pub(crate) fn expect_nothing_below(stack: &Stack) {
    let host = stack.host();
    eventually(
        || {
            let ports = host.interfaces().into_iter().flat_map(|each| each.ports);
            let queued: u64 = ports.map(|port| port.ring_bytes + port.pieces as u64).sum();
            let flows = host.flows();
            let below: u64 = flows.iter().map(|flow| flow.info.below_bytes).sum();
            (queued, below)
        },
        |left| *left == (0, 0),
    );
}

/// Times that a thread has slept, by its folder in `/proc`. One that has ended counts for nothing.
pub(crate) fn sleeps_of(thread: &Path) -> u64 {
    switches_of(thread, "voluntary_ctxt_switches:")
}

fn switches_of(thread: &Path, kind: &str) -> u64 {
    let status = std::fs::read_to_string(thread.join("status")).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix(kind));
    count.map_or(0, |count| count.trim().parse().expect("a number"))
}

/// Times that threads of this process were woken after they had slept, the calling thread excepted.
fn wake_ups() -> u64 {
    let own = std::fs::canonicalize("/proc/thread-self").expect("a thread");
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let threads = threads.map(|thread| thread.expect("a thread").path());
    let others = threads.filter(|thread| thread.file_name() != own.file_name());
    others.map(|thread| sleeps_of(&thread)).sum()
}

/// Waits until all other threads sleep, and then fails if one is woken within two seconds. The
/// first wait is longer than the retransmission timer of a SYN, which goes off once more than it is
/// needed.
pub(crate) fn expect_that_nothing_wakes() {
    let within = |window: Duration| {
        let before = wake_ups();
        thread::sleep(window);
        wake_ups() - before
    };
    eventually(|| within(Duration::from_millis(1200)), |woken| *woken == 0);
    assert_eq!(within(Duration::from_secs(2)), 0, "wake-ups of a stack with nothing to do");
}

/// What was counted of a process and of its machine up to some time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    woken: u64,
    probes: u64,
    /// Times that threads of this process lost the processor, and how long they waited for one.
    preempted: u64,
    waited: Duration,
    /// Ticks that the host of this machine gave to others.
    stolen: u64,
}

impl Counts {
    fn of(stack: &Stack) -> Self {
        let probes = stack.host().tcp_counter(Counter::KeepAlive);
        let mut counts = Self { woken: wake_ups(), probes, ..Self::default() };
        for thread in std::fs::read_dir("/proc/self/task").expect("threads") {
            let thread = thread.expect("a thread").path();
            let word = |file: &str, index| {
                let text = std::fs::read_to_string(thread.join(file)).unwrap_or_default();
                text.split_whitespace().nth(index).map_or(0, |word| word.parse().expect("a number"))
            };
            counts.waited += Duration::from_nanos(word("schedstat", 1));
            counts.preempted += switches_of(&thread, "nonvoluntary_ctxt_switches:");
        }
        let stat = std::fs::read_to_string("/proc/stat").expect("figures of the machine");
        let stolen = stat.split_whitespace().nth(8);
        counts.stolen = stolen.map_or(0, |ticks| ticks.parse().expect("a number"));
        counts
    }

    fn since(self, before: Self) -> Self {
        Self {
            woken: self.woken.saturating_sub(before.woken),
            probes: self.probes.saturating_sub(before.probes),
            preempted: self.preempted.saturating_sub(before.preempted),
            waited: self.waited.saturating_sub(before.waited),
            stolen: self.stolen.saturating_sub(before.stolen),
        }
    }

    /// Whether the machine kept a thread from running. Then a thread sleeps also while it waits for
    /// a lock or for an answer, and others step in.
    fn was_busy(self) -> bool {
        self.preempted > 0 || self.stolen > 0 || self.waited > BUSY_WAIT
    }
}

/// Time that threads wait for a processor in a window of a machine with nothing else to do: far
/// less.
const BUSY_WAIT: Duration = Duration::from_millis(1);

/// Waits until peers were probed and a pause has followed, in which nothing is on its way to be
/// counted.
fn after_probes(stack: &Stack) -> Counts {
    let probes = || stack.host().tcp_counter(Counter::KeepAlive);
    let begin = Instant::now();
    let (first, mut latest, mut since) = (probes(), probes(), begin);
    while latest == first || since.elapsed() < Duration::from_millis(200) {
        assert!(begin.elapsed() < PATIENCE / 4, "{latest} probes");
        thread::sleep(Duration::from_millis(20));
        if probes() != latest {
            (latest, since) = (probes(), Instant::now());
        }
    }
    Counts::of(stack)
}

/// Fails if other threads are woken more often than idle peers are probed, of which there must be
/// some ([`Family::probed_pairs`]): in any round of probes in which the machine was not busy. Two
/// rounds have to be right. One in which it was busy may have any number, and another follows.
pub(crate) fn expect_one_wake_up_for_each_probe(stack: &Stack) {
    let (mut rounds, mut right) = (Vec::new(), 0);
    let mut before = after_probes(stack);
    while rounds.len() < 20 {
        let now = after_probes(stack);
        let round = now.since(before);
        before = now;
        rounds.push(round);
        if round.woken <= round.probes {
            right += 1;
            if right == 2 {
                return;
            }
        } else {
            assert!(round.was_busy(), "wake-ups without probes: {rounds:?}");
        }
    }
    panic!("wake-ups without probes: {rounds:?}");
}
