//! Data of runs side by side, which the page's script draws.

use super::super::explain::{Explanation, LongPause};
use super::super::flows::{AppFlows, Gate};
use super::super::record::{Quantity, Recording, Track};
use super::Case;
use super::encode::Values;
use serde::Serialize;
use std::collections::BTreeMap;

/// Lines of one chart, and applications whose bytes are shown, at the most: the largest. Of a run's
/// distributions the first are shown: those of applications, and then those of links.
const LINES: usize = 8;
const FLOWS: usize = 4;
/// Part of a flow's time that a gate needs to be drawn.
const SEEN: f32 = 1e-3;
/// Part of the largest sum that a line needs to be drawn.
const NEGLIGIBLE: f64 = 1e-2;
/// Values of all series of one comparison, at the most: 0.7 MB, so that a page of four has less
/// than 3 MB. Series of more samples are thinned.
const VALUES: usize = 1 << 18;
/// Layers of where the bytes of an application are, in the order of the drawing.
const PLACES: [(Quantity, &str); 4] = [
    (Quantity::InFlight, "in flight"),
    (Quantity::Device, "device"),
    (Quantity::Qdisc, "qdisc"),
    (Quantity::Unsent, "unsent"),
];
/// Quantities over time: title, quantity, unit, and how they are drawn.
const OVER_TIME: [(&str, Quantity, &str, &str); 9] = [
    ("Delay below the socket, from TCP to the wire", Quantity::Below, "ms", LINE),
    ("Smoothed round-trip time", Quantity::Srtt, "ms", LINE),
    ("Queue at the hop", Quantity::Backlog, "bytes", LINE),
    ("Goodput", Quantity::Goodput, "Mbit/s", RATE),
    ("Frames with data, super-frames once", Quantity::Frames, "per second", RATE),
    ("Congestion windows", Quantity::Cwnd, "segments", LINE),
    ("Timer interrupts", Quantity::Timers, "per second", RATE),
    ("Wake-ups of applications", Quantity::Wakeups, "per second", RATE),
    ("Memory of sockets", Quantity::Memory, "bytes", LINE),
];
/// How a quantity is drawn: as it is, as means of what is close together, or in layers.
const LINE: &str = "lines";
const RATE: &str = "rates";
const LAYERS: &str = "layers";
/// Before the name of a gate where a quantity has its.
const GATE: &str = "gate.";

/// Runs that are compared.
#[derive(Debug, Serialize)]
pub(super) struct Comparison<'a> {
    /// What the runs that are side by side are called.
    names: Vec<&'a str>,
    /// What is picked, one value at a time.
    parameters: Vec<Parameter<'a>>,
    /// Applications whose bytes are shown on their way.
    flows: Vec<&'a str>,
    rows: Vec<Row<'a>>,
    runs: Vec<RunData<'a>>,
}

/// Parameter that is picked.
#[derive(Debug, Serialize)]
struct Parameter<'a> {
    name: &'a str,
    values: Vec<&'a str>,
    /// Index of the value that is shown first.
    first: usize,
}

/// Charts of one quantity.
#[derive(Debug, Serialize)]
struct Row<'a> {
    title: String,
    unit: &'static str,
    kind: &'static str,
    quantities: Vec<String>,
    /// What the layers are called.
    names: Vec<&'static str>,
    subjects: Vec<&'a str>,
}

/// One run.
#[derive(Debug, Serialize)]
struct RunData<'a> {
    name: &'a str,
    role: &'a str,
    /// Indices of the values of the parameters.
    at: Vec<usize>,
    times: Times,
    tracks: Vec<TrackData<'a>>,
    shares: Vec<Share<'a>>,
    explained: Vec<Explained>,
}

/// Why the flows of an application had the rate that they had.
#[derive(Debug, Serialize)]
struct Explained {
    app: String,
    sentences: Vec<String>,
    pauses: Vec<PauseData>,
}

/// One of the longest pauses of a flow.
#[derive(Debug, Serialize)]
struct PauseData {
    connection: usize,
    from: f64,
    length: f64,
    cause: String,
}

impl Explained {
    fn new(flows: &AppFlows) -> Self {
        let Explanation { app, sentences, pauses, .. } = Explanation::new(flows);
        let pause = |LongPause { connection, from_ms, length_ms, cause }| PauseData {
            connection,
            from: from_ms,
            length: length_ms,
            cause,
        };
        Self { app, sentences, pauses: pauses.into_iter().map(pause).collect() }
    }
}

/// Times of the samples, milliseconds: all the same step but for the last one.
#[derive(Debug, Serialize)]
struct Times {
    first: f64,
    step: f64,
    last: f64,
    count: usize,
}

/// One series.
#[derive(Debug, Serialize)]
struct TrackData<'a> {
    subject: &'a str,
    quantity: String,
    values: Values,
}

/// One distribution.
#[derive(Debug, Serialize)]
struct Share<'a> {
    subject: &'a str,
    ms: Vec<f64>,
    shares: Vec<f64>,
}

impl<'a> Comparison<'a> {
    /// Gathers what is to be drawn of these runs.
    pub(super) fn new(cases: &'a [Case<'a>], picked: &[(String, String)]) -> Self {
        let flows = flows(cases);
        let rows = rows(cases, &flows, picked);
        let gates = gates(cases);
        let is_drawn = |track: &Track| {
            rows.iter().any(|row| {
                row.quantities.iter().any(|quantity| quantity == track.quantity.name())
                    && row.subjects.contains(&track.subject.as_str())
            })
        };
        let recordings = || cases.iter().map(|case| case.recording);
        let count = |recording: &Recording| {
            let is_long = |track: &&Track| {
                is_drawn(track) && track.values.windows(2).any(|pair| pair[0] != pair[1])
            };
            let drawn = recording.tracks.iter().filter(is_long).count();
            recording.ms.len() * (drawn + recording.flows.len() * gates.len())
        };
        let values: usize = recordings().map(count).sum();
        // Two of each so many samples stay.
        let bin = if values > VALUES { (2 * values).div_ceil(VALUES) } else { 1 };
        let mut names: Vec<&str> = Vec::new();
        for case in cases {
            if !names.contains(&case.name.as_str()) {
                names.push(&case.name);
            }
        }
        let parameters = parameters(cases, picked);
        let run = |case: &'a Case<'a>| RunData {
            name: &case.name,
            role: case.role,
            at: parameters
                .iter()
                .zip(&case.picks)
                .map(|(parameter, (_, value))| {
                    parameter.values.iter().position(|own| own == value).unwrap_or(0)
                })
                .collect(),
            times: times(&case.recording.ms, bin),
            tracks: tracks(case.recording, &is_drawn, &gates, bin),
            shares: case.recording.distributions.iter().take(LINES).map(share).collect(),
            explained: case.recording.flows.iter().map(Explained::new).collect(),
        };
        let runs = cases.iter().map(run).collect();
        Self { names, parameters, flows, rows, runs }
    }
}

/// All series of a run that are drawn.
fn tracks<'a>(
    recording: &'a Recording,
    is_drawn: &dyn Fn(&Track) -> bool,
    gates: &[Gate],
    bin: usize,
) -> Vec<TrackData<'a>> {
    let is_seen = |track: &&Track| track.values.iter().any(|value| *value != 0.0);
    let own = recording.tracks.iter().filter(|track| is_drawn(track)).filter(is_seen);
    let own = own.map(|track| TrackData {
        subject: &track.subject,
        quantity: track.quantity.name().to_owned(),
        values: Values::new(&thinned(recording, track, bin)),
    });
    let held = recording.flows.iter().flat_map(|flows| {
        gates.iter().map(|gate| TrackData {
            subject: &flows.app,
            quantity: quantity(*gate),
            values: {
                let shares = flows.shares.iter().map(|share| f64::from(share[*gate as usize]));
                Values::new(&means(&shares.collect::<Vec<_>>(), bin))
            },
        })
    });
    own.chain(held.filter(|track| track.values != Values::Constant(0.0))).collect()
}

/// The values of a track of which two of each `bin` stay.
fn thinned(recording: &Recording, track: &Track, bin: usize) -> Vec<f64> {
    let (quantity, values) = (track.quantity, &track.values);
    let is_rate = |one: &(_, Quantity, _, &str)| one.1 == quantity && one.3 == RATE;
    let is_layer = |quantity: Quantity| PLACES.iter().any(|(place, _)| *place == quantity);
    match quantity {
        // While no frame left, the last one is what is known.
        Quantity::Below => extremes(&held(values), bin),
        // Means of what the page has must be means of what there was.
        _ if OVER_TIME.iter().any(is_rate) => means(values, bin),
        // Layers that lie on each other are of one time.
        _ if is_layer(quantity) && bin > 1 => {
            let mut sums = vec![0.0; values.len()];
            let is_of_it = |one: &&Track| one.subject == track.subject && is_layer(one.quantity);
            for layer in recording.tracks.iter().filter(is_of_it) {
                sums.iter_mut().zip(&layer.values).for_each(|(sum, value)| *sum += value);
            }
            chosen(&sums, bin).into_iter().map(|index| values[index]).collect()
        }
        _ => extremes(values, bin),
    }
}

/// The values with those before in place of zeros.
fn held(values: &[f64]) -> Vec<f64> {
    let mut last = 0.0;
    let hold = |value: &f64| {
        last = if *value > 0.0 { *value } else { last };
        last
    };
    values.iter().map(hold).collect()
}

fn parameters<'a>(cases: &'a [Case<'a>], picked: &[(String, String)]) -> Vec<Parameter<'a>> {
    let Some(first) = cases.first() else { return Vec::new() };
    let parameter = |(index, (name, _)): (usize, &'a (String, String))| {
        let mut values: Vec<&str> = Vec::new();
        for case in cases {
            let value = case.picks[index].1.as_str();
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let wanted = picked.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        let first = values.iter().position(|value| Some(*value) == wanted).unwrap_or(0);
        Parameter { name, values, first }
    };
    first.picks.iter().enumerate().map(parameter).collect()
}

fn sum(track: &Track) -> f64 {
    track.values.iter().sum()
}

/// The keys with the largest sums, in the order of their names.
fn largest(sums: BTreeMap<&str, f64>, most: usize) -> Vec<&str> {
    let top = sums.values().copied().fold(0.0, f64::max);
    let is_seen = |(_, sum): &(&str, f64)| *sum > top * NEGLIGIBLE;
    let mut sums: Vec<_> = sums.into_iter().filter(is_seen).collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums.truncate(most);
    sums.sort_by(|a, b| a.0.cmp(b.0));
    sums.into_iter().map(|(name, _)| name).collect()
}

/// Applications with bytes on their way.
fn flows<'a>(cases: &'a [Case<'a>]) -> Vec<&'a str> {
    let mut sums = BTreeMap::new();
    for track in cases.iter().flat_map(|case| &case.recording.tracks) {
        if PLACES.iter().any(|(quantity, _)| *quantity == track.quantity) {
            *sums.entry(track.subject.as_str()).or_insert(0.0) += sum(track);
        }
    }
    largest(sums, FLOWS)
}

/// Rows of charts: first where the bytes are and what held them, then the quantities in which the
/// runs that are shown first differ most.
fn rows<'a>(cases: &'a [Case<'a>], flows: &[&'a str], picked: &[(String, String)]) -> Vec<Row<'a>> {
    let is_first = |case: &&Case<'_>| picked.iter().all(|pick| case.picks.contains(pick));
    let first: Vec<&Case<'_>> = cases.iter().filter(is_first).collect();
    let mut rows: Vec<(f64, Row<'a>)> = Vec::new();
    for (title, quantity, unit, kind) in OVER_TIME {
        let mut sums = BTreeMap::new();
        for track in cases.iter().flat_map(|case| case.recording.of(quantity)) {
            *sums.entry(track.subject.as_str()).or_insert(0.0) += sum(track);
        }
        let subjects = largest(sums, LINES);
        if subjects.is_empty() {
            continue;
        }
        let row = Row {
            title: title.to_owned(),
            unit,
            kind,
            quantities: vec![quantity.name().to_owned()],
            names: Vec::new(),
            subjects,
        };
        rows.push((spread(&first, quantity, &row.subjects), row));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let gates = gates(cases);
    let places = flows.iter().flat_map(|flow| {
        let places = Row {
            title: format!("Where the bytes of {flow} are"),
            unit: "bytes",
            kind: LAYERS,
            quantities: PLACES.map(|(quantity, _)| quantity.name().to_owned()).to_vec(),
            names: PLACES.map(|(_, name)| name).to_vec(),
            subjects: vec![flow],
        };
        let gates = Row {
            title: format!("What held {flow}"),
            unit: "share",
            kind: LAYERS,
            quantities: gates.iter().map(|gate| quantity(*gate)).collect(),
            names: gates.iter().map(|gate| gate.name()).collect(),
            subjects: vec![flow],
        };
        [places, gates]
    });
    places.chain(rows.into_iter().map(|(_, row)| row)).collect()
}

/// Gates that held some flow for a part of its time that can be seen.
fn gates(cases: &[Case<'_>]) -> Vec<Gate> {
    let flows = || cases.iter().flat_map(|case| &case.recording.flows);
    let is_seen = |gate: &Gate| {
        let shares =
            |flows: &AppFlows| flows.shares.iter().map(|share| share[*gate as usize]).sum::<f32>();
        flows().any(|flows| shares(flows) > SEEN * flows.shares.len() as f32)
    };
    Gate::ALL.into_iter().filter(is_seen).collect()
}

fn quantity(gate: Gate) -> String {
    format!("{GATE}{}", gate.name())
}

/// The largest ratio of the means of two runs, as a logarithm; 0 for a single run.
fn spread(cases: &[&Case<'_>], quantity: Quantity, subjects: &[&str]) -> f64 {
    let means = cases.iter().map(|case| {
        let tracks = case.recording.of(quantity);
        let tracks = tracks.filter(|track| subjects.contains(&track.subject.as_str()));
        tracks.map(sum).sum::<f64>() / case.recording.ms.len().max(1) as f64
    });
    let (least, most) = means
        .fold((f64::INFINITY, 0.0_f64), |(least, most), mean| (least.min(mean), most.max(mean)));
    if least > 0.0 && most > 0.0 { (most / least).ln() } else { 0.0 }
}

/// Times of samples of which two of each `bin` stay.
fn times(ms: &[f64], bin: usize) -> Times {
    let (first, last) = (ms.first().copied().unwrap_or(0.0), ms.last().copied().unwrap_or(0.0));
    let step = ms.get(1).map_or(0.0, |second| second - first);
    if bin == 1 {
        return Times { first, step, last, count: ms.len() };
    }
    let count = ms.len().div_ceil(bin) * 2;
    Times { first, step: step * bin as f64 / 2.0, last, count }
}

/// The least and the largest of each `bin` values, in the order in which they came.
fn extremes(values: &[f64], bin: usize) -> Vec<f64> {
    if bin == 1 {
        return values.to_vec();
    }
    chosen(values, bin).into_iter().map(|index| values[index]).collect()
}

/// Where the least and the largest of each `bin` values are, ascending.
fn chosen(values: &[f64], bin: usize) -> Vec<usize> {
    let mut kept = Vec::with_capacity(values.len().div_ceil(bin) * 2);
    for (number, values) in values.chunks(bin).enumerate() {
        let (mut least, mut most) = (0, 0);
        for (index, value) in values.iter().enumerate() {
            if *value < values[least] {
                least = index;
            }
            if *value > values[most] {
                most = index;
            }
        }
        kept.extend([least.min(most), least.max(most)].map(|index| number * bin + index));
    }
    kept
}

/// Two values for each `bin`, both the mean.
fn means(values: &[f64], bin: usize) -> Vec<f64> {
    if bin == 1 {
        return values.to_vec();
    }
    let mean = |values: &[f64]| [values.iter().sum::<f64>() / values.len() as f64; 2];
    values.chunks(bin).flat_map(mean).collect()
}

/// A distribution without the points that say nothing.
fn share(times: &super::super::record::Distribution) -> Share<'_> {
    let mut points = times.points.clone();
    points.dedup_by(|next, before| {
        next.0 == before.0 && {
            before.1 = next.1;
            true
        }
    });
    let (ms, shares) = points.into_iter().unzip();
    Share { subject: &times.subject, ms, shares }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(quantity: Quantity, values: Vec<f64>) -> Track {
        Track { subject: "flow".to_owned(), quantity, values }
    }

    #[test]
    fn thinned_rates_keep_their_mean() {
        // One sample of eight has all of it.
        let values = (0..800).map(|i| if i % 8 == 3 { 80.0 } else { 0.0 }).collect();
        let goodput = track(Quantity::Goodput, values);
        assert_eq!(thinned(&Recording::default(), &goodput, 8), [10.0; 200]);
    }

    #[test]
    fn thinned_layers_are_of_the_same_times() {
        // A hundred bytes wait at one time of eight, and are on the wire at another one.
        let at = |time| (0..80).map(|i| if i % 8 == time { 100.0 } else { 0.0 }).collect();
        let tracks = vec![track(Quantity::Unsent, at(2)), track(Quantity::InFlight, at(5))];
        let recording = Recording { tracks, ..Recording::default() };
        let [wait, fly] = [0, 1].map(|index| thinned(&recording, &recording.tracks[index], 8));
        let sums: Vec<f64> = wait.iter().zip(&fly).map(|(wait, fly)| wait + fly).collect();
        assert_eq!(sums, [0.0, 100.0].repeat(10));
    }

    #[test]
    fn thinned_series_keep_their_peaks_and_their_times() {
        let ms: Vec<f64> = (1..=1000).map(f64::from).collect();
        let mut values = vec![1.0; 1000];
        values[500] = 100.0;
        values[501] = 0.5;
        let kept = extremes(&values, 8);
        let Times { first, step, last, count } = times(&ms, 8);
        assert_eq!((kept.len(), count), (250, 250));
        assert_eq!((first, step, last), (1.0, 4.0, 1000.0));
        assert!(kept.contains(&100.0) && kept.contains(&0.5));
        let at = kept.iter().position(|value| *value == 100.0).expect("the peak");
        assert!((first + step * at as f64 - 501.0).abs() <= 8.0);
    }
}
