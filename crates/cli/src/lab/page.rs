//! The pages of `--html`: of experiments, of one run, and of a sweep.

use neap_lab::report::{BarView, Card, Case, Page, Recording};
use neap_lab::scenario::{
    Bar, Choice, Experiment, Figures, Judged, Place, Role, Run, ScenarioError, Story, Verdict,
    describe,
};

/// Runs whose figures are shown as bars, at the most.
const BARS: usize = 40;

/// One experiment on a page of several.
pub(super) struct Section<'a> {
    pub(super) experiment: &'a Experiment<'a>,
    /// Its runs, in the order of its choices.
    pub(super) runs: &'a [Run],
    pub(super) story: Option<&'a Story>,
    pub(super) said: &'a [Verdict],
    /// Head and rows.
    pub(super) table: (Vec<String>, Vec<Vec<String>>),
    /// Verdicts about published figures.
    pub(super) published: &'a [Judged],
}

/// Page about several experiments.
pub(super) fn front_page(title: &str, introduction: &str, sections: &[Section<'_>]) -> String {
    let mut page = Page::new(title);
    page.text(introduction);
    let stories = sections.iter().filter_map(|section| section.story);
    page.cards(&stories.map(card).collect::<Vec<_>>());
    for section in sections {
        let scenario = section.experiment.scenario();
        page.heading(&scenario.about);
        page.text(scenario.look_at.as_deref().unwrap_or_default());
        let recordings = section.runs.iter().map(|run| run.recording.as_ref());
        compare(&mut page, section.experiment, recordings);
        verdicts(&mut page, section.said);
        let differ = section.published.iter().filter(|one| !one.agrees).count();
        let all = section.published.len();
        let title = format!("Published figures: {} agree, {differ} differ, and why", all - differ);
        page.list(&title, section.published.iter().map(|one| (one.text.as_str(), false)));
        let (head, rows) = &section.table;
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        page.table("All figures, beside those that were published", &head, rows);
    }
    page.finish()
}

/// The opening of an experiment.
fn card(story: &Story) -> Card<'_> {
    let bar = |bar: &Bar| BarView {
        label: bar.label.clone(),
        role: bar.role.name().to_owned(),
        value: bar.value,
        published: bar.published.zip(bar.published_text()),
    };
    let comma = if story.unit.is_empty() { "" } else { ", " };
    let held = format!("{} of {} bounds hold.", story.bounds_held, story.bounds);
    let differs = story.bars.iter().any(|bar| !bar.agrees());
    let note = story.note.as_ref().filter(|_| differs);
    let note = note.map(|note| format!(" What was published differs, because {note}."));
    Card {
        heading: &story.heading,
        sentence: &story.sentence,
        what: format!("{}{comma}{}", story.what, story.unit),
        bars: story.bars.iter().map(bar).collect(),
        more: held + &note.unwrap_or_default(),
    }
}

/// Charts of all runs of an experiment, in the order of its choices. Those of its story are shown
/// first.
fn compare<'a>(
    page: &mut Page,
    experiment: &Experiment<'_>,
    recordings: impl Iterator<Item = Option<&'a Recording>>,
) {
    let places = experiment.places();
    let told = experiment.told().map_or(&[][..], |index| &places[index].shared);
    let cases = places.iter().zip(recordings);
    let cases = cases.filter_map(|(place, recording)| Some(case(place, recording?)));
    page.compare(&cases.collect::<Vec<_>>(), told);
}

/// Page about one run.
pub(super) fn run_page(
    experiment: &Experiment<'_>,
    name: &str,
    run: &Run,
    said: &[Verdict],
) -> String {
    let mut page = begin(experiment, &format!("{name}, hash of the run {}", run.hash), None, said);
    if let Some(recording) = &run.recording {
        page.compare(&[case(&Place::default(), recording)], &[]);
    }
    page.table("All figures", &["figure", "value"], &rows(&run.figures));
    page.finish()
}

/// Page about all runs of a sweep, which are in the order of its choices.
pub(super) fn sweep_page(
    experiment: &Experiment<'_>,
    name: &str,
    runs: &[(Choice, Figures)],
    recordings: &[Recording],
    said: &[Verdict],
) -> Result<String, ScenarioError> {
    let story = experiment.story(runs)?;
    let mut page = begin(experiment, name, story.as_ref(), said);
    page.heading("All runs, side by side");
    let places = experiment.places();
    let names: Vec<String> = runs.iter().map(|(choice, _)| describe(choice)).collect();
    let figures = expected(experiment);
    if runs.len() <= BARS {
        let bars = |figure: &&'_ str| {
            let bar = |((_, figures), place): (&(Choice, Figures), &Place)| {
                Some(BarView {
                    label: label(place),
                    role: place.role.map_or("", Role::name).to_owned(),
                    value: *figures.get(*figure)?,
                    published: None,
                })
            };
            runs.iter().zip(&places).filter_map(bar).collect()
        };
        page.bars(&figures.iter().map(|figure| (*figure, bars(figure))).collect::<Vec<_>>());
    }
    compare(&mut page, experiment, recordings.iter().map(Some));
    let head: Vec<&str> = ["run"].into_iter().chain(figures.iter().copied()).collect();
    let row = |((_, figures_of_run), name): (&(Choice, Figures), &String)| {
        let values = figures.iter().map(|figure| number(figures_of_run.get(*figure).copied()));
        [name.clone()].into_iter().chain(values).collect::<Vec<String>>()
    };
    let rows: Vec<_> = runs.iter().zip(&names).map(row).collect();
    page.table("Figures of all runs", &head, &rows);
    Ok(page.finish())
}

/// The head of a page about one scenario.
fn begin(experiment: &Experiment<'_>, name: &str, story: Option<&Story>, said: &[Verdict]) -> Page {
    let scenario = experiment.scenario();
    let mut page = Page::new(&scenario.about);
    if let Some(story) = story {
        page.cards(&[card(story)]);
    }
    page.text(&format!("Scenario {name}."));
    if let Some(look_at) = &scenario.look_at {
        page.text(&format!("Look at: {look_at}"));
    }
    verdicts(&mut page, said);
    page
}

fn verdicts(page: &mut Page, said: &[Verdict]) {
    let bounds = said.iter().filter(|verdict| verdict.is_bound);
    let held = bounds.clone().filter(|verdict| verdict.holds).count();
    let title = format!("{held} of {} bounds hold", bounds.count());
    page.list(&title, said.iter().map(|verdict| (verdict.text.as_str(), !verdict.holds)));
}

fn case<'a>(place: &Place, recording: &'a Recording) -> Case<'a> {
    let role = place.role.map_or("", Role::name);
    Case { name: place.name.clone(), role, picks: place.shared.clone(), recording }
}

/// The whole place of a run in words.
fn label(place: &Place) -> String {
    let shared = place.shared.iter().map(|(_, value)| value.as_str());
    [place.name.as_str()].into_iter().chain(shared).collect::<Vec<_>>().join(", ")
}

/// The figures of which the scenario expects something, each once.
pub(super) fn expected<'a>(experiment: &'a Experiment<'_>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for expect in &experiment.scenario().expect {
        let name = expect.get_ref().figure.get_ref().as_str();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn rows(figures: &Figures) -> Vec<Vec<String>> {
    let shown = figures.iter().filter(|(_, value)| **value != 0.0);
    shown.map(|(name, value)| vec![name.clone(), number(Some(*value))]).collect()
}

fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return String::new() };
    let digits = if value.fract() == 0.0 { 0 } else { 3 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_why_it_differs_if_it_does() {
        let story = |published| Story {
            heading: "A change (2012)".into(),
            sentence: "It did much.".into(),
            what: "delay of a flow".into(),
            unit: "ms".into(),
            bars: vec![Bar {
                label: "before".into(),
                role: Role::Before,
                value: 100.0,
                published: Some(published),
                published_bound: None,
            }],
            note: Some("the machines were others".into()),
            bounds_held: 3,
            bounds: 3,
        };
        assert_eq!(card(&story(100.0)).more, "3 of 3 bounds hold.");
        let differs = "What was published differs, because the machines were others.";
        assert_eq!(card(&story(200.0)).more, format!("3 of 3 bounds hold. {differs}"));
    }
}
