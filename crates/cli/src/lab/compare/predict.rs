//! What the lab says of one flow over `tbf`.

use super::lateness::Lateness;
use super::{Link, Outcome, Samples, Sender, WARM_UP};
use neap_lab::report::{Quantity, Watch};
use neap_lab::scenario::Experiment;
use std::error::Error;

/// What `tbf` does not count of each frame of 1538 bytes on an Ethernet: preamble, check sequence,
/// gap.
const ON_WIRE: f64 = 1538.0 / 1514.0;
/// What the kernel's `tbf` counts of each IP packet besides.
pub(super) const LINK_HEADER: f64 = 1514.0 / 1500.0;

/// The two hosts and the wire between them.
///
/// What the kernel sends waits in its `tbf`, a super-frame passes the veth as one, and a veth
/// completes at once: here a fast wire and a card that joins again what arrives together. What neap
/// sends waits in the ring of its AF_PACKET socket until `tbf` lets it go: here a NIC with a slow
/// wire.
///
/// The kernel that receives acknowledges in its interrupts, at once. What neap sends arrives in
/// small frames, of which a reader never has much to read, so only the reader is as late as the
/// machine wakes it. What the kernel sends are super-frames that fill the window: there the whole
/// receiver is late, since what has not been read is not acknowledged.
///
/// neap is as late as in the lab's experiments. The kernel that sends is not: it sends in its
/// interrupts.
fn topology(link: Link, sender: Sender, late: &Lateness) -> String {
    let median = late.quantile(50.0).as_micros();
    let late = late.to_toml();
    let Link { mbit, gso_max, burst } = link;
    match sender {
        Sender::Neap => {
            let rate = (f64::from(mbit) * ON_WIRE * 1e6) as u64;
            format!(
                r#"[host.a]
profile = "neap"
nic = {{ gso_max_size = {gso_max}, ring = 1000 }}
[host.b]
profile = "linux-6.18"
lateness = "0us"
per_switch = "{median}us"
[link.wire]
ends = ["a", "b"]
delay = "1us"
there = {{ rate = "{rate}bit" }}
back = {{ rate = "10gbit" }}
"#
            )
        }
        Sender::Kernel => {
            let rate = (f64::from(mbit) / LINK_HEADER * 1e6) as u64;
            format!(
                r#"[host.a]
profile = "linux-6.18"
qdisc = "tbf rate {rate}bit burst {burst} limit 10mb"
lateness = "0us"
nic = {{ gso_max_size = {gso_max}, ring = 1000, bql = false }}
[host.b]
profile = "linux-6.18"
lateness = {late}
nic = {{ rx_usecs = 10, rx_frames = 64 }}
[link.wire]
ends = ["a", "b"]
delay = "1us"
rate = "100gbit"
"#
            )
        }
    }
}

/// The scenario: one bulk flow. `seconds` as long as what is measured.
fn scenario(link: Link, sender: Sender, seconds: u32, late: &Lateness) -> String {
    let topology = topology(link, sender, late);
    format!(
        r#"about = "one bulk flow over a token bucket"
warm_up = "{WARM_UP}s"
duration = "{seconds}s"
sample = "1ms"
{topology}[app.bulk]
kind = "bulk"
from = "a"
to = "b"
"#
    )
}

/// Runs it.
pub(super) fn predict(
    link: Link,
    sender: Sender,
    seconds: u32,
    late: &Lateness,
) -> Result<Outcome, Box<dyn Error>> {
    let no_files = |name: &str| Err(format!("there is no file {name}"));
    let text = scenario(link, sender, seconds, late);
    let experiment = Experiment::parse("compare.toml", &text, &no_files)?;
    let watch = Watch { record: true, packets: None };
    let run = experiment.run_watched(&Vec::new(), &|_| {}, watch);
    let run = run.map_err(|error| error.to_string())?;
    let recording = run.recording.as_ref().ok_or("the run was not recorded")?;
    let values = |quantity, subject: &str| {
        let mut tracks = recording.of(quantity).filter(|track| track.subject == subject);
        tracks.next().map_or(Vec::new(), |track| track.values.clone())
    };
    let queue_bytes = match sender {
        Sender::Neap => values(Quantity::Ring, "wire there"),
        Sender::Kernel => values(Quantity::QdiscBacklog, "a"),
    };
    let samples = Samples {
        goodput_mbit: run.figures.get("app.bulk.goodput_mbit").copied().unwrap_or(0.0),
        queue_bytes,
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
            let outcome = predict(link, sender, 2, &Lateness::default()).expect("a run");
            let share = outcome.goodput_mbit / f64::from(link.mbit);
            assert!((0.93..0.958).contains(&share), "{link:?} {sender:?}: {outcome:?}");
            assert!(outcome.queue_bytes > 1500.0 && outcome.queue_ms < 8.0, "{outcome:?}");
            assert!(outcome.rtt_ms > outcome.queue_ms / 2.0, "{outcome:?}");
        }
    }
}
