//! What the lab says of one flow over `tbf`.

use super::{Link, Outcome, Samples, Sender};
use neap_lab::report::{Quantity, Watch};
use neap_lab::scenario::Experiment;
use std::error::Error;

/// What `tbf` does not count of each frame of 1538 bytes on an Ethernet: preamble, check sequence, gap.
const ON_WIRE: f64 = 1538.0 / 1514.0;

/// The scenario: a NIC whose ring is the queue of `tbf`. The kernel's flow has no other queue; neap has its own qdisc above the ring.
fn scenario(link: Link, sender: Sender) -> String {
    let (profile, bql) = match sender {
        Sender::Neap => ("neap", true),
        Sender::Kernel => ("linux-6.18", false),
    };
    let rate = (f64::from(link.mbit) * ON_WIRE * 1e6) as u64;
    let gso_max = link.gso_max;
    format!(
        r#"about = "one bulk flow over a token bucket"
warm_up = "1s"
duration = "2s"
sample = "1ms"
[host.a]
profile = "{profile}"
nic = {{ gso_max_size = {gso_max}, ring = 1000, bql = {bql} }}
[host.b]
[link.wire]
ends = ["a", "b"]
delay = "10us"
there = {{ rate = "{rate}bit" }}
back = {{ rate = "10gbit" }}
[app.bulk]
kind = "bulk"
from = "a"
to = "b"
"#
    )
}

/// Runs it.
pub(super) fn predict(link: Link, sender: Sender) -> Result<Outcome, Box<dyn Error>> {
    let no_files = |name: &str| Err(format!("there is no file {name}"));
    let text = scenario(link, sender);
    let experiment = Experiment::parse("compare.toml", &text, &no_files)?;
    let watch = Watch { record: true, packets: None };
    let run = experiment.run_watched(&Vec::new(), &|_| {}, watch);
    let run = run.map_err(|error| error.to_string())?;
    let recording = run.recording.as_ref().ok_or("the run was not recorded")?;
    let values = |quantity, subject: &str| {
        let mut tracks = recording.of(quantity).filter(|track| track.subject == subject);
        tracks.next().map_or(Vec::new(), |track| track.values.clone())
    };
    let samples = Samples {
        goodput_mbit: run.figures.get("app.bulk.goodput_mbit").copied().unwrap_or(0.0),
        queue_bytes: values(Quantity::Ring, "wire there"),
        rtt_ms: values(Quantity::Srtt, "bulk"),
        cwnd: values(Quantity::Cwnd, "bulk"),
    };
    Ok(Outcome::of(link, samples))
}

#[cfg(test)]
mod tests {
    use super::super::LINKS;
    use super::*;

    #[test]
    fn predictions_fill_the_link_and_keep_the_queue_small() {
        for (link, sender) in
            LINKS.into_iter().flat_map(|link| [(link, Sender::Neap), (link, Sender::Kernel)])
        {
            let outcome = predict(link, sender).expect("a run");
            let share = outcome.goodput_mbit / f64::from(link.mbit);
            assert!((0.93..0.958).contains(&share), "{link:?} {sender:?}: {outcome:?}");
            assert!(outcome.queue_bytes > 1500.0 && outcome.queue_ms < 8.0, "{outcome:?}");
            assert!(outcome.rtt_ms > outcome.queue_ms / 2.0, "{outcome:?}");
        }
    }
}
