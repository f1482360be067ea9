//! A congestion controller of one's own, chosen by its name in a scenario of the lab.
//!
//! `docs/extending/controller.md` has the contract. A stack takes the same controller with
//! `Builder::congestion_control("gentle", || Box::new(Gentle))`.

use neap::congestion::{AckSample, CongestionControl, CongestionEvent, Controllers, Window};
use neap::time::Instant;
use neap_lab::scenario::{Experiment, Extensions};

/// Reno that gives up an eighth of its window at a loss instead of a half.
#[derive(Debug)]
pub(crate) struct Gentle;

impl CongestionControl for Gentle {
    fn name(&self) -> &'static str {
        "gentle"
    }

    fn on_ack(&mut self, sample: &AckSample, window: &mut Window) {
        // A window that the flow does not fill says nothing about the path.
        if !sample.is_cwnd_limited {
            return;
        }
        let mut acked = sample.acked_sacked;
        if window.in_slow_start() {
            acked = window.slow_start(acked);
        }
        if acked > 0 {
            // One segment more in each round trip.
            window.additive_increase(window.cwnd, acked);
        }
    }

    fn ssthresh(&mut self, _now: Instant, window: &Window) -> u32 {
        (window.cwnd - window.cwnd / 8).max(2)
    }

    // The sender sets the window after losses; nothing is left to do.
    fn on_event(&mut self, _event: CongestionEvent, _now: Instant, _window: &mut Window) {}
}

const SCENARIO: &str = r#"about = "one flow and a shallow buffer"
warm_up = "2s"
duration = "10s"

[host.a]
[host.b]
[router.r]

[link.access]
ends = ["a", "r"]
rate = "1gbit"
delay = "1ms"

[link.wan]
ends = ["r", "b"]
rate = "20mbit"
delay = "40ms"
buffer = "20 packets"

[app.bulk]
kind = "bulk"
from = "a"
to = "b"

[sweep]
"host.a.sysctl.net.ipv4.tcp_congestion_control" = ["reno", "gentle"]
"#;

/// Runs the scenario with Reno and with the controller above, and compares them.
///
/// # Errors
/// A fault in the scenario, or in a run of it.
pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut controllers = Controllers::default();
    controllers.register("gentle", || Box::new(Gentle))?;
    let extensions = Extensions { controllers, ..Extensions::default() };
    let no_files = |_: &str| Err("no such file".to_owned());
    let experiment = Experiment::parse_with("gentle.toml", SCENARIO, &no_files, extensions)?;
    let mut goodput = Vec::new();
    for choice in experiment.choices() {
        let run = experiment.run(choice, &|_| {})?;
        goodput.push(run.figures["app.bulk.goodput_mbit"]);
    }
    assert!(goodput[1] > 1.05 * goodput[0], "{goodput:?}");
    println!("reno: {:.1} Mbit/s, gentle: {:.1} Mbit/s", goodput[0], goodput[1]);
    Ok(())
}
