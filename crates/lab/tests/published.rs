//! Published results of others, in shorter forms of their scenarios, and the figures that they are
//! compared by.

use neap_lab::library::{PUBLISHED, SCENARIOS};
use neap_lab::report::Watch;
use neap_lab::scenario::{Experiment, Figures};
use toml::Value;

fn experiment(name: &str) -> Experiment<'static> {
    let scenario = SCENARIOS.iter().find(|one| one.name == name).expect("a scenario of neap's");
    let no_files = &|_: &str| Err("no files".to_owned());
    Experiment::parse(name, scenario.text, no_files).expect("a sound scenario")
}

/// The figures of one column with other values of some parameters.
fn run(experiment: &Experiment<'_>, column: &str, values: &[(&str, Value)]) -> Figures {
    let mut choice = vec![("column".to_owned(), column.into())];
    choice.extend(values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    // Samples are checked against what links carry, too.
    let watch = Watch { record: true, packets: None };
    experiment.run_watched(&choice, &|_| {}, watch).expect("a run").figures
}

#[test]
fn every_published_figure_has_a_column_and_a_reason_to_differ() {
    for name in PUBLISHED {
        let experiment = experiment(name);
        let scenario = experiment.scenario();
        let rows: Vec<_> = scenario.row.iter().flat_map(|row| &row.published).collect();
        assert!(rows.len() >= 3 && !scenario.published.is_empty(), "{name}");
        assert!(scenario.story.is_some() && !scenario.expect.is_empty(), "{name}");
    }
}

#[test]
fn bbr_has_shallow_queues_and_cubic_deep_ones() {
    let all = experiment("bbr-shares");
    let share = |column: &str, packets: &str| {
        let figures = run(
            &all,
            column,
            &[
                ("link.wan.buffer", packets.into()),
                ("warm_up", "20s".into()),
                ("duration", "120s".into()),
            ],
        );
        let [bbr, cubic] = ["bbr", "cubic"].map(|app| figures[&format!("app.{app}.goodput_mbit")]);
        bbr / (bbr + cubic)
    };
    let [shallow, deep, deepest] =
        ["33 packets", "267 packets", "2133 packets"].map(|packets| share("BBR v1", packets));
    assert!(shallow > 0.85, "{shallow}");
    assert!((0.3..0.6).contains(&deep), "{deep}");
    assert!(deepest < 0.3, "{deepest}");
    let newer = share("BBR v3", "33 packets");
    assert!(newer < shallow, "{newer} and {shallow}");
}

#[test]
fn reno_behind_codel_has_what_its_authors_computed() {
    let all = experiment("codel-target");
    for (target, part) in [("5ms", 0.05), ("20ms", 0.2), ("50ms", 0.5), ("100ms", 1.0)] {
        let figures = run(
            &all,
            "Reno",
            &[("link.wan.there.codel.target", target.into()), ("duration", "120s".into())],
        );
        // RFC 8289, section 3.2, as a share of the link.
        let expected = (3.0 + 6.0 * part - part * part) / (4.0 * (1.0 + part));
        let busy = figures["link.wan.there.busy"];
        assert!((busy - expected).abs() < 0.025, "{target}: {busy}, computed {expected}");
    }
}

#[test]
fn a_flow_without_a_queue_goes_first_in_fq_codel() {
    let all = experiment("fq-codel");
    let latency = |column: &str, uploads: i64| {
        let values = [("app.upload.count", uploads.into()), ("duration", "10s".into())];
        run(&all, column, &values)["app.game.latency_p50_ms"]
    };
    let [one, many] = [1, 16].map(|uploads| latency("fq_codel", uploads));
    assert!(many < 20.1 && many < 1.1 * one, "{one} ms and {many} ms");
    let codel = latency("codel", 16);
    assert!(codel > 1.5 * many, "{codel} ms");
}

#[test]
fn many_servers_that_answer_at_once_have_timeouts() {
    let all = experiment("incast-timeouts");
    // A run has four to eight of the slow queries: figures are means of several.
    let seeds = 1..=4_i64;
    let query = |column: &str, servers: i64| {
        let mut means = [0.0; 2];
        for seed in seeds.clone() {
            let duration = ("duration", "1500ms".into());
            let values = [("app.query.count", servers.into()), duration, ("seed", seed.into())];
            let figures = run(&all, column, &values);
            let names = ["query_mean_ms", "queries_with_timeout"];
            for (mean, name) in means.iter_mut().zip(names) {
                *mean += figures[&format!("app.query.{name}")] / seeds.clone().count() as f64;
            }
        }
        means
    };
    let [alone, timeouts] = query("RTOmin 300 ms", 10);
    // A query takes less than 10 ms, and one of fifty may wait for a timeout.
    let longest = 10.0 + 0.02 * 300.0;
    assert!(alone < longest && timeouts < 0.02, "{alone} ms, {timeouts}");
    let [slow, timeouts] = query("RTOmin 300 ms", 40);
    assert!(slow > 10.0 * alone && timeouts > 0.5, "{slow} ms, {timeouts}");
    let [quick, _] = query("RTOmin 10 ms", 40);
    assert!(quick < 0.2 * slow, "{quick} ms and {slow} ms");
    let [probed, fewer] = query("neap", 40);
    assert!(probed < 0.5 * slow && fewer < timeouts, "{probed} ms, {fewer}");
}
