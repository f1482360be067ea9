//! Figures that cannot be are found, each by the bound that it breaks.

use super::Bounds;
use crate::report::{Quantity, Recording, Track};
use crate::scenario::Experiment;
use crate::scenario::figures::Figures;
use crate::world::World;
use neap_tcp::time::{Instant, Nanos};

/// 20 Mbit/s and 10 ms behind a card of 50 Mbit/s.
const TEXT: &str = r#"
about = "a slow link"
duration = "1s"
[host.a]
[host.b]
[router.r]
[link.card]
ends = ["a", "r"]
rate = "50mbit"
delay = "2ms"
[link.slow]
ends = ["r", "b"]
rate = "20mbit"
delay = "8ms"
[app.bulk]
kind = "bulk"
from = "a"
to = "b"
"#;

struct Case {
    world: World,
    bounds: Bounds,
    begin: Instant,
}

impl Case {
    fn new() -> Self {
        let none = |_: &str| Err("no file".to_owned());
        let experiment = Experiment::parse("slow", TEXT, &none).expect("sound");
        let choice = experiment.choices().iter().next().expect("one run");
        let (scenario, built) = experiment.built(choice).expect("sound");
        let bounds = Bounds::new(&scenario, &built.links);
        Self { world: built.world, bounds, begin: built.start }
    }

    /// What is wrong with one figure of a second.
    fn wrong(&self, name: &str, value: f64) -> Option<String> {
        let figures = Figures::from([(name.to_owned(), value)]);
        let end = self.begin + Nanos::from_secs(1);
        self.bounds.check(&self.world, &figures, [self.begin, end]).err()
    }

    /// What is wrong with a sample of a tenth of a second, the second one.
    fn wrong_sample(&self, quantity: Quantity, value: f64) -> Option<String> {
        let track = Track { subject: "bulk".to_owned(), quantity, values: vec![0.0, value] };
        let recording =
            Recording { ms: vec![100.0, 200.0], tracks: vec![track], ..Recording::default() };
        self.bounds.check_recording(&self.world, &recording, self.begin).err()
    }
}

#[test]
fn figures_up_to_their_bounds_can_be_and_no_others() {
    let case = Case::new();
    for (name, possible, impossible) in [
        ("link.slow.there.busy", 1.0, 1.002),
        ("link.card.there.wire_mbit", 50.0, 50.28),
        ("link.slow.there.wire_mbit", 20.0, 20.1),
        ("app.bulk.goodput_mbit", 20.0, 20.02),
        ("app.bulk.srtt_p50_ms", 20.0, 0.000_578),
        ("app.bulk.latency_p50_ms", 10.0, 9.9),
        ("app.bulk.completion_p50_ms", 20.0, 19.9),
        ("app.bulk.transfer_ms", 30.0, 29.9),
    ] {
        assert_eq!(case.wrong(name, possible), None);
        assert!(case.wrong(name, impossible).is_some_and(|why| why.contains("be")), "{name}");
    }
}

#[test]
fn samples_up_to_their_bounds_can_be_and_no_others() {
    let case = Case::new();
    for (quantity, possible, impossible) in
        [(Quantity::Goodput, 20.0, 20.2), (Quantity::Srtt, 20.0, 0.000_578)]
    {
        assert_eq!(case.wrong_sample(quantity, possible), None);
        assert!(case.wrong_sample(quantity, impossible).is_some(), "{quantity:?}");
    }
    assert_eq!(case.wrong_sample(Quantity::Srtt, 0.0), None, "no round trip was measured yet");
}
