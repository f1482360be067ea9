//! Figures are possible: no report of the library says more than its links allow. A run with a
//! figure beyond them fails by itself, so here the scenarios run.

use neap_lab::library::{EXPERIMENTS, FILES, PUBLISHED, SCENARIOS};
use neap_lab::report::Watch;
use neap_lab::scenario::{Choice, Experiment, RunError, describe};

fn files(name: &str) -> Result<String, String> {
    let file = FILES.iter().find(|(own, _)| *own == name);
    file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
}

fn run(experiment: &Experiment<'_>, choice: &Choice) -> Result<(), RunError> {
    let watch = Watch { record: true, packets: None };
    experiment.run_watched(choice, &|_| {}, watch).map(|_| ())
}

#[test]
fn every_scenario_of_the_library_has_possible_figures() {
    // `published.rs` records shorter forms of those that run for hundreds of seconds.
    let is_long = |name: &str| EXPERIMENTS.contains(&name) || PUBLISHED.contains(&name);
    for scenario in SCENARIOS.iter().filter(|one| !is_long(one.name)) {
        let experiment = Experiment::parse(scenario.name, scenario.text, &files).expect("sound");
        for choice in experiment.choices() {
            let done = run(&experiment, choice);
            assert_eq!(done, Ok(()), "{} with {}", scenario.name, describe(choice));
        }
    }
}

/// All columns of the first experiment at 100 Mbit/s, the rate at which one frame is most of a
/// sample, and those of the second.
#[test]
fn experiments_have_possible_figures() {
    for (name, words) in [("small-queues", "100mbit"), ("autosizing", "")] {
        let scenario = SCENARIOS.iter().find(|one| one.name == name).expect("of the library");
        let experiment = Experiment::parse(name, scenario.text, &files).expect("sound");
        for choice in experiment.choices().iter().filter(|one| describe(one).contains(words)) {
            assert_eq!(run(&experiment, choice), Ok(()), "{name} with {}", describe(choice));
        }
    }
}

/// One link between two hosts, and what else is said of them.
fn wire(rate: &str, duration: &str, rest: &str) -> String {
    format!(
        "about = \"a wire\"\nwarm_up = \"500ms\"\nduration = \"{duration}\"\n[link.w]\n\
         ends = [\"a\", \"b\"]\nrate = \"{rate}\"\ndelay = \"1ms\"\n{rest}"
    )
}

/// The longest packet of a wire is that of its cards, and it may come within one sample.
#[test]
fn figures_with_jumbo_frames_are_possible() {
    let cards = "[host.a.nic]\nmtu = 9000\n[host.b.nic]\nmtu = 9000\n";
    let app = "[app.u]\nkind = \"bulk\"\nfrom = \"a\"\nto = \"b\"\n";
    let text = wire("10mbit", "2s", &format!("{cards}{app}"));
    let experiment = Experiment::parse("jumbo", &text, &files).expect("sound");
    assert_eq!(run(&experiment, &Vec::new()), Ok(()));
}

/// A packet or a datagram in fragments that is partly sent before a time begins counts in it.
#[test]
fn figures_of_slow_links_and_of_datagrams_in_fragments_are_possible() {
    let app = "[app.u]\nkind = \"udp\"\nfrom = \"a\"\nto = \"b\"\n";
    for (rate, duration, traffic) in [
        ("64kbit", "1s", "message = \"1400\"\ninterval = \"50ms\""),
        ("10mbit", "1s", "message = \"60000\"\ninterval = \"20ms\""),
        ("10mbit", "1s", "message = \"30000\"\ninterval = \"20ms\"\ncount = 4"),
    ] {
        let text = wire(rate, duration, &format!("[host.a]\n[host.b]\n{app}{traffic}\n"));
        let experiment = Experiment::parse("slow", &text, &files).expect("sound");
        assert_eq!(run(&experiment, &Vec::new()), Ok(()), "{traffic}");
        experiment.run(&Vec::new(), &|_| {}).expect("possible figures without a recording");
    }
}

/// The card of the sender cuts its datagrams, whatever other cards take. fq lets the pieces of
/// several datagrams leave in turns, so that many are complete at about one time.
#[test]
fn figures_of_datagrams_that_the_card_of_their_sender_cuts_are_possible() {
    let text = "about = \"cards of two kinds\"\nwarm_up = \"500ms\"\nduration = \"1s\"\n\
        [host.a]\nqdisc = \"fq\"\n[host.b]\n[host.c.nic]\nmtu = 9000\n[router.r]\n\
        [link.near]\nends = [\"a\", \"r\"]\nrate = \"10mbit\"\ndelay = \"1ms\"\n\
        [link.far]\nends = [\"r\", \"b\"]\nrate = \"10mbit\"\ndelay = \"1ms\"\n\
        [link.other]\nends = [\"r\", \"c\"]\nrate = \"10mbit\"\ndelay = \"1ms\"\n\
        [app.u]\nkind = \"udp\"\nfrom = \"a\"\nto = \"b\"\nmessage = \"8000\"\n\
        interval = \"INTERVAL\"\ncount = 4\n";
    for interval in ["20ms", "26ms", "30ms"] {
        let text = text.replace("INTERVAL", interval);
        let experiment = Experiment::parse("cards", &text, &files).expect("sound");
        assert_eq!(run(&experiment, &Vec::new()), Ok(()), "every {interval}");
    }
}

/// What is on its way when a delay ends arrives together with what is sent afterwards.
#[test]
fn figures_of_a_link_whose_delay_rises_and_falls_are_possible() {
    let app = "[app.u]\nkind = \"udp\"\nfrom = \"a\"\nto = \"b\"\nmessage = \"1200\"\n\
        interval = \"1ms\"\n";
    let event =
        |at, delay| format!("[[event]]\nat = \"{at}\"\nlink = \"w\"\ndelay = \"{delay}\"\n");
    let events = [event("2s", "500ms"), event("4s", "10ms")].concat();
    let text = wire("10mbit", "6s", &format!("[host.a]\n[host.b]\n{app}{events}"));
    let experiment = Experiment::parse("changes", &text, &files).expect("sound");
    assert_eq!(run(&experiment, &Vec::new()), Ok(()));
}
