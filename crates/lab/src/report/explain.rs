//! Explanation of a flow's rate in plain words: what held it, for how much of its time, and its
//! longest pauses.

use super::flows::{AppFlows, FlowRecord, Gate, Pause, Side, WATCHED};
use core::cmp::Reverse;

/// Pauses that an explanation names.
const PAUSES: usize = 3;

/// Share of a link's rate from which on it counts as full. Gaps between frames of an aggregate or a
/// token bucket leave less than this.
const FULL: f64 = 0.95;

/// Part of what a link carried below which other traffic counts. Headers and what was sent again
/// are less than the rest.
const OWN: f64 = 0.85;

/// Share of a flow's time from which on waiting for timeouts explains its rate.
const MUCH: f64 = 0.2;

/// Factor over the smallest round-trip time from which on the mean tells of a queue.
const QUEUED: f64 = 1.5;

/// Share of a flow's time that a gate held it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateShare {
    /// Gate that held the flow.
    pub gate: Gate,
    /// Share of the flow's time, percent in whole tenths. The sum of all shares is 100.
    pub percent: f64,
}

/// One of the longest pauses.
#[derive(Clone, Debug, PartialEq)]
pub struct LongPause {
    /// Number of the connection, from 0.
    pub connection: usize,
    /// Time from the end of the warm-up to the beginning of the pause, milliseconds.
    pub from_ms: f64,
    /// Length of the pause, milliseconds.
    pub length_ms: f64,
    /// Cause of the pause in words.
    pub cause: String,
}

/// Explanation of the rate of an application's flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Name of the application.
    pub app: String,
    /// Sentences that say what the rate was and why.
    pub sentences: Vec<String>,
    /// Gates that held the flows, the largest share first; none for datagrams, nor if no connection
    /// was open.
    pub shares: Vec<GateShare>,
    /// The longest pauses of all flows, longest first; at most three.
    pub pauses: Vec<LongPause>,
}

impl Explanation {
    /// Explains the flows of an application.
    pub fn new(app: &AppFlows) -> Self {
        let mut sentences = vec![rate(app)];
        if app.flows.iter().all(|flow| flow.time().0 == 0) {
            sentences.push(unwatched(app));
            let (shares, pauses) = (Vec::new(), Vec::new());
            return Self { app: app.app.clone(), sentences, shares, pauses };
        }
        let shares = shares(&app.flows);
        sentences.extend(reason(app, &shares));
        if app.flows.len() < app.connections {
            let (seen, all) = (app.flows.len(), app.connections);
            let text = format!("Shares and pauses are of the first {seen} of {all} connections.");
            sentences.push(text);
        }
        Self { app: app.app.clone(), sentences, shares, pauses: pauses(&app.flows) }
    }
}

/// Why there are no gates to speak of.
fn unwatched(app: &AppFlows) -> String {
    if app.sends_datagrams {
        return "It sent no data over TCP: datagrams pass none of the gates.".to_owned();
    }
    let which = match app.connections {
        0..=WATCHED => "None of its connections".to_owned(),
        all => format!("None of the first {WATCHED} of its {all} connections"),
    };
    format!("{which} was open in the recorded time.")
}

/// What the application got, and how much of its way that is.
fn rate(app: &AppFlows) -> String {
    let who = match (app.connections, app.side) {
        (0 | 1, Side::Client) => "The flow got".to_owned(),
        (0 | 1, Side::Server) => "The server's answers got".to_owned(),
        (count, Side::Client) => format!("The {count} flows together got"),
        (count, Side::Server) => format!("The answers on {count} connections together got"),
    };
    let got = format!("{who} {} of payload", mbit(app.goodput_mbit));
    let Some(slowest) = &app.slowest else { return format!("{got}.") };
    let part = app.goodput_mbit / slowest.mbit.max(f64::MIN_POSITIVE);
    let filled = (slowest.carried_mbit / slowest.mbit.max(f64::MIN_POSITIVE)).min(1.0);
    format!(
        "{got}, which is {} of the {} that the slowest link of its way ({}) carries. All packets \
         together, headers included, took {} of that link.",
        percent(part * 100.0),
        mbit(slowest.mbit),
        slowest.link,
        percent(filled * 100.0),
    )
}

/// Percent by gate, in tenths. What rounding leaves goes to the gates that lost most by it, so that
/// the sum is 100.
fn shares(flows: &[FlowRecord]) -> Vec<GateShare> {
    const TENTHS: u128 = 1000;
    let time = |gate: Gate| flows.iter().map(|flow| u128::from(flow.held[gate as usize].0)).sum();
    let times: Vec<(Gate, u128)> = Gate::ALL.into_iter().map(|gate| (gate, time(gate))).collect();
    let all = times.iter().map(|(_, time)| time).sum::<u128>().max(1);
    let mut parts: Vec<(Gate, u128, u128)> = times
        .into_iter()
        .map(|(gate, time)| (gate, time * TENTHS / all, time * TENTHS % all))
        .collect();
    let missing = TENTHS - parts.iter().map(|(_, tenths, _)| tenths).sum::<u128>();
    parts.sort_by_key(|&(_, _, lost)| Reverse(lost));
    parts.iter_mut().take(missing as usize).for_each(|(_, tenths, _)| *tenths += 1);
    parts.retain(|(_, tenths, _)| *tenths > 0);
    parts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let share = |(gate, tenths, _)| GateShare { gate, percent: tenths as f64 / 10.0 };
    parts.into_iter().map(share).collect()
}

/// The mean of a value of all flows, by the time of each.
fn mean(flows: &[FlowRecord], of: fn(&FlowRecord) -> f64) -> f64 {
    let time: f64 = flows.iter().map(|flow| flow.time().0 as f64).sum();
    flows.iter().map(|flow| of(flow) * flow.time().0 as f64).sum::<f64>() / time.max(1.0)
}

/// Why the rate was what it was, from the gate that held the flows most.
fn reason(app: &AppFlows, shares: &[GateShare]) -> Vec<String> {
    let share = |gate: Gate| {
        shares.iter().find(|share| share.gate == gate).map_or(0.0, |share| share.percent)
    };
    let own = share(Gate::Idle) + share(Gate::InFlight);
    let Some(first) = shares.first() else { return Vec::new() };
    let timeouts = timeouts(&app.flows);
    let trips = share(Gate::Opening) + share(Gate::InFlight);
    if trips >= first.percent && share(Gate::Idle) < share(Gate::Opening) {
        let text = format!(
            "Round trips decided the rate: for {} of the time the handshake was not complete, and \
             for {} everything that the application had written was in flight.",
            percent(share(Gate::Opening)),
            percent(share(Gate::InFlight)),
        );
        return [text].into_iter().chain(timeouts).collect();
    }
    if own >= first.percent {
        let mut parts = Vec::new();
        for (gate, what) in [
            (Gate::Idle, "it had nothing to send"),
            (Gate::InFlight, "everything that it had written was in flight"),
        ] {
            if share(gate) > 0.0 {
                parts.push(format!("for {} of the time {what}", percent(share(gate))));
            }
        }
        let text = format!("The application decided the rate: {}.", parts.join(", "));
        return [text].into_iter().chain(timeouts).collect();
    }
    if let Some(timeouts) = timeouts {
        return vec![timeouts];
    }
    let held = format!("for {} of the time", percent(first.percent));
    match first.gate {
        Gate::Cwnd => by_cwnd(app, &held),
        Gate::Rwnd => {
            let (window, srtt) = (mean(&app.flows, |f| f.window), mean(&app.flows, |f| f.srtt_ms));
            vec![format!(
                "The window of the receiver held it {held}. It was {} on average, and a flow sends \
                 that much in a round trip of {srtt:.1} ms: {}.",
                bytes(window),
                mbit(window * 8e-3 / srtt.max(1e-3)),
            )]
        }
        Gate::Pacing => {
            let paced: Vec<f64> = app.flows.iter().map(|flow| flow.pacing_mbit).collect();
            let paced: Vec<f64> = paced.into_iter().filter(|mbit| *mbit > 0.0).collect();
            let rate = paced.iter().sum::<f64>() / paced.len().max(1) as f64;
            vec![format!("Pacing held it {held}: a flow was paced at {} on average.", mbit(rate))]
        }
        Gate::SmallQueue => vec![format!(
            "Its own host held it {held}: it had as many bytes in qdisc and device as it may have. \
             The next frame was cut when one had left, so the device decided the rate."
        )],
        Gate::SendBuffer => vec![format!(
            "The send buffer held it {held}: it was full of bytes in flight, and the application \
             could write no more. A larger buffer allows a higher rate."
        )],
        Gate::Yield => vec![format!(
            "Other flows of its host held it {held}: they share the device by turns of equal bytes."
        )],
        gate => vec![format!("What held it most: {}, {held}.", gate.words())],
    }
}

/// What retransmission timeouts cost, if it is much.
fn timeouts(flows: &[FlowRecord]) -> Option<String> {
    let number = flows.iter().map(|flow| u64::from(flow.timeouts)).sum();
    let sum = |of: fn(&FlowRecord) -> u64| flows.iter().map(of).sum::<u64>() as f64;
    let share = sum(|flow| flow.timed_out.0) / sum(|flow| flow.time().0).max(1.0);
    (share >= MUCH).then(|| {
        format!(
            "No ACK came for {} of the time, until {} expired: all that was in flight, or its end, \
             was lost.",
            percent(share * 100.0),
            count(number, "retransmission timeout", "retransmission timeouts"),
        )
    })
}

/// Why the congestion window was what it was.
fn by_cwnd(app: &AppFlows, held: &str) -> Vec<String> {
    let (cwnd, srtt) = (mean(&app.flows, |f| f.cwnd), mean(&app.flows, |f| f.srtt_ms));
    let least = mean(&app.flows, |flow| flow.min_rtt_ms);
    let mut all = vec![format!(
        "The congestion window held it {held}. It was {} on average, and a flow sends that much in \
         a round trip of {srtt:.1} ms: {}.",
        bytes(cwnd),
        mbit(cwnd * 8e-3 / srtt.max(1e-3)),
    )];
    if srtt > least * QUEUED && least > 0.0 {
        all.push(format!(
            "The smallest round trip was {least:.1} ms; the other {:.1} ms were spent in queues.",
            srtt - least
        ));
    }
    let again: u64 = app.flows.iter().map(|flow| flow.retransmitted).sum();
    let slowest = app.slowest.as_ref();
    let is_full = slowest.map(|link| link.carried_mbit >= link.mbit * FULL);
    let is_shared = slowest.is_some_and(|link| app.goodput_mbit < link.carried_mbit * OWN);
    all.push(match (is_full, again) {
        (Some(true), _) if is_shared => {
            "The link was full: other traffic had the rest of it, and the windows of all decide \
             the shares."
                .to_owned()
        }
        (Some(true), _) => {
            "The link was full, so a larger window would have made the queue longer and the flow no \
             faster."
                .to_owned()
        }
        (_, 1..) => format!(
            "{} sent again, and each loss that was found reduced the window.",
            count(again, "segment was", "segments were")
        ),
        (Some(false), 0) => {
            "The link had room: the window did not grow to what link and round trip hold.".to_owned()
        }
        (None, 0) => return all,
    });
    all
}

/// The longest pauses of all flows.
fn pauses(flows: &[FlowRecord]) -> Vec<LongPause> {
    let of = |flow: &FlowRecord| {
        let connection = flow.connection;
        flow.pauses.iter().map(move |pause| (connection, pause.clone())).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, Pause)> = flows.iter().flat_map(of).collect();
    all.sort_by(|(_, a), (_, b)| b.length.cmp(&a.length).then(a.from.cmp(&b.from)));
    all.truncate(PAUSES);
    let pause = |(connection, pause): (usize, Pause)| LongPause {
        connection,
        from_ms: pause.from.0 as f64 / 1e6,
        length_ms: pause.length.0 as f64 / 1e6,
        cause: cause(&pause),
    };
    all.into_iter().map(pause).collect()
}

/// What made a pause, and what ended it.
fn cause(pause: &Pause) -> String {
    let gate = pause.gate();
    let text = match (gate, pause.timeouts) {
        (_, 1..) => format!(
            "no ACK came: {} expired, and then the first segment was sent again",
            count(pause.timeouts.into(), "retransmission timeout", "retransmission timeouts")
        ),
        (Gate::Cwnd, 0) if pause.recovering => {
            "lost segments were being repaired, and the reduced window was full".to_owned()
        }
        (Gate::InFlight, 0) if pause.repaired => {
            "everything written was in flight and its end was lost; it was sent again".to_owned()
        }
        (gate, 0) => format!("{}: {}", gate.name(), gate.words()),
    };
    if pause.is_open { format!("{text}, until the end of the run") } else { text }
}

fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Three digits that count.
fn digits(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

fn mbit(value: f64) -> String {
    match value {
        1000.0.. => format!("{} Gbit/s", digits(value / 1e3)),
        0.1.. => format!("{} Mbit/s", digits(value)),
        _ => format!("{} kbit/s", digits(value * 1e3)),
    }
}

fn bytes(value: f64) -> String {
    match value {
        1e6.. => format!("{} MB", digits(value / 1e6)),
        _ => format!("{} kB", digits(value / 1e3)),
    }
}

fn percent(value: f64) -> String {
    if value >= 10.0 || value == 0.0 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}
