//! Runs the events of a script on a host and stops at the first difference.

use super::ast::{
    Body, CallSpec, Event, EventKind, IcmpSpec, PacketSpec, Script, TcpSpec, ValueKind, When,
};
use super::calls::{Descriptors, Meaning, Prepared};
use super::compare;
use super::connections::Connections;
use super::constants;
use super::expression::{Assertion, Names};
use super::host::{Call, Host, Reply, Sent};
use super::report::{Clock, Difference, Failure, History};
use super::settings::Settings;
use super::wire::{self, Packet, Tcp};
use bytes::Bytes;
use core::net::SocketAddr;
use neap_tcp::time::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a packet that may come at any time is waited for.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// Bytes of `TCP_INFO` that are asked for.
const INFO_LEN: usize = 512;
const IPPROTO_TCP: i32 = 6;
const TCP_INFO: i32 = 11;
const EISCONN: i32 = 106;
const EALREADY: i32 = 114;
const EINPROGRESS: i32 = 115;

/// Timers that delay timestamps last up to so long.
const TICKING: Nanos = Nanos::from_secs(1);

/// A call that has not returned.
struct Blocked {
    event: Event,
    spec: CallSpec,
    prepared: Prepared,
    begin: Nanos,
    /// When it is to return.
    end: Nanos,
}

struct Runner<'a> {
    host: &'a mut dyn Host,
    settings: &'a Settings,
    connections: Connections,
    descriptors: Descriptors,
    /// Addresses that sockets are bound to.
    bound: BTreeMap<i64, SocketAddr>,
    /// Sockets that are connecting or connected.
    connecting: BTreeSet<i64>,
    /// Left and not yet expected.
    pending: VecDeque<Sent>,
    blocked: Option<Blocked>,
    /// The socket whose `TCP_INFO` assertions are about.
    watched: Option<i64>,
    history: History,
    /// Time of the event before.
    base: Nanos,
    /// By how much the clock was set back so far.
    late: Nanos,
}

/// Runs a script.
///
/// # Errors
/// [`Failure`]: the first difference, or that something cannot be run.
pub fn run(script: &Script, settings: &Settings, host: &mut dyn Host) -> Result<(), Failure> {
    let mut runner = Runner {
        host,
        settings,
        connections: Connections::new(settings.clone()),
        descriptors: Descriptors::default(),
        bound: BTreeMap::new(),
        connecting: BTreeSet::new(),
        pending: VecDeque::new(),
        blocked: None,
        watched: None,
        history: History::default(),
        base: Nanos::ZERO,
        late: Nanos::ZERO,
    };
    for event in &script.events {
        runner.event(event)?;
    }
    runner.finish(script)
}

/// First, last and intended time of an event.
struct Span {
    first: Nanos,
    last: Nanos,
    nominal: Option<Nanos>,
}

impl Runner<'_> {
    fn tolerance(&self) -> Nanos {
        self.settings.tolerance + self.host.slack(Nanos::ZERO)
    }

    /// What happened later than the script says moves all that follows.
    fn set_back(&mut self, nominal: Nanos, at: Nanos) {
        let late = at.saturating_sub(nominal);
        if late > Nanos::ZERO {
            self.late = self.late + late;
            self.host.set_back(late);
            for sent in &mut self.pending {
                sent.at = sent.at.saturating_sub(late);
            }
        }
    }

    fn span(&self, when: When) -> Span {
        let tolerance = self.tolerance();
        let (from, to, nominal) = match when {
            When::At(at) => (at, at, Some(at)),
            When::After(after) => (self.base + after, self.base + after, Some(self.base + after)),
            When::Between(from, to) => (from, to, None),
            When::AfterBetween(from, to) => (self.base + from, self.base + to, None),
            When::Any => {
                let last = self.base + PATIENCE;
                return Span { first: Nanos::ZERO, last, nominal: None };
            }
        };
        Span {
            first: from.saturating_sub(tolerance),
            last: to + tolerance + self.host.slack(to.saturating_sub(self.base)),
            nominal,
        }
    }

    fn event(&mut self, event: &Event) -> Result<(), Failure> {
        let span = self.span(event.when);
        if let EventKind::Expect(spec) = &event.kind {
            return self.expect(event, spec, &span);
        }
        let at = span.nominal.unwrap_or(self.base);
        self.reach(at)?;
        self.nothing_pending(event, at)?;
        self.set_back(at, self.host.now());
        let begin = self.base;
        self.base = at;
        match &event.kind {
            EventKind::Inject(spec) => self.inject(event, spec),
            EventKind::Call(spec) => self.call(event, spec, begin),
            EventKind::Assert(assertions) => self.assert(event, assertions),
            EventKind::Expect(_) => Ok(()),
        }
    }

    /// Takes what the host has to say now.
    fn collect(&mut self) -> Result<(), Failure> {
        while let Some(sent) = self.host.take_sent() {
            self.pending.push_back(sent);
        }
        if self.blocked.is_some()
            && let Some((at, reply)) = self.host.take_reply()
            && let Some(blocked) = self.blocked.take()
        {
            let tolerance = self.tolerance();
            let result = format!("{} = {}", blocked.event.text, show(&reply));
            let late = tolerance + self.host.slack(blocked.end.saturating_sub(blocked.begin));
            if at + tolerance < blocked.end || at > blocked.end + late {
                let what =
                    format!("the call returned at {}, not {}", Clock(at), Clock(blocked.end));
                return Err(self.difference(&blocked.event, what, Some((at, result))));
            }
            self.history.add(at, format!("... {}", blocked.event.text));
            self.returned(&blocked.event, &blocked.spec, &blocked.prepared, (at, &reply))?;
        }
        Ok(())
    }

    /// Lets time pass until `at`.
    fn reach(&mut self, at: Nanos) -> Result<(), Failure> {
        loop {
            self.collect()?;
            self.still_blocked()?;
            if self.host.now() >= at {
                return Ok(());
            }
            self.host.wait(at)?;
        }
    }

    fn still_blocked(&mut self) -> Result<(), Failure> {
        let slack = |blocked: &Blocked| blocked.end.saturating_sub(blocked.begin);
        let late = self.tolerance()
            + self.blocked.as_ref().map_or(Nanos::ZERO, |b| self.host.slack(slack(b)));
        match &self.blocked {
            Some(blocked) if self.host.now() > blocked.end + late => {
                let event = blocked.event.clone();
                Err(self.difference(&event, "the call still blocks".into(), None))
            }
            _ => Ok(()),
        }
    }

    /// Waits until no call blocks.
    fn settle(&mut self) -> Result<(), Failure> {
        while let Some(blocked) = &self.blocked {
            let span = blocked.end.saturating_sub(blocked.begin);
            let until =
                blocked.end + self.tolerance() + self.host.slack(span) + Nanos::from_micros(1);
            if self.host.now() < until {
                self.host.wait(until)?;
            }
            self.collect()?;
            self.still_blocked()?;
        }
        Ok(())
    }

    fn difference(&mut self, event: &Event, what: String, is: Option<(Nanos, String)>) -> Failure {
        let later: Vec<_> = self.pending.drain(..).take(4).collect();
        let later = later.iter().map(|sent| (sent.at, self.show(sent))).collect();
        Failure::Differs(Box::new(Difference {
            at: event.at,
            what,
            expected: event.text.clone(),
            is,
            history: self.history.clone(),
            later,
        }))
    }

    /// A packet in the language of scripts.
    fn show(&mut self, sent: &Sent) -> String {
        match wire::parse(&sent.packet) {
            Ok(Packet::Tcp(flow, ecn, segment)) => match self.connections.find(flow) {
                Some(index) => {
                    let ports = match self.connections.under_test() == Some(index) {
                        true => String::new(),
                        false => format!("{} > {} ", flow.from.port(), flow.to.port()),
                    };
                    let connection = self.connections.get(index);
                    let segment = connection.relative(&segment);
                    ports + &compare::show(ecn, &segment, connection)
                }
                None => format!("a segment from {} to {}", flow.from, flow.to),
            },
            Ok(Packet::Other(what)) => format!("> {what}"),
            Err(error) => error.to_string(),
        }
    }

    /// No packet left so long before this event that it should have been expected.
    fn nothing_pending(&mut self, event: &Event, at: Nanos) -> Result<(), Failure> {
        match self.pending.front() {
            Some(sent) if sent.at + self.tolerance() < at => self.unexpected(event),
            _ => Ok(()),
        }
    }

    fn unexpected(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(sent) = self.pending.pop_front() else { return Ok(()) };
        let is = (sent.at, self.show(&sent));
        Err(self.difference(
            event,
            "a packet left that the script does not expect".into(),
            Some(is),
        ))
    }

    fn finish(&mut self, script: &Script) -> Result<(), Failure> {
        self.settle()?;
        let end = self.host.now() + self.host.slack(Nanos::ZERO);
        self.reach(end)?;
        match script.events.last() {
            Some(event) if !self.pending.is_empty() => self.unexpected(event),
            _ => Ok(()),
        }
    }

    fn inject(&mut self, event: &Event, spec: &PacketSpec) -> Result<(), Failure> {
        self.history.add(self.host.now(), event.text.clone());
        let packet = match &spec.body {
            Body::Tcp(tcp) => self
                .connections
                .segment(spec.ports, tcp)
                .map(|(flow, segment)| segment.packet(flow, spec.ecn.unwrap_or_default())),
            Body::Icmp(icmp) => self.icmp(spec, icmp),
        };
        match packet {
            Ok(packet) => Ok(self.host.inject(packet)?),
            Err(what) => Err(super::cursor::SyntaxError { at: event.at, what }.into()),
        }
    }

    fn icmp(&mut self, spec: &PacketSpec, icmp: &IcmpSpec) -> Result<Bytes, String> {
        let (flow, seq) = self.connections.quoted(spec.ports, icmp.quoted.0)?;
        let quoted = Tcp {
            flags: 0x10,
            seq,
            ack: 0,
            window: 0,
            urgent: 0,
            options: Vec::new(),
            payload: Bytes::new(),
        };
        Ok(wire::icmp(icmp, self.settings.remote_ip, flow, &quoted, icmp.quoted.1))
    }

    fn expect(&mut self, event: &Event, spec: &PacketSpec, span: &Span) -> Result<(), Failure> {
        loop {
            self.collect()?;
            self.still_blocked()?;
            if !self.pending.is_empty() {
                break;
            }
            let before = self.host.now();
            if before > span.last {
                return Err(self.difference(event, "no packet came".into(), None));
            }
            self.host.wait(span.last + Nanos(1))?;
            if self.host.now() == before && self.host.now() > span.last {
                break;
            }
        }
        let Some(sent) = self.pending.pop_front() else {
            return Err(self.difference(event, "no packet came".into(), None));
        };
        self.packet(event, spec, span, &sent)?;
        self.base = span.nominal.unwrap_or(sent.at);
        self.set_back(self.base, sent.at);
        Ok(())
    }

    fn packet(
        &mut self,
        event: &Event,
        spec: &PacketSpec,
        span: &Span,
        sent: &Sent,
    ) -> Result<(), Failure> {
        let shown = self.show(sent);
        let is = Some((sent.at, shown.clone()));
        if sent.at < span.first || sent.at > span.last {
            let when = if sent.at < span.first { "early" } else { "late" };
            let nominal =
                span.nominal.map_or(String::new(), |at| format!(", not at {}", Clock(at)));
            let what = format!("the packet left too {when}, at {}{nominal}", Clock(sent.at));
            return Err(self.difference(event, what, is));
        }
        let found = match (wire::parse(&sent.packet), &spec.body) {
            (Ok(Packet::Tcp(flow, ecn, segment)), Body::Tcp(expected)) => {
                let is = self.connections.find(flow);
                let is_wanted = match spec.ports {
                    Some(ports) => ports == (flow.from.port(), flow.to.port()),
                    None => is == self.connections.under_test(),
                };
                match is {
                    Some(index) if is_wanted => {
                        self.compare(spec, expected, index, (ecn, &segment))
                    }
                    _ => vec!["the segment belongs to another connection".to_owned()],
                }
            }
            (Err(error), _) => vec![error.to_string()],
            (Ok(_), _) => vec!["the packet is of another protocol".to_owned()],
        };
        if !found.is_empty() {
            return Err(self.difference(event, found.join("; "), is));
        }
        self.history.add(sent.at, shown);
        Ok(())
    }

    fn compare(
        &mut self,
        spec: &PacketSpec,
        expected: &TcpSpec,
        index: usize,
        (ecn, segment): (neap_tcp::segment::Ecn, &Tcp),
    ) -> Vec<String> {
        let ticking =
            (self.settings.timestamp_tick, self.tolerance() + self.late + self.host.slack(TICKING));
        let connection = self.connections.get(index);
        let segment = connection.relative(segment);
        compare::differences(spec, expected, (ecn, &segment), connection, ticking)
    }

    fn call(&mut self, event: &Event, spec: &CallSpec, begin: Nanos) -> Result<(), Failure> {
        self.settle()?;
        let prepared = self.descriptors.prepare(spec, self.settings, event.at)?;
        match &prepared.meaning {
            // What is refused changes nothing.
            Meaning::Binds(..) | Meaning::Listens(_) if spec.errno.is_some() => {}
            Meaning::Connects(..) if spec.errno.as_deref() == Some("EISCONN") => {}
            Meaning::Binds(fd, address) => {
                self.bound.insert(*fd, *address);
            }
            Meaning::Listens(fd) => self.connections.listen(self.bound.get(fd).copied()),
            Meaning::Connects(fd, _) if self.connecting.contains(fd) => {}
            Meaning::Connects(fd, to) => {
                self.connecting.insert(*fd);
                let local = self.bound.get(fd).copied().filter(|local| local.port() != 0);
                self.connections.connect(local, *to);
                self.watched = Some(*fd);
            }
            Meaning::Accepts | Meaning::None => {}
        }
        self.history.add(self.host.now(), event.text.clone());
        let reply = self.host.call(prepared.call.clone(), event.until.is_some())?;
        let end = match (event.when, event.until) {
            (_, None) => None,
            (When::At(_), Some(until)) => Some(until),
            (_, Some(until)) => Some(begin + until),
        };
        match (reply, end) {
            (Some(reply), None) => self.returned(event, spec, &prepared, (self.host.now(), &reply)),
            (Some(reply), Some(end)) => {
                let now = self.host.now();
                if now + self.tolerance() < end {
                    let what = format!("the call did not block until {}", Clock(end));
                    return Err(self.difference(event, what, Some((now, show(&reply)))));
                }
                self.returned(event, spec, &prepared, (now, &reply))
            }
            (None, None) => Err(self.difference(
                event,
                "the call blocks; the script does not say so".into(),
                None,
            )),
            (None, Some(end)) => {
                let (event, spec) = (event.clone(), spec.clone());
                self.blocked = Some(Blocked { event, spec, prepared, begin: self.base, end });
                Ok(())
            }
        }
    }

    fn returned(
        &mut self,
        event: &Event,
        spec: &CallSpec,
        prepared: &Prepared,
        (at, reply): (Nanos, &Reply),
    ) -> Result<(), Failure> {
        let is = Some((at, format!("{}() = {}", spec.name, show(reply))));
        if let Err(what) = prepared.check.reply(reply) {
            return Err(self.difference(event, what, is));
        }
        let goes_on = [None, Some(EINPROGRESS), Some(EALREADY), Some(EISCONN)];
        if let Meaning::Connects(fd, _) = &prepared.meaning
            && !goes_on.contains(&reply.errno)
        {
            self.connecting.remove(fd);
        }
        if let Err(what) = self.descriptors.finish(prepared, reply, &spec.result) {
            return Err(self.difference(event, what, is));
        }
        if let (Call::Socket(..), Some(fd)) = (&prepared.call, self.opened(spec, reply)) {
            self.bound.remove(&fd);
            self.connecting.remove(&fd);
        }
        if prepared.meaning == Meaning::Accepts && reply.errno.is_none() {
            self.watched = self.opened(spec, reply);
        }
        Ok(())
    }

    /// The script's number of the descriptor that a call opened.
    fn opened(&self, spec: &CallSpec, reply: &Reply) -> Option<i64> {
        match spec.result.kind {
            ValueKind::Integer(fd) => Some(fd),
            _ => Some(reply.result),
        }
    }

    fn assert(&mut self, event: &Event, assertions: &[Assertion]) -> Result<(), Failure> {
        self.history.add(self.host.now(), event.text.clone());
        let fd = self.watched.and_then(|fd| self.descriptors.get(fd));
        let Some(fd) = fd else {
            return Err(self.difference(event, "there is no connection to ask".into(), None));
        };
        let reply = self.host.call(Call::GetOption(fd, IPPROTO_TCP, TCP_INFO, INFO_LEN), false)?;
        let reply = reply.unwrap_or_default();
        if reply.errno.is_some() {
            let what = format!("TCP_INFO: {}", show(&reply));
            return Err(self.difference(event, what, None));
        }
        let info = Info(&reply.data);
        for assertion in assertions {
            let what = match assertion.holds(&info) {
                Ok(true) => continue,
                Ok(false) => format!("does not hold: {}", assertion.text),
                Err(what) => what,
            };
            let is = Some((self.host.now(), assertion.values(&info)));
            return Err(self.difference(event, what, is));
        }
        Ok(())
    }
}

fn show(reply: &Reply) -> String {
    reply.errno.map_or_else(|| reply.result.to_string(), constants::show_errno)
}

/// A `struct tcp_info`.
struct Info<'a>(&'a [u8]);

impl Names for Info<'_> {
    fn get(&self, name: &str) -> Option<i128> {
        constants::info_field(name)?.read(self.0).map(i128::from)
    }
}
