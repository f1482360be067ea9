//! Runs the events of a script on a host and stops at the first difference.

use crate::ast::{Body, CallSpec, Event, EventKind, IcmpSpec, PacketSpec, Script, TcpSpec, When};
use crate::calls::{ConnectionEffect, Descriptors, PreparedCall, ScriptFd};
use crate::compare;
use crate::connections::{Connections, TimestampClock};
use crate::cursor::SyntaxError;
use crate::expression::Assertion;
use crate::host::{Host, Reply, SentPacket, SystemCall};
use crate::packet::{self, Packet, Segment};
use crate::report::{Difference, Failure, History, Seconds};
use crate::settings::Settings;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_posix::Errno;
use neap_posix::abi::{IPPROTO_TCP, TCP_INFO};
use neap_tcp::segment::Ecn;
use neap_tcp::time::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a packet that may come at any time is waited for.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// Bytes of `TCP_INFO` that are asked for.
const INFO_LEN: usize = 512;

/// Errors of a `connect` after which the socket still connects, or is connected.
const STILL_CONNECTS: [Errno; 3] = [Errno::EINPROGRESS, Errno::EALREADY, Errno::EISCONN];

/// Errors of a `connect` that fails before anything is sent.
const REFUSED_AT_ONCE: [&str; 8] = [
    "EACCES",
    "EADDRNOTAVAIL",
    "EAFNOSUPPORT",
    "EBADF",
    "EINVAL",
    "EISCONN",
    "ENETUNREACH",
    "ENOTSOCK",
];

/// Packets that a report shows although nobody had expected them yet.
const MAX_SHOWN_LATER: usize = 4;

/// Timers that delay timestamps last up to so long.
const LONGEST_DELAY: Nanos = Nanos::from_secs(1);

/// A call that has not returned, as its script has it.
struct BlockedCall {
    event: Event,
    prepared: PreparedCall,
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
    bound: BTreeMap<ScriptFd, SocketAddr>,
    /// Sockets that are connecting or connected.
    connecting: BTreeSet<ScriptFd>,
    /// Packets that left and that no event has expected yet.
    unexpected: VecDeque<SentPacket>,
    blocked: Option<BlockedCall>,
    /// The socket whose `TCP_INFO` assertions are about.
    asserted: Option<ScriptFd>,
    history: History,
    /// Time of the event before.
    previous: Nanos,
    /// By how much the clock was set back so far.
    lateness: Nanos,
}

/// Runs a script on a host.
///
/// # Errors
/// [`Failure`]: the first difference, or that something cannot be run.
pub fn run(script: &Script, settings: &Settings, host: &mut dyn Host) -> Result<(), Failure> {
    let mut runner = Runner::new(settings, host);
    for event in &script.events {
        runner.run_event(event).map_err(|failure| failure.at(event.at))?;
    }
    runner.finish(script)
}

/// First, last and intended time of an event.
struct Span {
    first: Nanos,
    last: Nanos,
    nominal: Option<Nanos>,
}

impl<'a> Runner<'a> {
    fn new(settings: &'a Settings, host: &'a mut dyn Host) -> Self {
        Self {
            host,
            settings,
            connections: Connections::new(settings.clone()),
            descriptors: Descriptors::default(),
            bound: BTreeMap::new(),
            connecting: BTreeSet::new(),
            unexpected: VecDeque::new(),
            blocked: None,
            asserted: None,
            history: History::default(),
            previous: Nanos::ZERO,
            lateness: Nanos::ZERO,
        }
    }

    fn tolerance(&self) -> Nanos {
        self.settings.tolerance + self.host.slack(Nanos::ZERO)
    }

    /// What was to happen at `nominal` happened at `at`: all that follows moves by the difference,
    /// if the clock of the host does.
    fn set_clock_back(&mut self, nominal: Nanos, at: Nanos) {
        let late = at.saturating_sub(nominal);
        if late > Nanos::ZERO {
            let moved = self.host.set_clock_back(late);
            self.lateness = self.lateness + moved;
            for sent in &mut self.unexpected {
                sent.at = sent.at.saturating_sub(moved);
            }
        }
    }

    fn span(&self, when: When) -> Span {
        let tolerance = self.tolerance();
        let previous = self.previous;
        let (from, to, nominal) = match when {
            When::At(at) => (at, at, Some(at)),
            When::After(after) => (previous + after, previous + after, Some(previous + after)),
            When::Between(from, to) => (from, to, None),
            When::AfterBetween(from, to) => (previous + from, previous + to, None),
            When::Any => {
                let last = previous + PATIENCE;
                return Span { first: Nanos::ZERO, last, nominal: None };
            }
        };
        Span {
            first: from.saturating_sub(tolerance),
            last: to + tolerance + self.host.slack(to.saturating_sub(previous)),
            nominal,
        }
    }

    fn run_event(&mut self, event: &Event) -> Result<(), Failure> {
        let span = self.span(event.when);
        if let EventKind::Expect(spec) = &event.kind {
            return self.expect(event, spec, &span);
        }
        let at = span.nominal.unwrap_or(self.previous);
        self.wait_until(at)?;
        self.check_nothing_unexpected(event, at)?;
        self.set_clock_back(at, self.host.now());
        let previous = self.previous;
        self.previous = at;
        match &event.kind {
            EventKind::Inject(spec) => self.inject(event, spec),
            EventKind::Call(spec) => self.call(event, spec, previous),
            EventKind::Assert(assertions) => self.assert(event, assertions),
            EventKind::Expect(_) => Ok(()),
        }
    }

    /// Takes what the host has sent, and the reply of a call that blocked.
    fn collect(&mut self) -> Result<(), Failure> {
        while let Some(sent) = self.host.take_sent() {
            self.unexpected.push_back(sent);
        }
        if self.blocked.is_some()
            && let Some((at, reply)) = self.host.take_reply()
            && let Some(blocked) = self.blocked.take()
        {
            let BlockedCall { event, prepared, begin, end } = &blocked;
            let tolerance = self.tolerance();
            let late = tolerance + self.host.slack(end.saturating_sub(*begin));
            if at + tolerance < *end || at > *end + late {
                let what = format!("the call returned at {}, not {}", Seconds(at), Seconds(*end));
                let happened = format!("{} = {reply}", event.text);
                return Err(self.difference(event, what, Some((at, happened))));
            }
            self.history.add(at.min(*end), format!("... {}", event.text));
            self.returned(event, prepared, at, &reply)?;
        }
        Ok(())
    }

    /// Lets time pass until `at`.
    fn wait_until(&mut self, at: Nanos) -> Result<(), Failure> {
        loop {
            self.collect()?;
            self.check_blocked_call()?;
            if self.host.now() >= at {
                return Ok(());
            }
            self.host.wait(at)?;
        }
    }

    /// The last moment at which a call that blocks may return.
    fn latest_return(&self, blocked: &BlockedCall) -> Nanos {
        let span = blocked.end.saturating_sub(blocked.begin);
        blocked.end + self.tolerance() + self.host.slack(span)
    }

    /// Fails if a call blocks for too long.
    fn check_blocked_call(&mut self) -> Result<(), Failure> {
        match &self.blocked {
            Some(blocked) if self.host.now() > self.latest_return(blocked) => {
                let event = blocked.event.clone();
                Err(self.difference(&event, "the call still blocks".into(), None))
            }
            _ => Ok(()),
        }
    }

    /// Waits until no call blocks.
    fn wait_for_blocked_call(&mut self) -> Result<(), Failure> {
        while let Some(blocked) = &self.blocked {
            let until = self.latest_return(blocked) + Nanos::from_micros(1);
            if self.host.now() < until {
                self.host.wait(until)?;
            }
            self.collect()?;
            self.check_blocked_call()?;
        }
        Ok(())
    }

    /// What a script says of an event and what happened instead, and when.
    fn difference(
        &mut self,
        event: &Event,
        what: String,
        happened: Option<(Nanos, String)>,
    ) -> Failure {
        let later: Vec<_> = self.unexpected.drain(..).take(MAX_SHOWN_LATER).collect();
        let later = later.iter().map(|sent| (sent.at, self.show(sent))).collect();
        Failure::Differs(Box::new(Difference {
            at: event.at,
            what,
            expected: event.text.clone(),
            happened,
            history: self.history.clone(),
            later,
        }))
    }

    /// A packet in the language of scripts.
    fn show(&mut self, sent: &SentPacket) -> String {
        match packet::parse(&sent.packet) {
            Ok(Packet::Tcp { flow, ecn, segment }) => {
                match self.connections.find(flow, segment.flags) {
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
                }
            }
            Ok(Packet::Other(what)) => format!("> {what}"),
            Err(error) => error.to_string(),
        }
    }

    /// Fails if a packet left so long before this event, which is at `at`, that it should have been
    /// expected.
    fn check_nothing_unexpected(&mut self, event: &Event, at: Nanos) -> Result<(), Failure> {
        match self.unexpected.front() {
            Some(sent) if sent.at + self.tolerance() < at => self.fail_unexpected(event),
            _ => Ok(()),
        }
    }

    /// Fails with the oldest packet that nobody expected, if there is one.
    fn fail_unexpected(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(sent) = self.unexpected.pop_front() else { return Ok(()) };
        let happened = (sent.at, self.show(&sent));
        let what = "a packet left that the script does not expect".into();
        Err(self.difference(event, what, Some(happened)))
    }

    /// Waits for what is still to come after the last event.
    fn finish(&mut self, script: &Script) -> Result<(), Failure> {
        self.wait_for_blocked_call()?;
        let end = self.host.now() + self.host.slack(Nanos::ZERO);
        self.wait_until(end)?;
        script.events.last().map_or(Ok(()), |event| self.fail_unexpected(event))
    }

    fn inject(&mut self, event: &Event, spec: &PacketSpec) -> Result<(), Failure> {
        self.history.add(self.previous, event.text.clone());
        let packet = match &spec.body {
            Body::Tcp(tcp) => self
                .connections
                .segment(spec.ports, tcp)
                .map(|(flow, segment)| segment.packet(flow, spec.ecn.unwrap_or_default())),
            Body::Icmp(icmp) => self.icmp(spec, icmp),
        };
        match packet {
            Ok(packet) => Ok(self.host.inject(packet)?),
            Err(what) => Err(SyntaxError { at: event.at, what }.into()),
        }
    }

    /// An ICMP error of the peer about a segment of the host.
    fn icmp(&mut self, spec: &PacketSpec, icmp: &IcmpSpec) -> Result<Bytes, String> {
        let (flow, seq) = self.connections.quoted(spec.ports, icmp.quoted_seq)?;
        Ok(packet::icmp(icmp, self.settings.remote_ip, flow, seq))
    }

    /// Waits for a packet of the host and compares it with the event.
    fn expect(&mut self, event: &Event, spec: &PacketSpec, span: &Span) -> Result<(), Failure> {
        loop {
            self.collect()?;
            self.check_blocked_call()?;
            if !self.unexpected.is_empty() {
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
        let Some(sent) = self.unexpected.pop_front() else {
            return Err(self.difference(event, "no packet came".into(), None));
        };
        let shown = self.check_sent(event, spec, span, &sent)?;
        self.previous = span.nominal.unwrap_or(sent.at);
        self.set_clock_back(self.previous, sent.at);
        // On the clock that was set back.
        self.history.add(sent.at.min(self.previous), shown);
        Ok(())
    }

    /// Compares a packet that left with the event. What it is, in the language of scripts.
    fn check_sent(
        &mut self,
        event: &Event,
        spec: &PacketSpec,
        span: &Span,
        sent: &SentPacket,
    ) -> Result<String, Failure> {
        let shown = self.show(sent);
        let happened = Some((sent.at, shown.clone()));
        if sent.at < span.first || sent.at > span.last {
            let when = if sent.at < span.first { "early" } else { "late" };
            let nominal =
                span.nominal.map_or(String::new(), |at| format!(", not at {}", Seconds(at)));
            let what = format!("the packet left too {when}, at {}{nominal}", Seconds(sent.at));
            return Err(self.difference(event, what, happened));
        }
        let found = match (packet::parse(&sent.packet), &spec.body) {
            (Ok(Packet::Tcp { flow, ecn, segment }), Body::Tcp(expected)) => {
                let index = self.connections.find(flow, segment.flags);
                let is_wanted = match spec.ports {
                    Some(ports) => ports == (flow.from.port(), flow.to.port()),
                    None => index == self.connections.under_test(),
                };
                match index {
                    Some(index) if is_wanted => {
                        self.compare_segment(spec, expected, index, ecn, &segment)
                    }
                    _ => vec!["the segment belongs to another connection".to_owned()],
                }
            }
            (Err(error), _) => vec![error.to_string()],
            (Ok(_), _) => vec!["the packet is of another protocol".to_owned()],
        };
        if !found.is_empty() {
            return Err(self.difference(event, found.join("; "), happened));
        }
        Ok(shown)
    }

    /// What is different about a segment of the connection with this index.
    fn compare_segment(
        &mut self,
        spec: &PacketSpec,
        expected: &TcpSpec,
        index: usize,
        ecn: Ecn,
        segment: &Segment,
    ) -> Vec<String> {
        let clock = TimestampClock {
            tick: self.settings.timestamp_tick,
            tolerance: self.tolerance() + self.lateness + self.host.slack(LONGEST_DELAY),
        };
        let connection = self.connections.get(index);
        let segment = connection.relative(segment);
        compare::differences(spec, expected, ecn, &segment, connection, clock)
    }

    /// Makes a call. `previous` is the time of the event before, from which a relative time counts.
    fn call(&mut self, event: &Event, spec: &CallSpec, previous: Nanos) -> Result<(), Failure> {
        self.wait_for_blocked_call()?;
        let prepared = self.descriptors.prepare(spec, self.settings, event.at)?;
        self.note_connections(spec, &prepared.on_connections);
        self.history.add(self.previous, event.text.clone());
        let reply = self.host.call(prepared.call.clone(), event.until.is_some())?;
        let end = match (event.when, event.until) {
            (_, None) => None,
            (When::At(_), Some(until)) => Some(until),
            (_, Some(until)) => Some(previous + until),
        };
        let now = self.host.now();
        match (reply, end) {
            (Some(reply), Some(end)) if now + self.tolerance() < end => {
                let what = format!("the call did not block until {}", Seconds(end));
                Err(self.difference(event, what, Some((now, reply.to_string()))))
            }
            (Some(reply), _) => self.returned(event, &prepared, now, &reply),
            (None, None) => {
                let what = "the call blocks; the script does not say so".into();
                Err(self.difference(event, what, None))
            }
            (None, Some(end)) => {
                let event = event.clone();
                self.blocked = Some(BlockedCall { event, prepared, begin: self.previous, end });
                Ok(())
            }
        }
    }

    /// Notes what a call that is about to be made means for connections.
    fn note_connections(&mut self, spec: &CallSpec, effect: &ConnectionEffect) {
        match effect {
            // What is refused changes nothing.
            ConnectionEffect::Bind(..) | ConnectionEffect::Listen(_) if spec.errno.is_some() => {}
            ConnectionEffect::Connect(..) if is_refused_at_once(spec) => {}
            ConnectionEffect::Bind(fd, address) => {
                self.bound.insert(*fd, *address);
            }
            ConnectionEffect::Listen(fd) => self.connections.listen(self.bound.get(fd).copied()),
            ConnectionEffect::Connect(fd, _) if self.connecting.contains(fd) => {}
            ConnectionEffect::Connect(fd, peer) => {
                self.connecting.insert(*fd);
                let local = self.bound.get(fd).copied().filter(|local| local.port() != 0);
                self.connections.connect(local, *peer);
                self.asserted = Some(*fd);
            }
            ConnectionEffect::Accept | ConnectionEffect::Disconnect(_) | ConnectionEffect::None => {
            }
        }
    }

    /// Compares the reply of a call that returned at `at`, and notes what the call changed.
    fn returned(
        &mut self,
        event: &Event,
        prepared: &PreparedCall,
        at: Nanos,
        reply: &Reply,
    ) -> Result<(), Failure> {
        let happened = || Some((at, format!("{}() = {reply}", prepared.name)));
        if let Err(what) = prepared.expected.compare(reply) {
            return Err(self.difference(event, what, happened()));
        }
        match &prepared.on_connections {
            ConnectionEffect::Connect(fd, _)
                if reply.errno().is_some_and(|errno| !STILL_CONNECTS.contains(&errno)) =>
            {
                self.connecting.remove(fd);
            }
            ConnectionEffect::Disconnect(fd) if reply.errno().is_none() => {
                self.connecting.remove(fd);
            }
            _ => {}
        }
        if let Err(what) = self.descriptors.finish(prepared, reply) {
            return Err(self.difference(event, what, happened()));
        }
        if let Some(fd) = prepared.opened(reply) {
            // A number that was closed and is used again.
            self.bound.remove(&fd);
            self.connecting.remove(&fd);
            if prepared.on_connections == ConnectionEffect::Accept {
                self.asserted = Some(fd);
            }
        }
        Ok(())
    }

    /// Compares `TCP_INFO` of the connection that was made last with what the script says.
    fn assert(&mut self, event: &Event, assertions: &[Assertion]) -> Result<(), Failure> {
        self.history.add(self.previous, event.text.clone());
        let Some(fd) = self.asserted.and_then(|fd| self.descriptors.get(fd)) else {
            return Err(self.difference(event, "there is no connection to ask".into(), None));
        };
        let (level, name) = (IPPROTO_TCP, TCP_INFO);
        let ask = SystemCall::GetOption { fd, level, name, len: INFO_LEN };
        let reply = self.host.call(ask, false)?.unwrap_or_else(|| Reply::ok(0));
        if reply.errno().is_some() {
            return Err(self.difference(event, format!("TCP_INFO: {reply}"), None));
        }
        for assertion in assertions {
            let what = match assertion.holds(&reply.data) {
                Ok(true) => continue,
                Ok(false) => format!("does not hold: {}", assertion.text),
                Err(what) => what,
            };
            let happened = (self.host.now(), assertion.values(&reply.data));
            return Err(self.difference(event, what, Some(happened)));
        }
        Ok(())
    }
}

/// Whether the script expects that a `connect` fails before anything is sent.
fn is_refused_at_once(spec: &CallSpec) -> bool {
    spec.errno.as_deref().is_some_and(|errno| REFUSED_AT_ONCE.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parser;
    use crate::virtual_host::VirtualHost;

    #[test]
    fn a_packet_that_was_late_in_virtual_time_is_so_once() {
        let script = parser::parse("+0 close(9) = -1 EBADF\n").expect("a script");
        let settings = Settings::new(&script).expect("settings");
        let mut host = VirtualHost::new(&settings).expect("a host");
        let mut runner = Runner::new(&settings, &mut host);
        // The events that follow are at the time when it should have left.
        (0..10).for_each(|_| runner.set_clock_back(Nanos::ZERO, Nanos::from_millis(3)));
        assert_eq!(runner.lateness, Nanos::ZERO);
    }
}
