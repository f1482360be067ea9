//! Hostile peers of a scenario: where they are and which host they attack.

use super::Builder;
use super::session;
use crate::app::group::{Group, GroupConfig, SharedGroupLog, Traffic};
use crate::hostile::{Attack, AttackPlan, Attacker, SessionAddresses};
use crate::rng::Rng;
use crate::scenario::model::HostileSpec;
use crate::scenario::source::ScenarioError;
use crate::scenario::units::Time;
use crate::world::{ActorId, HostId};
use core::net::SocketAddr;
use neap_stack::stack::{ConnectOptions, ListenOptions};
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos};
use std::cell::RefCell;
use std::rc::Rc;
use toml::Spanned;

/// The port of the first victim, and that of an attacker who is called.
const FIRST_PORT: u16 = 6001;

/// The victim gives a peer up that says nothing for so long.
const IDLE: Nanos = Nanos::from_secs(30);
const PROBE: Nanos = Nanos::from_secs(5);

/// A hostile peer at work.
pub(crate) struct HostilePeer {
    pub(crate) name: String,
    pub(crate) attack: Attack,
    /// The host that it attacks.
    pub(crate) target: HostId,
    pub(crate) actor: ActorId,
    plan: Rc<RefCell<Option<AttackPlan>>>,
    /// What the victim's application comes to.
    pub(crate) log: Option<SharedGroupLog>,
}

/// What the victim does: it answers each request with so much, or sends so much and leaves.
fn traffic(attack: Attack) -> Traffic {
    let (request, response) = match attack {
        Attack::Overlap
        | Attack::TinySegments
        | Attack::SegmentFlood
        | Attack::OldTimestamps
        | Attack::FutureTimestamps => (10_000, 100),
        Attack::NeverReads => (100, 10_000_000),
        Attack::TinyMss => (100, 20_000),
        _ => (1000, 300_000),
    };
    match attack.is_called() {
        true => Traffic::Bulk { bytes: Some(5000), write: 5000 },
        false => Traffic::RequestResponse { request, response, think: Nanos::ZERO, barrier: false },
    }
}

/// Bytes that the attacker sends on each connection.
const fn bytes(attack: Attack) -> u32 {
    match attack {
        Attack::Overlap
        | Attack::TinySegments
        | Attack::SegmentFlood
        | Attack::OldTimestamps
        | Attack::FutureTimestamps => 200_000,
        Attack::DiesInLastAck | Attack::Holes | Attack::OrphanChurn => 0,
        _ => 1000,
    }
}

impl<'a> Builder<'a> {
    /// Hostile peers get their names; what they do they are told later.
    pub(super) fn actors(&mut self) -> Result<Vec<HostilePeer>, ScenarioError> {
        let mut all = Vec::new();
        let scenario = self.scenario;
        for (index, (name, spanned)) in scenario.hostile.iter().enumerate() {
            let rng = Rng::new(scenario.seed).fork(6).fork(index as u64);
            let (attacker, plan) = Attacker::new(rng);
            let actor = self.world.add_actor(attacker);
            if !self.name_actor(name, actor) {
                return Err(self.source.error(spanned, "is a host or a router already"));
            }
            let attack = spanned.get_ref().attack;
            let target = self.host(&spanned.get_ref().target)?;
            let name = name.clone();
            all.push(HostilePeer { name, attack, target, actor, plan, log: None });
        }
        Ok(all)
    }

    /// Tells hostile peers what to do, and starts what they attack.
    pub(super) fn unleash(
        &mut self,
        start: Instant,
        sessions: &[session::RunningSession],
        hostiles: &mut [HostilePeer],
    ) -> Result<(), ScenarioError> {
        let scenario = self.scenario;
        for (index, (spanned, running)) in
            scenario.hostile.values().zip(hostiles.iter_mut()).enumerate()
        {
            let hostile: &HostileSpec = spanned.get_ref();
            let (interval, count) = self.pace(spanned)?;
            let host = self.host(&hostile.target)?;
            let Some(own) = self.address_of(running.actor) else {
                return Err(self.source.error(spanned, "no link ends at this peer"));
            };
            let port = FIRST_PORT + index as u16;
            let victim = SocketAddr::new(self.reach(host, host, &hostile.target)?, port);
            let begin = start + hostile.start.map_or(Nanos::ZERO, |Time(time)| time);
            let target = self.target(hostile, sessions)?;
            if target.is_none() {
                let caller = SocketAddr::new(own, port);
                let log = self.victim(spanned, host, victim, caller, begin)?;
                running.log = Some(log);
            }
            *running.plan.borrow_mut() = Some(AttackPlan {
                attack: hostile.attack,
                own,
                victim,
                start: begin,
                stop: start + hostile.stop.0,
                interval,
                burst: hostile.burst.unwrap_or(10),
                count,
                bytes: bytes(hostile.attack),
                target,
            });
        }
        Ok(())
    }

    /// The time between two turns of a peer, and its connections.
    fn pace(&self, spanned: &Spanned<HostileSpec>) -> Result<(Nanos, u32), ScenarioError> {
        let hostile = spanned.get_ref();
        let error = |key, what: &str| Err(self.source.error_in(spanned.span(), key, what));
        let interval = hostile.interval.map_or(Nanos::from_millis(100), |Time(time)| time);
        if interval == Nanos::ZERO {
            return error("interval", "must be longer than 0: else all bursts come at one instant");
        }
        let (count, most) = (hostile.count.unwrap_or(1), hostile.attack.most_connections());
        if count > most {
            return error("count", &format!("must be at most {most}: each connection has a port"));
        }
        Ok((interval, count))
    }

    /// The session that a peer off the path attacks.
    fn target(
        &self,
        hostile: &HostileSpec,
        sessions: &[session::RunningSession],
    ) -> Result<Option<SessionAddresses>, ScenarioError> {
        match (&hostile.session, hostile.attack) {
            (Some(name), Attack::Blind) => {
                let session = sessions.iter().find(|session| session.name == *name.get_ref());
                let Some(session) = session else {
                    return Err(self.source.error(name, "there is no such session"));
                };
                let log = session.client.clone();
                Ok(Some(Rc::new(move || {
                    let log = log.borrow();
                    let handle = log.handle.as_ref()?;
                    Some((handle.local_addr(), handle.remote_addr()))
                })))
            }
            (Some(name), _) => Err(self.source.error(name, "is for the attack \"blind\" only")),
            (None, Attack::Blind) => {
                Err(self.source.error(&hostile.target, "this attack needs a session"))
            }
            (None, _) => Ok(None),
        }
    }

    /// The application that is attacked.
    fn victim(
        &mut self,
        spanned: &Spanned<HostileSpec>,
        host: HostId,
        local: SocketAddr,
        caller: SocketAddr,
        begin: Instant,
    ) -> Result<SharedGroupLog, ScenarioError> {
        let attack = spanned.get_ref().attack;
        let options = SocketOptions {
            keepalive: true,
            keepalive_idle: Some(IDLE),
            keepalive_interval: Some(PROBE),
            ..SocketOptions::default()
        };
        let group = Group::new(GroupConfig {
            traffic: traffic(attack),
            read_rate: None,
            polls: false,
            client: ConnectOptions { options: options.clone(), ..ConnectOptions::default() },
            server: ListenOptions { options, ..ListenOptions::default() },
        });
        if attack.is_called() {
            let rng = Rng::new(self.scenario.seed).fork(7);
            for index in 0..spanned.get_ref().count.unwrap_or(1) {
                let rng = rng.fork(index.into());
                let app = group.client(caller, begin, Instant::FAR_FUTURE, rng);
                self.world.add_app(host, app);
            }
        } else {
            let server = group.server(self.world.stack(host), local);
            let server = server.map_err(|error| self.source.error(spanned, error))?;
            self.world.add_app(host, server);
        }
        Ok(group.log())
    }
}
