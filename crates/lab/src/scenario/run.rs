//! Run of a scenario, from the first event to its figures.

use super::bounds::Bounds;
use super::build::{Change, Changed, ScenarioWorld};
use super::figures::{Figures, Probes, Series};
use super::model::{AppKind, Scenario};
use super::source::ScenarioError;
use super::units::{Share, Speed, Time};
use crate::app::group::SharedGroupLog;
use crate::link::ENDS;
use crate::report::{Capture, FlowRecorder, FlowSource, Recorder, Recording, Watch};
use crate::rng::mix;
use crate::world::{Fault, HostId, World};
use core::iter::Peekable;
use neap_tcp::time::{Instant, Nanos};

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// All figures by name.
    pub figures: Figures,
    /// Samples over time.
    pub series: Series,
    /// Hash of when each frame left on every link, how long it was, and of all figures.
    pub hash: String,
    /// Recording for plots, if it was asked for.
    pub recording: Option<Recording>,
}

/// Reason why a run has no figures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The values of the combination contradict each other.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A host spins: it always has more to do, and time does not pass.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// An oracle was asked for, and this rule of it is broken.
    #[error("does not hold: {0}")]
    Broken(String),
    /// A figure says more than the links of the scenario allow: it was measured wrongly.
    #[error("cannot be: {0}")]
    Impossible(String),
    /// The receiver of an application got other bytes than were sent.
    #[error("app {app}: byte {at} of a stream is wrong")]
    WrongByte {
        /// The name of the application.
        app: String,
        /// Position in its stream.
        at: u64,
    },
}

impl ScenarioWorld {
    pub(super) fn run(
        self,
        scenario: &Scenario,
        progress: &dyn Fn(f64),
        watch: Watch<'_>,
    ) -> Result<Run, RunError> {
        let Self { mut world, start, hosts, links, groups, events, .. } = self;
        let mut events = events.into_iter().peekable();
        let logs: Vec<_> =
            groups.iter().map(|(name, _, log)| (name.clone(), log.clone())).collect();
        let sources = flow_sources(scenario, &hosts, &logs);
        let capture = watch.packets.map(|to| Capture::begin(&world, &links, &logs, to));
        let mut watchers = Watchers { capture, flows: None };
        let warm_up = scenario.warm_up.map_or(Nanos::ZERO, |Time(time)| time);
        let (begin, duration) = (start + warm_up, scenario.duration.0);
        let all = (warm_up + duration).0 as f64;
        let sample = scenario.sample();
        let mut passed = Nanos::ZERO;
        while passed < warm_up {
            passed = Nanos((passed.0 + sample.0).min(warm_up.0));
            watchers.run(&mut world, &mut events, start + passed)?;
            progress(passed.0 as f64 / all);
        }
        let mut probes = Probes::begin(&world, &hosts, &links, &groups);
        let mut recorder = watch.record.then(|| Recorder::begin(&world, &hosts, &links, &logs));
        watchers.flows = watch.record.then(|| FlowRecorder::begin(&world, &sources));
        let mut passed = Nanos::ZERO;
        while passed < duration {
            passed = Nanos((passed.0 + sample.0).min(duration.0));
            watchers.run(&mut world, &mut events, begin + passed)?;
            probes.sample(&world);
            if let Some(recorder) = &mut recorder {
                recorder.sample(&world);
            }
            if let Some(flows) = &mut watchers.flows {
                flows.sample(world.now());
            }
            progress((warm_up + passed).0 as f64 / all);
        }
        let (figures, series) = probes.finish(&world);
        let Watchers { capture, flows } = watchers;
        let recorded = recorder.zip(flows);
        let mut recording =
            recorded.map(|(recorder, flows)| recorder.finish(&world, flows.finish(world.now())));
        let bounds = Bounds::new(scenario, &links);
        if let Some(recording) = &mut recording {
            bounds.complete(&world, &figures, &mut recording.flows, [begin, world.now()]);
        }
        bounds.check(&world, &figures, [begin, world.now()]).map_err(RunError::Impossible)?;
        if let Some(recording) = &recording {
            bounds.check_recording(&world, recording, begin).map_err(RunError::Impossible)?;
        }
        if let Some(capture) = capture {
            capture.finish(&world);
        }
        let mut hash = 0;
        for link in world.links() {
            (0..ENDS).for_each(|end| hash = mix(hash ^ link.stats(end, world.now()).digest));
        }
        for (name, _, log) in &groups {
            let log = log.borrow();
            if let Some(at) = log.wrong_at {
                return Err(RunError::WrongByte { app: name.clone(), at });
            }
        }
        figures.values().for_each(|value| hash = mix(hash ^ value.to_bits()));
        Ok(Run { figures, series, hash: format!("{hash:016x}"), recording })
    }
}

/// Who looks at a world while it runs.
struct Watchers<'a> {
    capture: Option<Capture<'a>>,
    flows: Option<FlowRecorder<'a>>,
}

impl Watchers<'_> {
    /// Runs until `until`, and makes the changes that are due before.
    fn run(
        &mut self,
        world: &mut World,
        events: &mut Peekable<impl Iterator<Item = Change>>,
        until: Instant,
    ) -> Result<(), Fault> {
        while let Some(change) = events.next_if(|change| change.at <= until) {
            self.advance(world, change.at)?;
            apply(world, &change);
        }
        self.advance(world, until)
    }

    fn advance(&mut self, world: &mut World, until: Instant) -> Result<(), Fault> {
        if self.capture.is_none() && self.flows.is_none() {
            return world.run_until(until);
        }
        world.run_watched(until, &mut |world, turn| {
            if let Some(capture) = &mut self.capture {
                capture.look(world);
            }
            if let Some(flows) = &mut self.flows {
                flows.look(world.now(), Some(turn));
            }
        })
    }
}

/// The applications whose flows are watched, with the hosts of their ends.
fn flow_sources(
    scenario: &Scenario,
    hosts: &[(String, HostId)],
    logs: &[(String, SharedGroupLog)],
) -> Vec<FlowSource> {
    let find = |name: &str| hosts.iter().find(|(own, _)| own == name).map(|(_, id)| *id);
    let source = |(name, log): &(String, SharedGroupLog)| {
        let app = scenario.app.get(name)?.get_ref();
        let hosts = [find(app.from.get_ref())?, find(app.to.get_ref())?];
        let sends_datagrams = app.kind == AppKind::Udp;
        Some(FlowSource { app: name.clone(), sends_datagrams, hosts, log: log.clone() })
    };
    logs.iter().filter_map(source).collect()
}

pub(super) fn apply(world: &World, Change { what, .. }: &Change) {
    let (link, from, event) = match what {
        Changed::Link { link, from, event } => (link, from, event),
        Changed::Host { host, sysctls } => {
            for (name, value) in sysctls {
                let set = world.stack(*host).set_sysctl(name, value);
                debug_assert_eq!(set, Ok(()), "it was checked when the world was built");
            }
            return;
        }
    };
    let target = world.link(*link);
    for &end in from {
        if let Some(Speed(rate)) = event.rate {
            target.set_rate(end, rate);
        }
        if let Some(Time(delay)) = event.delay {
            target.set_delay(end, delay);
        }
        if let Some(Share(loss)) = event.loss {
            target.set_loss(end, loss);
        }
        if let Some(is_down) = event.down {
            target.set_down(end, is_down);
        }
    }
}

#[cfg(test)]
mod tests;
