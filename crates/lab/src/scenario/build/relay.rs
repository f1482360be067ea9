//! A link of a scenario for the real world: its paths, and what changes on them.

use super::link::LinkReader;
use crate::link::{ENDS, LinkChange, PathConfig, RelayConfig};
use crate::scenario::model::{EventSpec, LinkSpec, Scenario};
use crate::scenario::source::{Files, ScenarioError, SourceFile};
use crate::scenario::units::{Share, Speed, Time};
use toml::Spanned;

impl SourceFile {
    /// A link of the scenario; `name` may be left out if there is only one.
    pub(in crate::scenario) fn relay(
        &self,
        scenario: &Scenario,
        name: Option<&str>,
        files: &Files<'_>,
    ) -> Result<RelayConfig, ScenarioError> {
        let names = || scenario.link.keys().cloned().collect::<Vec<_>>().join(", ");
        let top = |what: String| self.error_in(0..0, "link", what);
        let (name, link) = match name {
            Some(name) => scenario
                .link
                .get_key_value(name)
                .ok_or_else(|| top(format!("there is no link {name}; there are {}", names())))?,
            None if scenario.link.len() > 1 => {
                return Err(top(format!("choose one of the links {}", names())));
            }
            None => scenario.link.first_key_value().ok_or_else(|| top("there is none".into()))?,
        };
        let ends = link.get_ref().ends.each_ref().map(Spanned::get_ref);
        let is_here =
            |event: &&EventSpec| event.link.as_ref().is_some_and(|link| link.get_ref() == name);
        let change = |event: &EventSpec| {
            let is_from =
                |end: &usize| event.from.as_ref().is_none_or(|from| from.get_ref() == ends[*end]);
            LinkChange {
                at: event.at.0,
                from: (0..ENDS).filter(is_from).collect(),
                rate: event.rate.map(|Speed(rate)| rate),
                delay: event.delay.map(|Time(delay)| delay),
                loss: event.loss.map(|Share(loss)| loss),
                is_down: event.down,
            }
        };
        let mut changes: Vec<LinkChange> =
            scenario.event.iter().map(Spanned::get_ref).filter(is_here).map(change).collect();
        changes.sort_by_key(|change| change.at);
        let path = |from| self.relay_path(link, from, scenario.ipv6, files);
        let paths = [path(0)?, path(1)?];
        Ok(RelayConfig { paths, changes, most_packets: RelayConfig::MOST_PACKETS })
    }

    /// One direction. A bottleneck is behind a card; without one the end is a router's port.
    pub(in crate::scenario) fn relay_path(
        &self,
        link: &Spanned<LinkSpec>,
        from: usize,
        ipv6: bool,
        files: &Files<'_>,
    ) -> Result<PathConfig, ScenarioError> {
        let is_router = link.get_ref().direction(from).bottleneck.is_none();
        LinkReader { source: self, link, from, is_router, ipv6, files }.path()
    }
}
