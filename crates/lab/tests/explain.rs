//! What held a flow is found, and said in words.

use neap_lab::library::SCENARIOS;
use neap_lab::report::{Explanation, Gate, Watch};
use neap_lab::scenario::{Choice, Experiment};

/// A trace of one opportunity per millisecond, and no other file.
fn files(name: &str) -> Result<String, String> {
    if name == "steady" { Ok("1\n".into()) } else { Err(format!("there is no file {name}")) }
}

/// The explanations of all applications of one run.
fn explain(text: &str, choice: &Choice) -> Vec<Explanation> {
    let experiment = Experiment::parse("test.toml", text, &files).expect("sound");
    let watch = Watch { record: true, packets: None };
    let run = experiment.run_watched(choice, &|_| {}, watch).expect("a run");
    let recording = run.recording.expect("recorded");
    assert_eq!(experiment.run(choice, &|_| {}).expect("a run").hash, run.hash);
    recording.flows.iter().map(Explanation::new).collect()
}

/// One flow at a link of 10 Mbit/s and a round trip of 20 ms.
fn one(app: &str, link: &str) -> Explanation {
    let text = format!(
        "about = \"a flow\"\nduration = \"4s\"\n[host.a]\n[host.b]\n[link.wire]\n\
         ends = [\"a\", \"b\"]\nrate = \"10mbit\"\ndelay = \"10ms\"\n{link}\n\
         [app.flow]\nfrom = \"a\"\nto = \"b\"\n{app}\n"
    );
    let mut all = explain(&text, &Vec::new());
    assert_eq!(all.len(), 1);
    let explanation = all.remove(0);
    let sum: f64 = explanation.shares.iter().map(|share| share.percent).sum();
    assert!((sum - 100.0).abs() < 1e-9 || explanation.shares.is_empty(), "{explanation:?}");
    assert!(explanation.pauses.is_sorted_by(|a, b| a.length_ms >= b.length_ms), "{explanation:?}");
    explanation
}

fn share(explanation: &Explanation, gate: Gate) -> f64 {
    explanation.shares.iter().find(|share| share.gate == gate).map_or(0.0, |share| share.percent)
}

#[track_caller]
fn says(explanation: &Explanation, words: &str) {
    let text = explanation.sentences.join(" ");
    assert!(text.contains(words), "{words:?} is not in {text}");
}

#[test]
fn a_full_device_is_the_reason_for_the_rate_of_its_flow() {
    let flow = one("kind = \"bulk\"", "");
    assert!(share(&flow, Gate::SmallQueue) > 80.0, "{flow:?}");
    says(&flow, "the slowest link of its way (wire there)");
    says(&flow, "the device decided the rate");
}

#[test]
fn a_reader_that_is_slow_closes_the_window() {
    let app = "kind = \"bulk\"\nread_rate = \"1mbit\"\nrcvbuf = \"32k\"";
    let flow = one(app, "");
    assert!(share(&flow, Gate::Rwnd) > 80.0, "{flow:?}");
    says(&flow, "The window of the receiver held it");
    assert!(flow.pauses[0].cause.contains("receive window"), "{flow:?}");
}

#[test]
fn a_paced_flow_has_the_rate_of_its_pacing() {
    let flow = one("kind = \"bulk\"\npacing_rate = \"3mbit\"", "");
    assert!(share(&flow, Gate::Pacing) > 80.0, "{flow:?}");
    says(&flow, "a flow was paced at 3.00 Mbit/s on average");
}

#[test]
fn an_application_that_pauses_is_the_reason_itself() {
    let app =
        "kind = \"request-response\"\nrequest = \"100\"\nresponse = \"1k\"\nthink = \"300ms\"";
    let flow = one(app, "");
    assert!(share(&flow, Gate::Idle) > 80.0, "{flow:?}");
    says(&flow, "The application decided the rate");
    assert!(flow.pauses[0].length_ms > 280.0 && flow.pauses[0].cause.starts_with("no data"));
    // A file that has arrived before anything is recorded.
    let early = "about = \"a file\"\nwarm_up = \"2s\"\nduration = \"1s\"\n[host.a]\n[host.b]\n\
                 [link.wire]\nends = [\"a\", \"b\"]\nrate = \"10mbit\"\ndelay = \"10ms\"\n\
                 [app.flow]\nkind = \"transfer\"\nfrom = \"a\"\nto = \"b\"\nbytes = \"10k\"\n";
    let early = explain(early, &Vec::new()).remove(0);
    says(&early, "None of its connections was open in the recorded time.");
    assert!(!early.sentences.join(" ").contains("datagrams"), "{early:?}");
    let datagrams = one("kind = \"udp\"\nmessage = \"100\"\ninterval = \"10ms\"", "");
    says(&datagrams, "datagrams pass none of the gates");
    assert!(datagrams.shares.is_empty() && datagrams.pauses.is_empty());
}

/// The link is down for a second: nothing comes back, and timeouts expire.
#[test]
fn an_outage_shows_as_timeouts() {
    let flow = one("kind = \"bulk\"", "outages = [[\"1s\", \"2s\"]]");
    let longest = &flow.pauses[0];
    assert!(longest.cause.contains("retransmission timeout"), "{flow:?}");
    assert!(longest.length_ms > 190.0 && longest.from_ms >= 990.0, "{flow:?}");
    says(&flow, "retransmission timeouts expired");
}

#[test]
fn a_window_that_loss_keeps_small_is_told_with_what_it_allows() {
    let flow = one("kind = \"bulk\"", "loss = \"4%\"");
    assert!(share(&flow, Gate::Cwnd) > 50.0, "{flow:?}");
    says(&flow, "The congestion window held it");
    says(&flow, "each loss that was found reduced the window");
}

#[test]
fn a_short_transfer_is_made_of_round_trips() {
    let flow = one("kind = \"transfer\"\nbytes = \"2k\"", "");
    says(&flow, "Round trips decided the rate");
}

#[test]
fn the_rate_of_a_link_is_that_of_the_time_that_was_measured() {
    // Three seconds of 10 Mbit/s and one of 50.
    let event = "[[event]]\nat = \"3s\"\nlink = \"wire\"\nrate = \"50mbit\"\n";
    let raised = one(&format!("kind = \"bulk\"\n{event}"), "");
    says(&raised, "of the 20.0 Mbit/s that the slowest link of its way (wire there) carries");
    let hop = "there = { bottleneck = { rate = \"5mbit\" } }";
    let hop = one(&format!("kind = \"bulk\"\n{}", event.replace("50mbit", "1mbit")), hop);
    says(&hop, "of the 4.00 Mbit/s that");
}

#[test]
fn small_packets_take_of_a_trace_what_it_counts_for_them() {
    // A packet of 128 bytes is 132 of an opportunity of 1504, and 166 on the wire.
    let text = "about = \"a trace\"\nduration = \"4s\"\n[host.a]\n[host.b]\n[link.wire]\n\
                ends = [\"a\", \"b\"]\nrate = \"100mbit\"\ndelay = \"10ms\"\n\
                there = { trace = \"steady\" }\n[app.flow]\nkind = \"udp\"\nfrom = \"a\"\n\
                to = \"b\"\nmessage = 100\ninterval = \"110us\"\n";
    let text = explain(text, &Vec::new()).remove(0).sentences.remove(0);
    assert!(text.contains("of the 12.3 Mbit/s that the slowest link"), "{text}");
    let used = text.split("included, took ").nth(1).and_then(|rest| rest.split(' ').next());
    let used: f64 = used.expect("a share").parse().expect("a number");
    assert!((79.0..=80.5).contains(&used), "{text}");
}

#[test]
fn answers_on_many_connections_are_all_counted() {
    let app = "kind = \"request-response\"\nrequest = 100\nresponse = \"5k\"\n\
               think = \"100ms\"\ncount = 100";
    let flows = one(app, "");
    let text = &flows.sentences[0];
    assert!(text.starts_with("The answers on 100 connections together got "), "{text}");
    let part = text.split("which is ").nth(1).and_then(|rest| rest.split(' ').next());
    let part: f64 = part.expect("a share").parse().expect("a number");
    assert!((80.0..=100.0).contains(&part), "the link is full of them: {text}");
}

/// Neither figures nor hash change, which `explain` checks, and a run explains itself again.
#[test]
fn scenarios_of_the_library_are_explained() {
    for (name, words) in [
        ("incast", "retransmission timeouts expired"),
        ("sharing", "other traffic had the rest of it"),
        ("policer", "reduced the window"),
    ] {
        let scenario = SCENARIOS.iter().find(|one| one.name == name).expect("of the library");
        let all = explain(scenario.text, &Vec::new());
        assert_eq!(all, explain(scenario.text, &Vec::new()));
        let text: Vec<String> = all.iter().map(|one| one.sentences.join(" ")).collect();
        assert!(text.iter().any(|text| text.contains(words)), "{name}: {text:?}");
    }
}
