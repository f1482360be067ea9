//! Oracles: rules that hold in every world, whatever happens on its links.

mod segment;

pub(crate) use segment::{SegmentOracle, Sender};

use crate::app::group::GroupLog;
use crate::app::session::{SessionLog, SharedSessionLog};
use crate::world::{HostId, World};
use neap_stack::socket::tcp::FlowInfo;
use neap_stack::stack::SocketCounts;
use neap_tcp::info::TcpInfo;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::TxBlocked;
use std::collections::BTreeMap;

/// A closed window is probed first after so long, even where the RTO is shorter.
const FIRST_PROBE: Nanos = Nanos::from_millis(200);

/// Neither timeouts nor probes back off further (`TCP_RTO_MAX`).
const LONGEST_RTO: Nanos = Nanos::from_secs(120);

/// Pacing, and the lateness of hosts.
const SLACK: Nanos = Nanos::from_secs(1);

/// Memory of the largest buffer, by which a write or a cut may exceed a limit once.
const ONE_BUFFER: u64 = 70_000;

/// What one flow looked like when it last moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    segs_out: u64,
    segs_in: u64,
    bytes_acked: u64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    position: Position,
    moved: Instant,
    /// What pacing held back then, and timers count from its end.
    held_back: Nanos,
    /// When the last of the timeouts ends that were armed since data was last acknowledged.
    armed: Instant,
    /// When the flow must have moved, by its state after the last turn of its host: only such a
    /// turn changes that. `None` if it has nothing to do, or waits for the host's own queues.
    due: Option<Instant>,
}

impl Progress {
    /// Fails if the flow had to move before `now`: what moves it then comes too late.
    fn check(&self, now: Instant) -> Result<(), String> {
        let is_late = self.due.is_some_and(|due| now > due);
        let silent = now.since(self.moved).as_secs_f64();
        if is_late { Err(format!("silent for {silent:.3} s")) } else { Ok(()) }
    }
}

/// Oracle that watches the flows of one world, step after step.
#[derive(Debug, Default)]
pub struct FlowOracle {
    /// Of each host, by the numbers of the sockets.
    watched: BTreeMap<usize, BTreeMap<u64, Progress>>,
}

impl FlowOracle {
    /// Checks all flows of the host that has just had its turn.
    ///
    /// With `is_idle`, the wire of the host is idle and nothing may wait below a socket. That holds
    /// for a host with one interface whose queue holds no frame back and whose card tells of
    /// completions at once.
    ///
    /// # Errors
    /// The rule that is broken, in words.
    pub fn check(&mut self, world: &World, host: HostId, is_idle: bool) -> Result<(), String> {
        let now = world.now();
        let flows = world.stack(host).flows(now);
        for flow in &flows {
            check_flow(flow)
                .and_then(|()| self.check_progress(host, flow, now))
                .and_then(|()| check_wire(flow, is_idle))
                .map_err(|fault| describe(host, flow, &fault))?;
        }
        self.forget(host, &flows, now)
    }

    /// Forgets the flows that are gone. The turn in which one ended may have come too late.
    fn forget(
        &mut self,
        HostId(host): HostId,
        flows: &[FlowInfo],
        now: Instant,
    ) -> Result<(), String> {
        let watched = self.watched.entry(host).or_default();
        if watched.len() <= flows.len() {
            return Ok(());
        }
        let is_gone = |id: &u64, _: &mut Progress| !flows.iter().any(|flow| flow.id == *id);
        let mut result = Ok(());
        for (id, progress) in watched.extract_if(.., is_gone) {
            let checked = progress.check(now);
            let checked = checked.map_err(|fault| format!("host {host}, flow {id}: {fault}, gone"));
            result = result.and(checked);
        }
        result
    }

    /// A flow that has something to send or to be acknowledged does something within its timeout.
    fn check_progress(
        &mut self,
        host: HostId,
        flow: &FlowInfo,
        now: Instant,
    ) -> Result<(), String> {
        let info = &flow.info;
        let position = Position {
            segs_out: info.segs_out,
            segs_in: info.segs_in,
            bytes_acked: info.bytes_acked,
            state: info.state,
        };
        let doublings = info.backoff.max(info.probes).max(info.retransmits).min(20);
        let first = info.rto.max(FIRST_PROBE).saturating_mul(1 << doublings);
        let (held_back, armed) = (info.pacing_delay, now + first);
        let fresh = Progress { position, moved: now, held_back, armed, due: None };
        let watched = self.watched.entry(host.0).or_default().entry(flow.id).or_insert(fresh);
        watched.check(now)?;
        let is_idle = info.notsent_bytes == 0 && info.unacked_bytes == 0;
        // What the host's own queues hold goes when it is its turn, whatever the timeout is.
        let waits_below = info.blocked == TxBlocked::SmallQueue;
        if watched.position != position || is_idle || waits_below {
            // What acknowledges data arms the timer anew; other changes leave it as it is.
            let is_armed_anew = watched.position.bytes_acked != position.bytes_acked;
            let armed = if is_armed_anew { fresh.armed } else { fresh.armed.max(watched.armed) };
            *watched = Progress { armed, ..fresh };
        }
        watched.due = (!is_idle && !waits_below)
            .then(|| watched.moved + longest_silence(info, watched, first) + SLACK);
        watched.check(now)
    }
}

/// How long a flow in this state may be silent from its last movement on. Its timeout from now on
/// is `first`.
fn longest_silence(info: &TcpInfo, watched: &Progress, first: Nanos) -> Nanos {
    // A timer that was armed before the timeout fell stays: an ACK arms it anew only if it says
    // something of the oldest frame (`tcp_clean_rtx_queue`).
    let first = first.max(watched.armed.since(watched.moved));
    // Whose frames the host's own queues refuse tries again, and others may be faster.
    let first = if info.blocked == TxBlocked::Egress { LONGEST_RTO } else { first };
    // A departure that was planned at a lower rate than that of now stays, as in Linux.
    let planned = match info.blocked {
        TxBlocked::Pacing(at) => at.since(watched.moved),
        _ => Nanos::ZERO,
    };
    // A timeout counts from the departure of the oldest frame, and what pacing holds back is
    // added (`tcp_schedule_loss_probe`), so the wait of that frame counts twice.
    first.max(planned).min(LONGEST_RTO) + watched.held_back.saturating_mul(2)
}

/// What holds of one flow at any time.
fn check_flow(flow: &FlowInfo) -> Result<(), String> {
    let info = &flow.info;
    let holds = |holds: bool, fault: &str| if holds { Ok(()) } else { Err(fault.to_owned()) };
    let waits_below = matches!(info.blocked, TxBlocked::SmallQueue | TxBlocked::Autocork);
    holds(!waits_below || info.below_bytes > 0, "waits for a completion with nothing below")?;
    holds(info.device_bytes <= info.below_bytes, "more in the device than below")?;
    let waits_for_acks = matches!(
        info.blocked,
        TxBlocked::Cwnd | TxBlocked::Memory | TxBlocked::Nagle | TxBlocked::Defer
    );
    holds(!waits_for_acks || info.unacked > 0, "waits for ACKs with nothing in flight")?;
    let may_send = matches!(flow.state, State::Established | State::CloseWait);
    let is_silent = info.blocked == TxBlocked::NoData && info.notsent_bytes > 0;
    holds(!may_send || !is_silent, "says that all is sent, with data to send")?;
    holds(info.unread_bytes <= info.rcvbuf.saturating_mul(2), "receive buffer beyond its bound")?;
    let is_bounded = u64::from(info.wmem_queued) <= send_memory_limit(info.sndbuf.into());
    holds(is_bounded, "send buffer beyond its bound")?;
    holds(info.sacked + info.lost <= info.unacked, "more SACKed and lost than in flight")
}

fn check_wire(flow: &FlowInfo, is_idle: bool) -> Result<(), String> {
    let waits = is_idle && flow.info.below_bytes > 0;
    if waits { Err("waits below an idle wire".to_owned()) } else { Ok(()) }
}

/// Memory that a socket takes to send at the most, given its send buffer: writers are held to that,
/// and frames are cut until it is exceeded twice, and by two buffers (`tcp_fragment`).
pub(crate) fn send_memory_limit(sndbuf: u64) -> u64 {
    2 * (sndbuf + 2 * ONE_BUFFER) + ONE_BUFFER
}

fn describe(HostId(host): HostId, flow: &FlowInfo, fault: &str) -> String {
    let (local, remote) = (flow.local, flow.remote);
    format!("host {host}, {local} to {remote}: {fault}; {:?}", flow.info)
}

/// Checks a connection whose two ends followed their plans to the end: everything that one end
/// wrote was read by the other.
///
/// # Errors
/// The rule that is broken, in words.
pub fn check_delivery(ends: [(&SessionLog, u64); 2]) -> Result<(), String> {
    for ((log, _), (peer, peer_bytes)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        check_prefix(log, peer)?;
        if let Some(error) = log.error {
            return Err(format!("failed: {error}; {log:?}"));
        }
        if !log.is_over || (log.read != peer_bytes && log.at_end) {
            return Err(format!("read {} of {peer_bytes}; {log:?}, peer {peer:?}", log.read));
        }
    }
    Ok(())
}

/// Checks that a reader got the bytes that were written, in order, and no more.
///
/// # Errors
/// The rule that is broken, in words.
pub fn check_prefix(reader: &SessionLog, writer: &SessionLog) -> Result<(), String> {
    if let Some(at) = reader.wrong_at {
        return Err(format!("byte {at} is wrong"));
    }
    if reader.read > writer.written {
        return Err(format!("read {} bytes, written {}", reader.read, writer.written));
    }
    Ok(())
}

/// Checks the streams of a group of connections: no reader got a wrong byte, and if all
/// `must_arrive`, no connection failed and all that was written was read, requests as well as
/// responses.
pub(crate) fn check_group(log: &GroupLog, must_arrive: bool) -> Result<(), String> {
    if let Some(at) = log.wrong_at {
        return Err(format!("byte {at} is wrong"));
    }
    if !must_arrive {
        return Ok(());
    }
    if log.failed() > 0 {
        return Err(format!("{} connections failed: {log:?}", log.failed()));
    }
    let ends = [("clients", &log.clients, &log.servers), ("servers", &log.servers, &log.clients)];
    for (writers, from, to) in ends {
        let written: u64 = from.iter().map(|end| end.written).sum();
        let read: u64 = to.iter().map(|end| end.read).sum();
        if written != read {
            return Err(format!("the {writers} wrote {written}, {read} was read: {log:?}"));
        }
    }
    Ok(())
}

/// Checks that a host is empty when all its applications have left and their connections are
/// forgotten.
///
/// # Errors
/// The rule that is broken, in words.
pub fn check_empty(world: &World, host: HostId) -> Result<(), String> {
    let (stack, now) = (world.stack(host), world.now());
    let usage = stack.usage();
    // A server to which no client came still listens.
    let names = usage.names - usage.tcp.listeners;
    let SocketCounts { connections, time_wait, orphans, requests, waiting, .. } = usage.tcp;
    let sockets = connections + time_wait + orphans + requests + waiting + names;
    // A socket of datagrams keeps a page.
    let of_datagrams = usage.udp_memory_pages.saturating_sub(usage.udp as u64);
    let memory = usage.memory_pages + of_datagrams + usage.loopback_bytes;
    if sockets != 0 || memory != 0 {
        let flows: Vec<_> = stack.flows(now).iter().map(|f| describe(host, f, "left")).collect();
        return Err(format!("host {}: sockets left: {usage:?} {flows:?}", host.0));
    }
    for interface in stack.interfaces(now) {
        for port in interface.ports {
            if port.ring_frames + port.ring_bytes + u64::from(port.qdisc.backlog_packets) != 0 {
                return Err(format!("host {}: frames left below: {port:?}", host.0));
            }
        }
    }
    Ok(())
}

/// Returns whether the application of this log has left.
pub fn is_over(log: &SharedSessionLog) -> bool {
    log.borrow().is_over
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::group::EndLog;
    use crate::link::PathConfig;
    use crate::rng::Ppm;
    use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
    use neap_tcp::time::Rate;

    const HOST: HostId = HostId(0);
    const RTO: Nanos = Nanos::from_millis(300);

    /// A flow that has one byte in flight after five timeouts.
    fn backed_off(now: Instant) -> FlowInfo {
        let stack = Stack::new(StackConfig::default()).expect("default settings");
        let to = "127.0.0.1:80".parse().expect("an address");
        let _listener = stack.listen(to, ListenOptions::default()).expect("nobody listens");
        let _client = stack.connect(now, to, ConnectOptions::default()).expect("a port");
        let mut flow = stack.flows(now).remove(0);
        let info = &mut flow.info;
        (info.rto, info.backoff, info.unacked_bytes) = (RTO, 5, 1);
        (info.retransmits, info.probes) = (0, 0);
        (info.blocked, info.pacing_delay) = (TxBlocked::NoData, Nanos::ZERO);
        flow
    }

    #[test]
    fn a_timeout_that_was_backed_off_excuses_no_silence_after_the_recovery() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut oracle = FlowOracle::default();
        let mut flow = backed_off(now);
        assert_eq!(oracle.check_progress(HOST, &flow, now), Ok(()));
        let longest = RTO.saturating_mul(1 << 5) + SLACK;
        assert_eq!(oracle.check_progress(HOST, &flow, now + longest), Ok(()));
        // What arrives that acknowledges nothing leaves the timer as it was armed.
        flow.info.backoff = 0;
        flow.info.segs_in += 1;
        assert_eq!(oracle.check_progress(HOST, &flow, now), Ok(()));
        assert_eq!(oracle.check_progress(HOST, &flow, now + longest), Ok(()));
        flow.info.segs_in += 1;
        flow.info.bytes_acked += 1;
        assert_eq!(oracle.check_progress(HOST, &flow, now), Ok(()));
        assert_eq!(oracle.check_progress(HOST, &flow, now + RTO + SLACK), Ok(()));
        let silent = now + RTO + SLACK + Nanos::from_millis(1);
        assert!(oracle.check_progress(HOST, &flow, silent).is_err());
    }

    #[test]
    fn a_flow_is_not_taken_for_an_earlier_one_with_the_same_addresses() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut oracle = FlowOracle::default();
        let mut flow = backed_off(now);
        assert_eq!(oracle.check_progress(HOST, &flow, now), Ok(()));
        (flow.id, flow.info.backoff) = (flow.id + 1, 0);
        assert_eq!(oracle.check_progress(HOST, &flow, now), Ok(()));
        let silent = now + RTO + SLACK + Nanos::from_millis(1);
        assert!(oracle.check_progress(HOST, &flow, silent).is_err());
    }

    const START: Instant = Instant::from_nanos(1_000_000_000);
    /// One millisecond more than a flow may be silent after its first timeout.
    const TOO_LATE: Instant = Instant::from_nanos(1_000_000_000 + RTO.0 + SLACK.0 + 1_000_000);

    /// A flow that has one byte in flight, and an oracle that has seen it.
    fn in_flight(change: impl FnOnce(&mut TcpInfo)) -> (FlowOracle, FlowInfo) {
        let (mut oracle, mut flow) = (FlowOracle::default(), backed_off(START));
        flow.info.backoff = 0;
        change(&mut flow.info);
        assert_eq!(oracle.check_progress(HOST, &flow, START), Ok(()));
        (oracle, flow)
    }

    #[test]
    fn a_flow_whose_timer_fires_too_late_was_silent() {
        for at in [TOO_LATE, START + Nanos::from_secs(30)] {
            let (mut oracle, mut flow) = in_flight(|_| {});
            flow.info.segs_out += 1;
            assert!(oracle.check_progress(HOST, &flow, at).is_err(), "{at:?}");
            let (mut oracle, _) = in_flight(|_| {});
            assert!(oracle.forget(HOST, &[], at).is_err(), "it ends at {at:?}");
        }
        let in_time = START + RTO + SLACK;
        let (mut oracle, mut flow) = in_flight(|_| {});
        flow.info.segs_out += 1;
        assert_eq!(oracle.check_progress(HOST, &flow, in_time), Ok(()));
        let (mut oracle, _) = in_flight(|_| {});
        assert_eq!(oracle.forget(HOST, &[], in_time), Ok(()));
    }

    #[test]
    fn a_flow_with_nothing_to_do_may_be_silent() {
        let changes: [fn(&mut TcpInfo); 2] =
            [|info| info.unacked_bytes = 0, |info| info.blocked = TxBlocked::SmallQueue];
        for change in changes {
            let (mut oracle, mut flow) = in_flight(change);
            flow.info.segs_out += 1;
            let later = START + Nanos::from_secs(3600);
            assert_eq!(oracle.check_progress(HOST, &flow, later), Ok(()));
            let (mut oracle, _) = in_flight(change);
            assert_eq!(oracle.forget(HOST, &[], later), Ok(()));
        }
    }

    #[test]
    fn requests_and_responses_must_arrive_as_a_whole() {
        let end = |written, read| EndLog { written, read, ..EndLog::default() };
        let log = |clients, servers| GroupLog { clients, servers, ..GroupLog::default() };
        let check = |log| check_group(&log, true);
        // Servers come in the order of their acceptance.
        let sound = log(vec![end(10, 100), end(20, 200)], vec![end(200, 20), end(100, 10)]);
        assert_eq!(check(sound), Ok(()));
        assert!(check(log(vec![end(10, 100)], vec![end(100, 9)])).is_err(), "a request");
        assert!(check(log(vec![end(10, 99)], vec![end(100, 10)])).is_err(), "a response");
        let lost = log(vec![end(10, 99)], vec![end(100, 10)]);
        assert_eq!(check_group(&lost, false), Ok(()), "it may be that it fails");
        let wrong = GroupLog { wrong_at: Some(7), ..GroupLog::default() };
        assert!(check_group(&wrong, false).is_err());
        let failed = EndLog { has_failed: true, ..end(10, 100) };
        assert!(check(log(vec![failed], vec![end(100, 10)])).is_err());
    }

    #[test]
    fn a_host_with_a_half_open_connection_is_not_empty() {
        // Nothing comes back from the server.
        let path = PathConfig::clean(Rate(1_000_000), Nanos::from_millis(1));
        let lost = PathConfig { loss: Ppm::percent(100), ..path.clone() };
        let (mut world, hosts, to) = World::pair([path, lost]);
        let listen = world.stack(hosts[1]).listen(to, ListenOptions::default());
        let _listener = listen.expect("nobody listens");
        let connect = world.stack(hosts[0]).connect(START, to, ConnectOptions::default());
        let client = connect.expect("a port");
        assert_eq!(check_empty(&world, hosts[1]), Ok(()));
        world.run_until(START + Nanos::from_secs(1)).expect("no host spins");
        assert_eq!(world.stack(hosts[1]).usage().tcp.requests, 1);
        assert!(check_empty(&world, hosts[1]).is_err());
        client.abort(world.now());
        world.run_until(START + Nanos::from_secs(300)).expect("no host spins");
        assert_eq!(check_empty(&world, hosts[1]), Ok(()), "it is forgotten");
    }
}
