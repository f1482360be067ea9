//! Where attacks take place: victim, attacker and an honest flow; and the bars of an attack.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use neap_lab::world::{Actor, Outbox};

use crate::common::foreign::{addresses, networks};
use crate::common::{Family, run};
use crate::flow::{Flow, Newcomers};
use crate::memory::Memory;
use crate::victim::{ECHO, Victim};
use crate::wire::{Reborn, Wire};

/// Memory that the victim may have more afterwards than before: heaps do not give all of it back.
const RESIDUE: u64 = 8 << 20;
/// Part of its rate that the honest flow keeps.
const SHARE: f64 = 0.5;
/// Attacks until one is fair.
const TRIES: u32 = 5;
/// Length of an attack where nobody asks for another.
const LENGTH: Duration = Duration::from_millis(500);
/// How long the rate of the flow without an attack is measured.
const BEFORE: Duration = Duration::from_millis(250);
/// How long the victim may take to get rid of an attacker that was started anew.
const RELIEF: Duration = Duration::from_secs(20);
/// Time after which the attacker parts again from connections that are still there: longer than the
/// pause between two challenges.
const AGAIN: Duration = Duration::from_millis(600);
/// How long an attack goes on at most until it reaches what it aims at.
const PATIENCE: Duration = Duration::from_secs(60);
/// Descriptors of a victim that lacks none.
pub(crate) const DESCRIPTORS: u32 = 1024;

static TURN: RwLock<()> = RwLock::new(());

/// Waits until no other of these tests runs: an attack has the machine to itself.
pub(crate) fn turn() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no attack runs. What has no bar for a rate may run beside others of its kind.
pub(crate) fn shared_turn() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// How long an attack lasts.
pub(crate) fn length() -> Duration {
    let asked = std::env::var("NEAP_HARD_SECONDS").ok();
    asked.map_or(LENGTH, |text| Duration::from_secs_f64(text.parse().expect("seconds")))
}

/// An attacker.
pub(crate) trait Foe: Actor {
    /// Says goodbye to the connections that it knows.
    fn part(&mut self, now: neap_tcp::time::Instant, out: &mut Outbox);
}

impl Foe for neap_lab::hostile::Attacker {
    fn part(&mut self, now: neap_tcp::time::Instant, out: &mut Outbox) {
        self.reset(now, out);
    }
}

/// Groups of figures, by name.
pub(crate) type Aims = &'static [&'static [&'static str]];

/// Everything that an attack needs.
pub(crate) struct Ground {
    pub(crate) victim: Victim,
    pub(crate) wire: Wire,
    pub(crate) flow: Flow,
    /// Where new clients must be served while the attack goes on.
    pub(crate) newcomers: Option<SocketAddr>,
    /// Figures that the attack has to move, one of each group. It goes on until it has: a machine
    /// that is busy with others lets it take longer.
    pub(crate) aims: Aims,
}

impl Ground {
    pub(crate) fn new(family: Family) -> Self {
        Self::around(family, Victim::start(family, DESCRIPTORS), at(family, ECHO))
    }

    /// A victim that is the gateway to the networks of others. The honest flow goes there.
    pub(crate) fn of_gateway(family: Family) -> Self {
        let victim = Victim::gateway(family);
        for network in networks(family) {
            run(&format!("ip route add {network} dev t0"));
        }
        Self::around(family, victim, SocketAddr::new(addresses(family)[0], ECHO))
    }

    fn around(family: Family, victim: Victim, to: SocketAddr) -> Self {
        Self::on(victim, Wire::open(family), to)
    }

    /// A victim, an attacker's wire to it, and an honest flow to a server.
    pub(crate) fn on(victim: Victim, wire: Wire, to: SocketAddr) -> Self {
        let flow = Flow::begin(to);
        flow.wait_for(20);
        Self { victim, wire, flow, newcomers: None, aims: &[] }
    }

    /// Has the victim attacked, and holds the result against the bars: memory never exceeds that
    /// before the attack by more than `memory` bytes, the honest flow keeps half of its rate, and
    /// afterwards everything is free again.
    pub(crate) fn endure(self, memory: u64, foe: &mut dyn Foe) {
        self.endure_and(memory, foe, |_| {});
    }

    /// As [`endure`](Self::endure). In the end `look` judges the victim's figures after the attack,
    /// while the victim still serves.
    pub(crate) fn endure_and(
        mut self,
        memory: u64,
        foe: &mut dyn Foe,
        look: impl FnOnce(&Figures),
    ) {
        Memory::forget_peak(self.victim.pid());
        let start = Memory::of(self.victim.pid());
        let newcomers = self.newcomers.map(Newcomers::begin);
        let mut round = self.round(foe);
        for _ in 1..TRIES {
            if round.is_fair() {
                break;
            }
            // Another program may have had the machine meanwhile.
            round = self.round(foe);
        }
        self.attack_on(foe);
        let Round { before, during, cpu } = round;
        let peak = Memory::of(self.victim.pid()).peak;
        let report = self.victim.report();
        let served = newcomers.map(Newcomers::end);
        let (sent, received) = (self.wire.sent, self.wire.received);
        let relief = self.relieve(foe);
        let left = self.victim.report();
        let fared = self.flow.end();
        let end = Memory::of(self.victim.pid());
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "figures: sent {sent} got {received} newcomers {served:?} | memory {:.1} peak {:.1} MiB, \
             own {:.1} end {:.1} MiB | CPU {:.0} % | honest flow {:.2} -> {:.2} MB/s | free after {:.1} s | {report:?}",
            mib(start.resident),
            mib(peak),
            mib(start.own),
            mib(end.own),
            100.0 * cpu,
            before / 1e6,
            during / 1e6,
            relief.as_secs_f64(),
        );
        assert_eq!(fared, Ok(()), "the honest flow");
        assert!(served.is_none_or(|count| count > 0), "no newcomer was served");
        assert!(round.is_fair(), "the honest flow had {before:.0} and then {during:.0}");
        assert!(peak <= start.resident + memory, "memory went from {start:?} to {peak}");
        assert!(is_free(&left, 1), "not free: {left:?}");
        assert!(end.own <= start.own + RESIDUE, "memory went from {start:?} to {end:?}");
        look(&report);
    }

    /// One attack, and the rates of the honest flow before and meanwhile.
    fn round(&mut self, foe: &mut dyn Foe) -> Round {
        let Self { victim, wire, flow, .. } = self;
        let (before, ()) = flow.rate_during(|| be_busy(BEFORE));
        let (began, worked) = (Instant::now(), victim.cpu());
        let (during, ()) = flow.rate_during(|| wire.play(foe, length(), || false));
        let cpu = (victim.cpu() - worked).as_secs_f64() / began.elapsed().as_secs_f64();
        Round { before, during, cpu }
    }

    /// The attack goes on until it has reached its aims, which it must.
    fn attack_on(&mut self, foe: &mut dyn Foe) {
        let begin = Instant::now();
        let Self { victim, wire, aims, .. } = self;
        while let Some(missed) = missed(aims, &victim.report()) {
            assert!(begin.elapsed() < PATIENCE, "none of {missed:?}: {:?}", victim.report());
            wire.play(foe, LENGTH, || false);
        }
    }

    /// The attacker parts from its connections, and is as if it was started anew. How long the
    /// victim took to be rid of it.
    fn relieve(&mut self, foe: &mut dyn Foe) -> Duration {
        let begin = Instant::now();
        let Self { victim, wire, .. } = self;
        let mut is_over = false;
        while !is_over && begin.elapsed() < RELIEF {
            // Where the numbers are not exact a challenge follows, which may be limited.
            let mut out = Outbox::new();
            foe.part(wire.now(), &mut out);
            wire.send(&mut out);
            let mut look = Instant::now();
            wire.play(&mut Reborn, AGAIN, || {
                if look <= Instant::now() {
                    look += Duration::from_millis(20);
                    is_over = is_free(&victim.report(), 1);
                }
                is_over
            });
        }
        begin.elapsed()
    }
}

/// Takes a processor for so long, as an attacker does: it would be on another machine, so what it
/// takes here is none of the harm.
fn be_busy(length: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < length {
        std::hint::spin_loop();
    }
}

/// Figures of one attack.
#[derive(Clone, Copy)]
struct Round {
    /// Bytes per second of the honest flow before the attack, beside somebody who is as busy as the
    /// attacker, and meanwhile.
    before: f64,
    during: f64,
    /// Processors that the victim kept busy.
    cpu: f64,
}

impl Round {
    fn is_fair(&self) -> bool {
        self.before > 0.0 && self.during >= self.before * SHARE
    }
}

/// Figures of a victim, by name.
pub(crate) type Figures = BTreeMap<String, u64>;

/// What figures of these names have counted together.
fn total(figures: &Figures, names: &[&str]) -> u64 {
    names.iter().filter_map(|&name| figures.get(name)).sum()
}

/// A group of which no figure has moved.
fn missed(aims: Aims, figures: &Figures) -> Option<&'static [&'static str]> {
    aims.iter().copied().find(|group| total(figures, group) == 0)
}

/// Whether a victim has so many connections and nothing else but TIME-WAIT, which lasts a minute.
pub(crate) fn is_free(report: &Figures, connections: u64) -> bool {
    let others = ["requests", "waiting", "loopback", "pending"];
    total(report, &["connections"]) == connections && total(report, &others) == 0
}

/// A port of the victim.
pub(crate) fn at(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(family.ours(), port)
}

/// The attacker's own address.
pub(crate) fn foe_address(family: Family) -> IpAddr {
    family.text("10.66.0.66", "fd00:66::66")
}

/// Makes a test over IPv4 and one over IPv6 of each function, which takes the [`Family`]. A name
/// in front is that of the function that gives them their turn.
macro_rules! for_each_family {
    ($($name:ident),+ $(,)?) => {
        $crate::ground::for_each_family!(turn: $($name),+);
    };
    ($turn:ident: $($name:ident),+ $(,)?) => {
        mod v4 {
            $crate::ground::for_each_family!(@ $turn V4 $($name)+);
        }
        mod v6 {
            $crate::ground::for_each_family!(@ $turn V6 $($name)+);
        }
    };
    (@ $turn:ident $family:ident $($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                let _turn = $crate::ground::$turn();
                $crate::common::in_namespace(|| super::$name($crate::common::Family::$family));
            }
        )+
    };
}
pub(crate) use for_each_family;
