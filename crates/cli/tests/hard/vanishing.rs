//! Guests that vanish in the middle of a connection, and those of the lab's attacks that no test of
//! its own makes: many in one world, each with addresses or ports of its own.

use crate::common::{Family, in_namespace, run};
use crate::ground::{Foe, Ground, at, turn};
use crate::host::Host;
use crate::link::inside_and_called;
use crate::peers::{BASE, RECEIVER, SENDER};
use crate::victim::{DISCARD, ECHO, SOURCE, Victim};
use crate::world::link;
use bytes::Bytes;
use neap_lab::hostile::{Attack, AttackPlan, Attacker, packet};
use neap_lab::rng::Rng;
use neap_lab::world::{Actor, Outbox};
use neap_tcp::time::{Instant, Nanos};
use socket2::{Domain, Socket, Type};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Connections of one attack.
const COUNT: u32 = 10;
/// What a client of a published port sends before it closes.
const UPLOAD: usize = 5000;

/// Attacks of guests that connect: the port of each, the bytes that each connection sends, and what
/// it may cost the gateway.
const CALLING: [(Attack, u16, u32, u64); 7] = [
    (Attack::DiesInSynReceived, ECHO, 0, RECEIVER),
    // What the servers of these send finds nobody.
    (Attack::DiesInEstablished, SOURCE, 100, SENDER),
    (Attack::DiesInCloseWait, SOURCE, 0, SENDER),
    (Attack::DiesInLastAck, ECHO, 0, RECEIVER),
    (Attack::OrphanChurn, ECHO, 0, RECEIVER),
    (Attack::Holes, DISCARD, 0, RECEIVER),
    (Attack::OldTimestamps, DISCARD, 200_000, RECEIVER),
];

/// What they bring about.
const CALLING_AIMS: &[&[&str]] = &[
    &["state.SYN-RECV"],
    &["state.CLOSE-WAIT"],
    &["state.LAST-ACK"],
    &["TcpExtTCPOFOQueue"],
    &["TcpExtPAWSEstab"],
];

/// Attacks of guests that are called, and the published port of each.
const CALLED: [(Attack, u16); 4] = [
    (Attack::DiesInSynSent, 6001),
    (Attack::DiesInFinWait1, 6002),
    (Attack::DiesInFinWait2, 6003),
    (Attack::DiesInClosing, 6004),
];

/// What they bring about.
const CALLED_AIMS: &[&[&str]] =
    &[&["state.SYN-SENT"], &["state.FIN-WAIT-1"], &["state.FIN-WAIT-2"], &["state.CLOSING"]];

/// The same ports as `pasta` has them.
const CALLED_PORTS: &str = "6001-6004";

fn is_called(port: u16) -> bool {
    CALLED.iter().any(|&(_, called)| called == port)
}

/// Attackers that share a wire. Each takes what goes to its own address and port; the port is 0 if
/// it takes all of them.
struct Crowd {
    attackers: Vec<(SocketAddr, Attacker)>,
    /// It is dropped when the attack begins.
    begins: Option<Sender<()>>,
}

impl Crowd {
    /// Attacks from these addresses on those, with so many bytes of each connection.
    fn new(plans: impl IntoIterator<Item = (Attack, SocketAddr, SocketAddr, u32)>) -> Self {
        let attackers = plans.into_iter().zip(0..).map(|((attack, own, victim, bytes), seed)| {
            let (attacker, plan) = Attacker::new(Rng::new(seed));
            *plan.borrow_mut() = Some(AttackPlan {
                attack,
                own: own.ip(),
                victim,
                start: Instant::ZERO,
                stop: Instant::FAR_FUTURE,
                interval: Nanos::from_millis(10),
                burst: 2,
                count: COUNT,
                bytes,
                target: None,
            });
            (own, attacker)
        });
        Self { attackers: attackers.collect(), begins: None }
    }
}

impl Actor for Crowd {
    fn receive(&mut self, now: Instant, data: &Bytes, out: &mut Outbox) {
        let Some((_, to, _)) = packet::parse(data) else { return };
        let is_own = |own: &SocketAddr| own.ip() == to.ip() && [0, to.port()].contains(&own.port());
        if let Some((_, attacker)) = self.attackers.iter_mut().find(|(own, _)| is_own(own)) {
            attacker.receive(now, data, out);
        }
    }

    fn next(&self) -> Instant {
        let all = self.attackers.iter().map(|(_, attacker)| attacker.next());
        all.min().unwrap_or(Instant::FAR_FUTURE)
    }

    fn wake(&mut self, now: Instant, out: &mut Outbox) {
        self.begins = None;
        for (_, attacker) in &mut self.attackers {
            if attacker.next() <= now {
                attacker.wake(now, out);
            }
        }
    }
}

impl Foe for Crowd {
    fn part(&mut self, now: Instant, out: &mut Outbox) {
        self.attackers.iter_mut().for_each(|(_, attacker)| attacker.part(now, out));
    }
}

/// An attack after which the gateway has no more descriptors than before.
fn endure(ground: Ground, memory: u64, foe: &mut Crowd) {
    let pid = ground.victim.pid();
    let before = Victim::descriptors(pid);
    ground.endure_and(BASE + memory, foe, |figures| {
        let after = Victim::descriptors(pid);
        assert!(after <= before, "{before} descriptors, then {after}: {figures:?}");
    });
}

#[test]
fn guests_that_connect() {
    let _turn = turn();
    in_namespace(|| {
        let family = Family::V4;
        let ground = Ground { aims: CALLING_AIMS, ..Ground::new(family) };
        let plans = CALLING.into_iter().zip(70..).map(|((attack, port, bytes, _), host)| {
            let own = SocketAddr::new(Ipv4Addr::new(10, 66, 0, host).into(), 0);
            (attack, own, at(family, port), bytes)
        });
        let memory: u64 = CALLING.iter().map(|attack| u64::from(COUNT) * attack.3).sum();
        endure(ground, memory, &mut Crowd::new(plans));
    });
}

#[test]
fn guests_that_are_called() {
    let _turn = turn();
    in_namespace(|| {
        let family = Family::V4;
        inside_and_called(family, CALLED_PORTS, is_called, move |ground| {
            let [own, _] = link(family);
            // The container's kernel answers for the address, and leaves the ports to the attacker.
            run(&format!("ip rule add pref 5 ipproto tcp dport {CALLED_PORTS} blackhole"));
            run("ip rule add pref 10 lookup local");
            run("ip rule del pref 0");
            let (begins, begun) = channel();
            call(&ground.victim.world, own, begun);
            let port_of = |port| SocketAddr::new(own, port);
            let plans = CALLED.map(|(attack, port)| (attack, port_of(port), at(family, ECHO), 0));
            let mut foe = Crowd { begins: Some(begins), ..Crowd::new(plans) };
            let memory = CALLED.len() as u64 * u64::from(COUNT) * RECEIVER;
            endure(Ground { aims: CALLED_AIMS, ..ground }, memory, &mut foe);
        });
    });
}

/// Has clients in the world use all published ports, once the attack has begun.
fn call(world: &Host, host: IpAddr, begun: Receiver<()>) {
    world.inside(|| {
        thread::spawn(move || {
            // The sender says nothing: it is dropped.
            let _ = begun.recv();
            for (_, port) in CALLED {
                for _ in 0..COUNT {
                    upload(SocketAddr::new(host, port)).expect("the gateway takes it");
                }
            }
        });
    });
}

/// Sends a server something, and closes.
fn upload(to: SocketAddr) -> std::io::Result<()> {
    let mut socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(Ipv4Addr::new(10, 9, 0, 77).into(), 0).into())?;
    socket.connect(&to.into())?;
    socket.write_all(&[7; UPLOAD])
}

/// Where each attack of the lab is made on a gateway: the end of a test's name.
const fn test_of(attack: Attack) -> &'static str {
    match attack {
        Attack::AckDivision => "peers::v4::acks_in_many_parts",
        Attack::OptimisticAck => "peers::v4::optimistic_acks",
        Attack::SackLies => "peers::v4::storms_of_sack",
        Attack::Reneging => "peers::v4::reneging",
        Attack::WindowShrink => "peers::v4::windows_that_shrink",
        Attack::TinyMss => "peers::v4::a_tiny_mss",
        Attack::FutureTimestamps => "peers::v4::timestamps_of_the_future",
        Attack::Overlap => "peers::v4::data_that_overlaps",
        Attack::Blind => "floods::v4::injection_into_a_known_connection",
        Attack::SynFlood => "floods::v4::syns",
        Attack::SegmentFlood => "peers::v4::segments_of_any_kind",
        Attack::TinySegments => "peers::v4::tiny_segments",
        Attack::NeverReads => "peers::v4::windows_of_zero",
        Attack::DiesInSynReceived
        | Attack::DiesInEstablished
        | Attack::DiesInCloseWait
        | Attack::DiesInLastAck
        | Attack::OrphanChurn
        | Attack::Holes
        | Attack::OldTimestamps => "vanishing::guests_that_connect",
        Attack::DiesInSynSent
        | Attack::DiesInFinWait1
        | Attack::DiesInFinWait2
        | Attack::DiesInClosing => "vanishing::guests_that_are_called",
    }
}

#[test]
fn each_attack_of_the_lab_is_made_on_a_gateway() {
    let own = std::env::current_exe().expect("the test knows its binary");
    let output = std::process::Command::new(own).arg("--list").output().expect("it runs");
    let tests = String::from_utf8(output.stdout).expect("text");
    for &attack in Attack::ALL {
        let name = test_of(attack);
        assert!(tests.contains(&format!("{name}: test")), "{attack:?}: no test {name}");
        let is_here =
            CALLING.iter().any(|of| of.0 == attack) || CALLED.iter().any(|of| of.0 == attack);
        assert_eq!(is_here, name.starts_with("vanishing"), "{attack:?}");
    }
}
