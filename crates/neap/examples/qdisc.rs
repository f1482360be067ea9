//! A queueing discipline of one's own, set by its name in a scenario of the lab.
//!
//! `docs/extending/qdisc.md` has the contract. A stack takes the same qdisc with
//! `Builder::qdisc_kind("short_first", ..)` and `Builder::qdisc("short_first")`.

use neap::device::Frame;
use neap::qdisc::{
    Dequeued, Dropped, Qdisc, QdiscConfig, QdiscKinds, QdiscSetup, QdiscStats, Verdict,
};
use neap::time::Instant;
use neap_lab::scenario::{Experiment, Extensions};
use std::collections::VecDeque;

/// Two queues of a thousand frames together: those of up to 400 bytes leave first.
struct ShortFirst {
    config: QdiscConfig,
    queues: [VecDeque<Frame>; 2],
    stats: QdiscStats,
}

impl Qdisc for ShortFirst {
    fn enqueue(&mut self, frame: Frame, _now: Instant, dropped: &mut Dropped) -> Verdict {
        if self.len() >= 1000 {
            self.stats.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        }
        self.stats.on_queued(frame.wire_len() as u64);
        self.queues[usize::from(frame.len() > 400)].push_back(frame);
        Verdict::Queued
    }

    fn dequeue(&mut self, _now: Instant, _dropped: &mut Dropped) -> Dequeued {
        match self.queues.iter_mut().find_map(VecDeque::pop_front) {
            Some(frame) => {
                self.stats.on_sent(frame.wire_len() as u64);
                Dequeued::Frame(frame)
            }
            None => Dequeued::Empty,
        }
    }

    fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    fn into_frames(self: Box<Self>) -> Vec<Frame> {
        self.queues.into_iter().flatten().collect()
    }

    fn stats(&self) -> QdiscStats {
        self.stats
    }

    fn config(&self) -> QdiscConfig {
        self.config.clone()
    }
}

const SCENARIO: &str = r#"about = "requests beside forty bulk flows"
duration = "5s"
[host.a]
[host.b]

[link]
wire = { ends = ["a", "b"], rate = "20mbit", delay = "1ms" }

[app]
bulk = { kind = "bulk", from = "a", to = "b", count = 40 }
ping = { kind = "request-response", from = "a", to = "b", request = 100, response = 100 }

[sweep]
"host.a.qdisc" = ["pfifo_fast", "short_first"]
"#;

/// Makes one for a queue of a device.
pub(crate) fn short_first(setup: &QdiscSetup<'_>) -> Box<dyn Qdisc> {
    let (config, stats) = (setup.config.clone(), QdiscStats::default());
    Box::new(ShortFirst { config, queues: Default::default(), stats })
}

/// Runs the scenario with the usual qdisc and with the one above, and compares them.
///
/// # Errors
/// A fault in the scenario, or in a run of it.
pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut qdiscs = QdiscKinds::default();
    qdiscs.register("short_first", short_first)?;
    let extensions = Extensions { qdiscs, ..Extensions::default() };
    let experiment =
        Experiment::parse_with("short", SCENARIO, &|_| Err(String::new()), extensions)?;
    let mut latency = Vec::new();
    for choice in experiment.choices() {
        latency.push(experiment.run(choice, &|_| {})?.figures["app.ping.latency_p50_ms"]);
    }
    assert!(latency[1] < latency[0] / 2.0, "{latency:?}");
    println!("pfifo_fast: {:.1} ms, short_first: {:.1} ms", latency[0], latency[1]);
    Ok(())
}
