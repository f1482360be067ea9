//! What is recorded of flows agrees with what the stack counts itself.

use super::{FlowRecorder, Watchers, flow_sources};
use crate::library::{FILES, SCENARIOS};
use crate::scenario::{Choice, Experiment};
use neap_tcp::time::Nanos;

fn files(name: &str) -> Result<String, String> {
    let file = FILES.iter().find(|(own, _)| *own == name);
    file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
}

/// Runs a combination for at most so long, and compares at ten times. How many connections were
/// compared.
fn compare(experiment: &Experiment<'_>, choice: &Choice, most: Nanos) -> usize {
    let (scenario, built) = experiment.built(choice).expect("sound");
    let (mut world, start) = (built.world, built.start);
    let logs: Vec<_> =
        built.groups.iter().map(|(name, _, log)| (name.clone(), log.clone())).collect();
    let sources = flow_sources(&scenario, &built.hosts, &logs);
    let mut watchers = Watchers { capture: None, flows: None };
    let mut events = built.events.into_iter().peekable();
    let duration = scenario.duration.0.0.min(most.0);
    let mut compared = 0;
    for tenth in 1..=10 {
        let at = start + Nanos(duration * tenth / 10);
        watchers.run(&mut world, &mut events, at).expect("no host spins");
        match &mut watchers.flows {
            // The first tenth is a warm-up: connections are open when the recording begins.
            None => watchers.flows = Some(FlowRecorder::begin(&world, &sources)),
            Some(flows) => {
                flows.sample(world.now());
                compared += flows.check_clocks();
            }
        }
    }
    for app in watchers.flows.expect("begun").finish(world.now()) {
        for flow in &app.flows {
            let sum = flow.held.iter().map(|held| held.0).sum::<u64>();
            assert!(sum <= duration, "{}: {flow:?}", app.app);
            assert!(flow.pauses.is_sorted_by(|a, b| a.length >= b.length), "{flow:?}");
            for pause in &flow.pauses {
                let held = pause.held.iter().map(|held| held.0).sum::<u64>();
                assert_eq!(held, pause.length.0, "{pause:?}");
            }
        }
        assert_eq!(app.shares.len(), 9);
        for shares in &app.shares {
            let sum: f32 = shares.iter().sum();
            assert!(sum == 0.0 || (sum - 1.0).abs() < 1e-5, "{}: {shares:?}", app.app);
        }
    }
    compared
}

#[test]
fn gates_of_random_worlds_agree_with_the_clocks_of_the_stack() {
    let mut compared = 0;
    for seed in 0..25 {
        let text = crate::swarm::draw_pair(seed);
        let experiment = Experiment::parse("drawn.toml", &text, &files).expect("sound");
        compared += compare(&experiment, &Vec::new(), Nanos::from_secs(5));
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn gates_of_the_library_agree_with_the_clocks_of_the_stack() {
    for scenario in SCENARIOS {
        let experiment = Experiment::parse(scenario.name, scenario.text, &files).expect("sound");
        for choice in experiment.choices().iter().take(2) {
            let compared = compare(&experiment, choice, Nanos::from_millis(600));
            assert!(compared > 0 || scenario.name == "incast", "{}", scenario.name);
        }
    }
}
