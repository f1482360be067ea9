//! The published experiments: that their files say what runs, and that small runs of them hold.

use neap_lab::library::{EXPERIMENTS, SCENARIOS};
use neap_lab::scenario::{Choice, Experiment, Figures, describe};

fn no_files(_: &str) -> Result<String, String> {
    Err("no such file".into())
}

fn experiment(name: &str) -> Experiment<'static> {
    let scenario = SCENARIOS.iter().find(|one| one.name == name).expect("a scenario of neap's");
    Experiment::parse(name, scenario.text, &no_files).expect("a sound scenario")
}

/// The runs of which all these words are part of the choice.
fn runs(experiment: &Experiment<'_>, words: &[&str]) -> Vec<(Choice, Figures)> {
    let choices = experiment.choices().iter();
    let choices = choices.filter(|choice| words.iter().all(|word| describe(choice).contains(word)));
    choices.map(|c| (c.clone(), experiment.run(c, &|_| {}).expect("a run").figures)).collect()
}

/// One column with a tenth of the flows and of the wire.
fn tenth(experiment: &Experiment<'_>, column: &str, flows: i64, rate: &str) -> Figures {
    let choice = vec![
        ("column".to_owned(), column.into()),
        ("app.bulk.count".to_owned(), flows.into()),
        ("link.wire.rate".to_owned(), rate.into()),
    ];
    experiment.run(&choice, &|_| {}).expect("a run").figures
}

#[test]
fn every_experiment_compares_columns_with_what_was_published() {
    for name in EXPERIMENTS {
        let experiment = experiment(name);
        let scenario = experiment.scenario();
        assert!(scenario.column.len() >= 4, "{name}");
        assert_eq!(scenario.published.len(), 2, "{name}");
        assert!(scenario.row.iter().any(|row| !row.published.is_empty()), "{name}");
        assert!(!scenario.expect.is_empty(), "{name}");
    }
}

#[test]
fn what_was_published_needs_a_column_and_a_value() {
    let text = SCENARIOS.iter().find(|one| one.name == "autosizing").expect("of neap's").text;
    let error = |from: &str, to: &str| {
        let text = text.replace(from, to);
        Experiment::parse("file", &text, &no_files).err().expect("a fault").to_string()
    };
    let missing = error(r#"published = ["at write", "2014"]"#, r#"published = ["2013", "2014"]"#);
    assert!(missing.contains("is no column"), "{missing}");
    let short = error(r#"["1397", "1397"]"#, r#"["1397"]"#);
    assert!(short.contains("one published value for each column"), "{short}");
}

#[test]
fn frames_of_a_slow_link_are_short() {
    let slow = runs(&experiment("small-queues"), &["column=neap", "gso=true", "100mbit"]);
    let below = slow[0].1["link.wire.there.below_p99_ms"];
    assert!(below < 1.2, "{below} ms");
}

#[test]
fn frames_of_a_long_path_are_few_and_the_table_says_where_others_were_different() {
    let all = experiment("autosizing");
    let runs = runs(&all, &[]);
    let verdicts = all.judge(&runs).expect("figures that exist");
    assert!(verdicts.iter().all(|verdict| verdict.holds), "{verdicts:#?}");
    let table = all.table(&runs).expect("figures that exist");
    assert_eq!(table.published, ["at write", "2014"]);
    assert_eq!(table.columns, ["at write", "2014", "6.18", "neap"]);
    assert_eq!(table.groups[1].rows[0].published, ["599", "232"]);
    assert_eq!(table.judged.len(), 5, "every published row has a verdict");
    let judged = |what: &str| {
        let own = table.judged.iter().find(|one| one.text.starts_with(what));
        own.expect("a verdict")
    };
    let packets = judged("IpOutRequests: ");
    assert!(!packets.agrees && packets.text.contains(", published 232 (-"), "{packets:?}");
    assert!(packets.text.contains(": differs, because "), "{packets:?}");
    let segments = judged("TcpOutSegs: ");
    assert!(segments.agrees && segments.text.ends_with(": agrees"), "{segments:?}");
    assert_eq!(table.published_figures(), (10, 2));
}

#[test]
fn frames_without_offload_of_any_kind_are_single_segments() {
    let one = runs(&experiment("small-queues"), &["column=2012", "gso=false", "100mbit"]);
    let figures = &one[0].1;
    assert_eq!(figures["link.wire.there.super_frames"], 0.0);
    // 57 buffers of 2304 bytes fit the limit: 7.0 ms.
    let below = figures["link.wire.there.below_p99_ms"];
    assert!((6.9..7.2).contains(&below), "{below} ms");
}

#[test]
fn a_mark_bounds_memory_and_half_of_it_wakes_seldom() {
    let all = experiment("low-water-mark");
    let run = |column: &str| tenth(&all, column, 10, "1700mbit");
    let [off, every, half] = ["off", "every ACK", "half rule"].map(run);
    let of = |figures: &Figures, name: &str| figures[&format!("host.a.{name}")];
    let per_flow = |figures: &Figures| of(figures, "memory_pages_mean") * 4096.0 / 10.0;
    assert!(per_flow(&off) > 35e6, "{}", per_flow(&off));
    assert!((2.9e6..4.1e6).contains(&per_flow(&half)), "{}", per_flow(&half));
    // Half a mark per wake-up: one for each MiB.
    let goodput = half["app.bulk.goodput_mbit"];
    let wakeups = of(&half, "wakeups_per_s");
    let expected = goodput * 1e6 / 8.0 / f64::from(1 << 20);
    assert!((0.8..1.2).contains(&(wakeups / expected)), "{wakeups}, not {expected}");
    assert!(of(&every, "wakeups_per_s") > 10.0 * wakeups);
    assert!((goodput / off["app.bulk.goodput_mbit"] - 1.0).abs() < 0.01);
}

#[test]
fn flows_share_timers_and_have_their_rate() {
    let all = experiment("internal-pacing");
    let run = |column: &str| tenth(&all, column, 80, "5gbit");
    let [old, fq, neap] = ["internal 2017", "fq", "neap"].map(run);
    let timers = |figures: &Figures| figures["host.a.timer_interrupts_per_s"];
    let each_second = |figures: &Figures, name: &str| figures[name] * 4.0;
    // A timer for each frame of four segments, and only where flows have timers.
    let frames = old["link.wire.there.frames"] * 4.0;
    assert!((timers(&old) / frames - 1.0).abs() < 0.01, "{} of {frames}", timers(&old));
    let released = |figures: &Figures| figures["host.a.departures_timed_per_s"];
    assert_eq!((released(&old), released(&fq)), (timers(&old), 0.0));
    assert!(released(&neap) > 10.0 * timers(&neap), "one expiration serves many flows");
    assert!(timers(&neap) <= timers(&fq), "{} of {}", timers(&neap), timers(&fq));
    // Most of fq's are those of its own timer.
    let of_sockets = each_second(&fq, "host.a.NeapWheelTimers");
    assert!(timers(&fq) > 2.0 * of_sockets, "{} of {}", of_sockets, timers(&fq));
    for end in ["slowest", "fastest"] {
        let rate = neap[&format!("app.bulk.{end}_mbit")];
        assert!((rate / 48.0 - 1.0).abs() < 0.005, "{end}: {rate}");
    }
}
