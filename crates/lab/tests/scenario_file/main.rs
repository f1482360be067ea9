//! `guide/src/scenario-file.md` has every key of a scenario, and every figure of a run.

mod keys;

use keys::Keys;
use neap_lab::scenario::Experiment;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A part of the page.
#[derive(Default)]
struct Section {
    /// What is between backquotes in the first cells of its tables.
    words: BTreeSet<String>,
    text: String,
}

/// The words between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The parts of the page by what is between backquotes in their headings; without such, by the
/// heading.
fn sections() -> BTreeMap<String, Section> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guide/src/scenario-file.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut heading = String::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix('#') {
            let title = title.trim_start_matches(['#', ' ']);
            let is_of_figures = title.starts_with("Figures");
            let own = quoted(title).next().filter(|_| !is_of_figures);
            heading = own.unwrap_or_else(|| title.to_owned());
        }
        let section = sections.entry(heading.clone()).or_default();
        section.text += line;
        let first = line.strip_prefix('|').and_then(|cells| cells.split('|').next());
        section.words.extend(first.into_iter().flat_map(quoted));
    }
    sections
}

fn named(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn the_page_has_every_key_of_the_model_and_no_other() {
    let sections = sections();
    let Keys { tables, words } = keys::all();
    assert!(tables.len() > 20 && words.len() > 4, "{tables:?}");
    for (path, keys) in &tables {
        let (heading, known) = match path.as_str() {
            "" => ("The file", named(keys)),
            "router.NAME" => ("router.NAME", BTreeSet::new()),
            // They have the keys of both directions, without those of the link itself.
            way if way.contains(".there") || way.contains(".back") => continue,
            path => (path, named(keys)),
        };
        let section = sections.get(heading).unwrap_or_else(|| panic!("no section of {heading}"));
        let mut own = section.words.clone();
        // Values of these keys have tables of their own.
        for (key, values) in &words {
            if key.rsplit_once('.').is_some_and(|(table, _)| table == path) {
                own.retain(|word| known.contains(word) || !values.contains(&word.as_str()));
            }
        }
        assert_eq!(own, known, "{heading}");
    }
    for (key, values) in &words {
        let (table, _) = key.rsplit_once('.').unwrap_or(("The file", key));
        if table.contains(".there") || table.contains(".back") {
            continue;
        }
        for value in *values {
            let text = &sections[table].text;
            let is_there =
                text.contains(&format!("`{value}`")) || text.contains(&format!("\"{value}\""));
            assert!(is_there, "{key} may be {value}");
        }
    }
}

#[test]
fn directions_of_a_link_have_the_keys_of_the_link() {
    let Keys { tables, .. } = keys::all();
    let mut both = named(tables["link.NAME"]);
    for own in ["ends", "there", "back"] {
        assert!(both.remove(own), "{own}");
    }
    assert_eq!(named(tables["link.NAME.there"]), both);
    assert_eq!(tables["link.NAME.there"], tables["link.NAME.back"]);
}

/// Applications of all kinds that have figures of their own, over a hop, a router and a policer.
const ALL_FIGURES: &str = r#"
    about = "all figures"
    duration = "1s"
    [host.a]
    [host.b]
    [router.r]
    [link.near]
    ends = ["a", "r"]
    rate = "100mbit"
    delay = "1ms"
    there = { bottleneck = { rate = "50mbit" } }
    [link.far]
    ends = ["r", "b"]
    rate = "20mbit"
    delay = "1ms"
    [app.file]
    kind = "transfer"
    from = "a"
    to = "b"
    bytes = "100k"
    [app.query]
    kind = "request-response"
    from = "b"
    to = "a"
    count = 2
    request = 100
    response = 1000
    barrier = true
    [app.game]
    kind = "udp"
    from = "a"
    to = "b"
    message = 100
    interval = "10ms"
"#;

#[test]
fn the_page_has_every_figure_of_a_run_and_no_other() {
    let sections = sections();
    let no_files = |_: &str| Err("no files".to_owned());
    let experiment = Experiment::parse("figures.toml", ALL_FIGURES, &no_files).expect("sound");
    let run = experiment.run(&Vec::new(), &|_| {}).expect("figures");
    let mut figures: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for name in run.figures.keys() {
        let (subject, figure) = name.rsplit_once('.').expect("a subject");
        let kind = subject.split('.').next().expect("a kind");
        // Names of counters begin so, and are too many.
        if figure.starts_with(|first: char| first.is_ascii_lowercase()) {
            figures.entry(kind).or_default().insert(figure.to_owned());
        }
    }
    for (kind, heading) in [
        ("app", "Figures of `app.NAME`"),
        ("host", "Figures of `host.NAME`"),
        ("link", "Figures of `link.NAME.there` and `link.NAME.back`"),
    ] {
        let mut said = sections[heading].words.clone();
        if kind == "host" {
            assert!(said.remove("TcpRetransSegs"));
            assert!(run.figures.contains_key("host.a.TcpRetransSegs"));
        }
        assert_eq!(said, figures[kind], "{heading}");
    }
    let general = |name: &String| {
        let parts: Vec<&str> = name.split('.').collect();
        match parts.as_slice() {
            [kind, _, rest @ ..] => format!("{kind}.NAME.{}", rest.join(".")),
            _ => name.clone(),
        }
    };
    let columns: BTreeSet<String> = run.series.names.iter().skip(1).map(general).collect();
    assert_eq!(sections["Over time"].words, columns);
}
