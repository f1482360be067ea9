//! Recordings for plots: which end of an application they are about, and that a page has them.

use neap_lab::report::{Case, Page, Quantity, Recording, Side, Watch};
use neap_lab::scenario::Experiment;

fn record(text: &str) -> Recording {
    let no_files = |name: &str| Err(format!("there is no file {name}"));
    let experiment = Experiment::parse("test.toml", text, &no_files).expect("sound");
    let watch = Watch { record: true, packets: None };
    let run = experiment.run_watched(&Vec::new(), &|_| {}, watch).expect("a run");
    run.recording.expect("recorded")
}

#[test]
fn tracks_of_an_application_are_of_the_end_that_sends_more() {
    // Requests have a slow way, which is no bound of the answers.
    let text = "about = \"downloads\"\nwarm_up = \"500ms\"\nduration = \"4s\"\n[host.a]\n[host.b]\n\
                [link.wire]\nends = [\"a\", \"b\"]\nrate = \"20mbit\"\ndelay = \"10ms\"\n\
                there = { rate = \"2mbit\" }\n[app.get]\nkind = \"request-response\"\nfrom = \"a\"\nto = \"b\"\n\
                request = 100\nresponse = \"1m\"\n";
    let recording = record(text);
    let flows = &recording.flows[0];
    assert_eq!(flows.side, Side::Server);
    let values = |quantity| {
        let track = recording.of(quantity).find(|track| track.subject == "get");
        &track.unwrap_or_else(|| panic!("no {quantity:?}")).values
    };
    let goodput = values(Quantity::Goodput);
    let mean = goodput.iter().sum::<f64>() / goodput.len() as f64;
    assert!((mean / flows.goodput_mbit - 1.0).abs() < 0.05, "{mean} {}", flows.goodput_mbit);
    let most = values(Quantity::InFlight).iter().copied().fold(0.0, f64::max);
    assert!(most > 10_000.0, "{most} bytes in flight");
}

#[test]
fn a_page_has_the_latencies_of_applications_however_many_links_there_are() {
    let link = |from: &str, to: &str| {
        format!(
            "[link.{from}{to}]\nends = [\"{from}\", \"{to}\"]\nrate = \"20mbit\"\ndelay = \"1ms\"\n"
        )
    };
    let nodes = ["a", "r", "s", "t", "u", "b"];
    let links: String = nodes.windows(2).map(|pair| link(pair[0], pair[1])).collect();
    let text = format!(
        "about = \"a long way\"\nduration = \"1s\"\n[host.a]\n[host.b]\n\
         [router.r]\n[router.s]\n[router.t]\n[router.u]\n{links}\
         [app.game]\nkind = \"paced\"\nfrom = \"a\"\nto = \"b\"\nmessage = 100\ninterval = \"10ms\"\n"
    );
    let recording = record(&text);
    assert!(recording.distributions.len() > 9, "{:?}", recording.distributions.len());
    let mut page = Page::new("a long way");
    let (name, picks) = (String::new(), Vec::new());
    page.compare(&[Case { name, role: "", picks, recording: &recording }], &[]);
    assert!(page.finish().contains("game: latency of messages"));
}
