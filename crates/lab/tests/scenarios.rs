//! Scenario files: what is refused and how it is said, and that what they describe is what runs.

use neap_lab::scenario::{Experiment, Figures, ScenarioError};

const BASE: &str = r#"about = "two hosts behind a router"
duration = "1s"
warm_up = "200ms"

[host.a]
[host.b]
[router.r]

[link.access]
ends = ["a", "r"]
rate = "1gbit"
delay = "1ms"

[link.wan]
ends = ["r", "b"]
rate = "50mbit"
delay = "9ms"
buffer = "100 packets"

[app.bulk]
kind = "bulk"
from = "a"
to = "b"
"#;

/// Two hosts at one link of 100 Mbit/s, with more keys of the link, and more tables.
fn pair(keys: &str, tables: &str) -> String {
    format!(
        "about = \"two hosts\"\nduration = \"1s\"\n[host.a]\n[host.b]\n[link.w]\n\
         ends = [\"a\", \"b\"]\nrate = \"100mbit\"\ndelay = \"10ms\"\n{keys}\n{tables}\n"
    )
}

const BULK: &str = "[app.x]\nkind = \"bulk\"\nfrom = \"a\"\nto = \"b\"\n";

/// 8 Mbit/s of payload.
const UDP: &str = "[app.x]\nkind = \"udp\"\nfrom = \"a\"\nto = \"b\"\nmessage = 1000\n\
                   interval = \"1ms\"\n";

fn no_files(name: &str) -> Result<String, String> {
    if name == "steady" { Ok("1\n2\n3\n".into()) } else { Err("no such file".into()) }
}

fn figures(text: &str) -> (Figures, String) {
    let experiment = Experiment::parse("test.toml", text, &no_files).expect("a sound scenario");
    let run = experiment.run(&vec![], &|_| {}).expect("a run");
    (run.figures, run.hash)
}

fn error(text: &str) -> String {
    let result = Experiment::parse("test.toml", text, &no_files).map(|_| ());
    result.expect_err("an unsound scenario").to_string()
}

#[test]
fn a_processor_whose_polls_take_time_has_fewer_turns() {
    let text = pair("", BULK);
    let slow = text.replacen("[host.a]", "[host.a]\nper_poll = \"2ms\"", 1);
    let [quick, slow] = [text, slow].map(|text| figures(&text).0["host.a.turns_per_s"]);
    assert!(quick > 600.0 && slow <= 501.0, "{quick} {slow}");
}

#[test]
fn packets_pass_routers_and_the_slowest_port_decides() {
    let (figures, hash) = figures(BASE);
    let goodput = figures["app.bulk.goodput_mbit"];
    assert!((44.0..50.0).contains(&goodput), "{goodput}");
    let srtt = figures["app.bulk.srtt_p50_ms"];
    assert!((20.0..46.0).contains(&srtt), "{srtt}");
    assert!(figures["link.wan.there.most_queued_bytes"] > 10_000.0);
    assert_eq!(self::figures(BASE).1, hash, "equal scenarios run equally");
}

#[test]
fn faults_are_named_with_file_line_and_key() {
    let cases = [
        ("seeds = 5\n", "", "test.toml:1: seeds: unknown field"),
        ("", "[app.x]\nkind = \"bulk\"\nfrom = \"a\"\nto = \"c\"\n", ":27: to: there is no \"c\""),
        ("", "count = 0\n", ":24: count: must be at least 1"),
        ("", "bytes = 5\n", ":24: bytes: means nothing for Bulk"),
        ("", "start = \"9s\"\n", ":24: start: lies behind the end"),
        ("", "priority = 16\n", ":24: priority: is from 0 to 15"),
        ("", "keepalive = \"0s\"\n", ":24: keepalive: is from 1s to 32767s"),
        ("", "pacing_rate = \"0mbit\"\n", ":24: pacing_rate: invalid value"),
        ("", "[host.b.nic]\ngro = true\nchecksums = false\n", ":25: gro: needs checksums"),
        ("", "[host.a.sysctl]\n\"net.ipv4.tcp_sack\" = 7\n", ":25: net.ipv4.tcp_sack: net.ipv4"),
        ("", "[[event]]\nat = \"5s\"\nlink = \"wan\"\ndown = true\n", ":26: link: this event lies"),
        ("", "[[event]]\nat = \"1s\"\nlink = \"wan\"\n", ":26: link: this event changes nothing"),
        ("", "[[event]]\nat = \"1s\"\nhost = \"a\"\n", ":26: host: this event changes nothing"),
        ("", "[[event]]\nat = \"1s\"\n", ":24: event: an event names either a link or a host"),
        ("", "[router.a]\n", ":24: router.a: is a host already"),
        ("", "[host.c]\n", ":24: host.c: no link ends at this host"),
        ("", "[host.c.nic]\nmtu = 1500\n", ":24: host.c: no link ends at this host"),
        (
            "",
            "[[event]]\nat = \"1s\"\nhost = \"a\"\n[event.sysctl]\n\"net.ipv4.tcp_sack\" = 7\n",
            ":28: net.ipv4.tcp_sack: net.ipv4.tcp_sack: \"7\" is not 0 or 1",
        ),
        ("", "[[expect]]\nfigure = \"x\"\n", ":25: figure: expects nothing"),
        (
            "",
            "[[expect]]\nfigure = \"x\"\nat_least = 1\nwhen = { \"link.wan.loss\" = \"1.0%\" }\n\
             [sweep]\n\"link.wan.loss\" = [\"1%\"]\n",
            ":27: when: no run has these values",
        ),
        (
            "",
            "[sweep]\n\"link.wan.rate\" = [\"1mbit\", \"fast\"]\n",
            ":25: link.wan.rate: link.wan.rate=fast",
        ),
        (
            "",
            "[sweep]\n\"link.wan.colour\" = [1]\n",
            ":25: link.wan.colour: link.wan.colour=1: unknown field",
        ),
        (
            "",
            "[sweep]\n\"published\" = [[]]\n",
            ":25: published: published: changes nothing in a run",
        ),
        (
            "",
            "[sweep]\n\"link.wan.rate\" = [\"1mbit\", \"2mbit\", \"1mbit\"]\n",
            ":25: link.wan.rate: link.wan.rate=1mbit: is there twice",
        ),
        (
            "",
            "[sweep]\n\"app.bulk.write\" = [1000, \"1000\"]\n",
            ":25: app.bulk.write: app.bulk.write=1000: is there twice",
        ),
        (
            "",
            "[[column]]\nname = \"one\"\n[[column]]\nname = \"one\"\n\
             set = { duration = \"2s\" }\n",
            ":27: name: column=one: is there twice",
        ),
    ];
    for (before, after, said) in cases {
        let error = error(&format!("{before}{BASE}{after}"));
        assert!(error.contains(said), "{error}\n  instead of\n{said}");
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    let cases = [
        (UDP.replace("1000", "\"100k\""), "message: must be from 8 to 65507 bytes"),
        (UDP.replace("1000", "7"), "message: must be from 8 to 65507 bytes"),
        (
            UDP.replace("udp", "paced").replace("1000", "9000000000000000000"),
            "message: must be from 1 to 1073741824 bytes",
        ),
        (
            UDP.replace("udp", "mixed").replace("message = 1000", "urgent = 1\nframe = \"2g\""),
            "frame: must be from 1 to 1073741824 bytes",
        ),
        (format!("{BULK}[host.b.nic]\nrx_frames = 32\n"), "rx_frames: needs a time"),
        (format!("{BULK}[host.a.nic]\ntx_usecs = 0\ntx_frames = 0\n"), "tx_frames: needs a time"),
    ];
    for (tables, said) in cases {
        let error = error(&pair("", &tables));
        assert!(error.contains(said), "{error}\n  instead of\n{said}");
    }
    let ipv6 = |keys, tables: &str| error(&format!("ipv6 = true\n{}", pair(keys, tables)));
    let link = ipv6("there = { mtu = 1279 }", BULK);
    assert!(link.contains("mtu: a link of IPv6 carries at least 1280 bytes"), "{link}");
    let card = ipv6("", &format!("{BULK}[host.a.nic]\nmtu = 600\n"));
    assert!(card.contains("1280 with ipv6"), "{card}");
    let hop = "trace = \"steady\", bottleneck = { rate = \"1mbit\" }";
    let hop = error(&pair(&format!("there = {{ {hop} }}"), BULK));
    assert!(hop.contains("bottleneck: excludes trace, which says the rate of the hop"), "{hop}");
}

#[test]
fn a_hostile_peer_has_an_interval_and_a_port_for_each_connection() {
    let hostile = |attack: &str, keys: &str| {
        let link = "[link.to-enemy]\nends = [\"enemy\", \"b\"]\nrate = \"10mbit\"\n";
        let enemy = format!("[hostile.enemy]\nattack = \"{attack}\"\ntarget = \"b\"\n{keys}\n");
        pair("", &format!("{link}{enemy}stop = \"1s\"\n"))
    };
    let cases = [
        (hostile("syn-flood", "interval = \"0s\""), "interval: must be longer than 0"),
        (hostile("holes", "count = 45537"), "count: must be at most 45536"),
        (hostile("orphan-churn", "count = 2001"), "count: must be at most 2000"),
    ];
    for (text, said) in cases {
        let error = error(&text);
        assert!(error.contains(said), "{error}\n  instead of\n{said}");
    }
    let sound = hostile("orphan-churn", "count = 2000\ninterval = \"1ns\"");
    assert!(Experiment::parse("test.toml", &sound, &no_files).is_ok());
    // The last port of all is the last connection's.
    let many = hostile("holes", "count = 45536").replace("\"1s\"", "\"2ms\"");
    let experiment = Experiment::parse("test.toml", &many, &no_files).expect("a sound scenario");
    experiment.run(&vec![], &|_| {}).expect("a run");
}

#[test]
fn a_recorded_rate_is_not_changed_by_an_event() {
    let event = "[[event]]\nat = \"1ms\"\nlink = \"w\"\nrate = \"1mbit\"\n";
    let traced = pair("there = { trace = \"steady\" }", &format!("{BULK}{event}"));
    let error = error(&traced);
    assert!(error.contains("link: a trace says the rate"), "{error}");
    figures(&(traced + "from = \"b\"\n"));
}

/// Finished runs of a sweep are found again by it.
#[test]
fn the_fingerprint_of_a_scenario_has_the_files_that_it_names() {
    let print_of = |text: &str, trace: &'static str| {
        let files = move |_: &str| Ok(trace.to_owned());
        Experiment::parse("test.toml", text, &files).expect("it is sound").fingerprint()
    };
    let traced = pair("there = { trace = \"steady\" }", BULK);
    assert_eq!(print_of(&traced, "1\n2\n"), print_of(&traced, "1\n2\n"));
    assert_ne!(print_of(&traced, "1\n2\n"), print_of(&traced, "1\n3\n"));
    let plain = pair("", BULK);
    assert_eq!(print_of(&plain, "1\n2\n"), print_of(&plain, "1\n3\n"));
    assert_ne!(print_of(&plain, ""), print_of(&format!("{plain}\n"), ""));
}

#[test]
fn no_frames_are_no_limit_of_interrupts() {
    let rate = |nic: &str| {
        let text = pair("", BULK).replace("[host.b]", &format!("[host.b]\nnic = {{ {nic} }}"));
        figures(&text).0["host.b.rx_interrupts_per_s"]
    };
    let (none, plain) = (rate("rx_usecs = 1000, rx_frames = 0"), rate(""));
    assert!(none < plain / 2.0, "{none} {plain}");
}

#[test]
fn a_recorded_rate_of_answers_alone_has_a_bound() {
    let (figures, _) = figures(&pair("back = { trace = \"steady\" }", BULK));
    assert!(figures["app.x.goodput_mbit"] > 1.0);
}

#[test]
fn the_warm_up_counts_nothing() {
    let repaired = "[[event]]\nat = \"1900ms\"\nlink = \"w\"\nloss = \"0%\"\n";
    let lossy = pair("there = { loss = \"1%\" }", &format!("{BULK}{repaired}"));
    let (lossy, _) = figures(&format!("warm_up = \"2s\"\n{lossy}"));
    assert_eq!(lossy["host.a.TcpRetransSegs"], 0.0);
    assert_eq!(lossy["app.x.retransmitted"], 0.0);
    let narrow = "[host.a]\nqdisc = \"tbf rate 10mbit burst 10kb limit 20kb\"";
    let busy = UDP.replace("1ms", "200us") + "stop = \"1s\"\n";
    let busy = pair("", &busy).replace("[host.a]", narrow);
    let (idle, _) = figures(&format!("warm_up = \"2s\"\n{busy}"));
    let (busy, _) = figures(&busy);
    for name in ["host.a.qdisc_drops", "host.a.qdisc_overlimits", "app.x.refused"] {
        assert!(busy[name] > 0.0 && idle[name] == 0.0, "{name}: {} {}", busy[name], idle[name]);
    }
}

#[test]
fn what_a_connection_sent_again_is_known_after_its_end() {
    let file = BULK.replace("bulk", "transfer") + "bytes = \"1m\"\n";
    let text = pair("there = { loss = \"2%\" }", &file).replace("\"1s\"", "\"5s\"");
    let (figures, _) = figures(&text);
    assert!(figures["host.a.TcpRetransSegs"] > 0.0 && figures["app.x.finished"] == 1.0);
    assert_eq!(figures["app.x.retransmitted"], figures["host.a.TcpRetransSegs"]);
}

#[test]
fn what_servers_sent_again_is_of_their_application_too() {
    let ask = BULK.replace("bulk", "request-response") + "request = 100\nresponse = \"1m\"\n";
    let (figures, _) = figures(&pair("back = { loss = \"2%\" }", &ask));
    assert!(figures["host.b.TcpRetransSegs"] > 0.0);
    let both = figures["host.a.TcpRetransSegs"] + figures["host.b.TcpRetransSegs"];
    assert_eq!(figures["app.x.retransmitted"], both);
}

#[test]
fn senders_of_datagrams_have_their_rates_and_shares() {
    // Each sends 8 Mbit/s.
    let (figures, _) = figures(&pair("", &format!("{UDP}count = 2\n")));
    for name in ["slowest_mbit", "fastest_mbit"] {
        let rate = figures[&format!("app.x.{name}")];
        assert!((7.7..=8.0).contains(&rate), "{name} is {rate}");
    }
    assert!(figures["app.x.jain_index"] > 0.999, "{}", figures["app.x.jain_index"]);
    // A sender of which nothing comes has no share.
    let down = "there = { outages = [[\"0ms\", \"500ms\"]] }";
    let one = format!("{UDP}stop = \"400ms\"\n");
    let (figures, _) = self::figures(&pair(down, &one));
    assert_eq!(figures["app.x.slowest_mbit"], 0.0);
}

#[test]
fn a_datagram_that_comes_twice_counts_once() {
    let twice = pair("there = { duplicate = \"50%\" }", UDP);
    let two = UDP.to_owned() + "count = 2\n";
    for (text, mbit) in [
        (twice.clone(), 8.0),
        (twice.replace("100mbit", "10mbit"), 8.0),
        (pair("there = { duplicate = \"100%\", reorder_delay = \"30ms\" }", &two), 16.0),
    ] {
        let (figures, _) = figures(&text);
        let goodput = figures["app.x.goodput_mbit"];
        assert!((mbit * 0.95..=mbit + 0.01).contains(&goodput), "{goodput}");
        assert!(figures["app.x.messages"] <= mbit * 125.0 + 1.0);
    }
}

#[test]
fn flows_that_do_not_come_through_are_unfair() {
    let keys = "there = { drop = [1, 2, 3, 4, 5, 6, 7, 8, 9] }";
    let text = pair(keys, &format!("{BULK}count = 10\n")).replace("\"1s\"", "\"900ms\"");
    let (figures, _) = figures(&text);
    let (fairness, slowest) = (figures["app.x.jain_index"], figures["app.x.slowest_mbit"]);
    assert!(fairness < 0.11 && slowest == 0.0, "{fairness} {slowest}");
}

#[test]
fn a_run_is_not_compared_with_itself() {
    let sweep = "[[expect]]\nfigure = \"app.x.goodput_mbit\"\nat_least = 10\n\
                 more_than = { \"link.w.rate\" = \"50mbit\" }\n\
                 [sweep]\n\"link.w.rate\" = [\"100mbit\", \"50mbit\"]\n";
    let text = pair("", &format!("{BULK}{sweep}"));
    let experiment = Experiment::parse("test.toml", &text, &no_files).expect("a scenario");
    let run = |choice: &_| experiment.run(choice, &|_| {}).expect("a run").figures;
    let runs: Vec<_> =
        experiment.choices().iter().map(|choice| (choice.clone(), run(choice))).collect();
    let verdicts = experiment.judge(&runs).expect("verdicts");
    assert!(verdicts.len() == 1 && verdicts[0].holds, "{verdicts:?}");
    let alone = text.replace("[\"100mbit\", \"50mbit\"]", "[\"50mbit\"]");
    assert!(error(&alone).contains("no run has these values"));
}

#[test]
fn values_that_contradict_each_other_are_told_at_the_sweep() {
    let sweep = "[sweep]\n\"link.w.wifi\" = [{ overhead = \"1ms\", frames = 3, airtime = \"1ms\" }]\n\
                 \"link.w.trace\" = [\"steady\"]\n";
    let text = pair("# no key", &format!("{BULK}{sweep}"));
    let experiment = Experiment::parse("test.toml", &text, &no_files).expect("each alone is sound");
    let run = experiment.run(&experiment.choices()[0], &|_| {}).map(|_| ());
    let error = run.expect_err("a contradiction").to_string();
    assert!(error.starts_with("test.toml:16: link.w.trace: link.w.trace=steady, "), "{error}");
    assert!(error.ends_with(": wifi: excludes trace: both say when packets leave"), "{error}");
}

#[test]
fn a_value_of_the_sweep_goes_before_one_of_the_column() {
    for key in ["app.x.pacing_rate", "link.w.rate"] {
        let sweep = format!(
            "[[column]]\nname = \"one\"\nset = {{ \"{key}\" = \"20mbit\" }}\n\
             [sweep]\n\"{key}\" = [\"50mbit\"]\n"
        );
        let text = pair("", &format!("{BULK}{sweep}"));
        let experiment = Experiment::parse("test.toml", &text, &no_files).expect("a scenario");
        let run = experiment.run(&experiment.choices()[0], &|_| {}).expect("a run");
        let goodput = run.figures["app.x.goodput_mbit"];
        assert!(goodput > 30.0, "{key}: {goodput}");
    }
}

#[test]
fn contradictions_of_links_are_refused() {
    let cases = [
        (
            "codel = {}\nred = { min = 1000, max = 9000, probability = \"1%\" }\n",
            "red: excludes codel",
        ),
        ("red = { min = 9000, max = 1000, probability = \"1%\" }\n", "red: min must be below max"),
        ("reorder = \"1%\"\n", "reorder: needs reorder_delay"),
        ("drop = [3, 1]\n", "drop: the packets must be in ascending order"),
        ("outages = [[\"2s\", \"1s\"]]\n", "outages: each must end after it begins"),
        (
            "bottleneck = { rate = \"1mbit\" }\n",
            "bottleneck: a router's port is the bottleneck itself",
        ),
        ("trace = \"lte\"\n", "trace: no such file"),
        ("policer = { rate = \"1mbit\", burst = 100 }\n", "policer: a burst below 1538"),
    ];
    for (keys, said) in cases {
        let text = BASE.replace("buffer = \"100 packets\"\n", &format!("buffer = 50000\n{keys}"));
        let error = error(&text);
        assert!(error.contains(said), "{error}\n  instead of\n{said}");
    }
    let unreachable = BASE.replace("ends = [\"r\", \"b\"]", "ends = [\"b\", \"c\"]");
    let unreachable = unreachable.replace("buffer = \"100 packets\"", "") + "[host.c]\n";
    assert!(error(&unreachable).contains("to: there is no way to this host"));
}

#[test]
fn keys_of_queues_that_are_not_there_are_refused() {
    let red = "red = { min = 1000, max = 9000, probability = \"1%\" }";
    let hop = "bottleneck = { rate = \"10mbit\" }";
    let wifi = "wifi = { overhead = \"1ms\", frames = 3, airtime = \"4ms\" }";
    let refused = [
        (format!("there = {{ {red} }}"), "red: a host's card has no queue"),
        ("back = { codel = {} }".to_owned(), "codel: a host's card has no queue"),
        ("mark_above = 5000".to_owned(), "mark_above: a host's card has no queue"),
        (format!("there = {{ {red}, {wifi} }}"), "red: excludes wifi"),
        (format!("{wifi}\nthere = {{ mark_above = 5000 }}"), "mark_above: excludes wifi"),
        (format!("there = {{ {hop}, buffer = \"10k\" }}"), "buffer: excludes bottleneck"),
        (format!("{hop}\nbuffer = \"10k\"\ncodel = {{}}"), "a bottleneck has a buffer of its own"),
        ("buffer = \"10k\"\ncodel = {}".to_owned(), "buffer: no router begins here"),
    ];
    for (keys, said) in refused {
        let error = error(&pair(&keys, BULK));
        assert!(error.contains(said), "{error}\n  instead of\n{said}");
    }
    let taken = [
        format!("there = {{ {red}, {hop} }}"),
        format!("{hop}\ncodel = {{}}"),
        format!("there = {{ codel = {{}}, {wifi}, buffer = \"10k\" }}"),
        format!("buffer = \"10k\"\nthere = {{ {hop} }}\nback = {{ {wifi} }}"),
        format!("there = {{ {red}, trace = \"steady\" }}"),
        "there = { buffer = \"10k\", trace = \"steady\" }".to_owned(),
    ];
    for keys in taken {
        let parsed = Experiment::parse("test.toml", &pair(&keys, BULK), &no_files).map(|_| ());
        assert!(parsed.is_ok(), "{keys}: {parsed:?}");
    }
    // What is said of both ways is about the port of the router.
    let both = BASE.replace("delay = \"9ms\"", "delay = \"9ms\"\ncodel = {}");
    assert!(Experiment::parse("test.toml", &both, &no_files).is_ok());
}

#[test]
fn queues_are_managed_as_the_file_says() {
    let with = |keys: &str| figures(&BASE.replace("buffer = \"100 packets\"", keys)).0;
    let deep = with("buffer = \"1000 packets\"");
    let codel =
        with("buffer = \"1000 packets\"\ncodel = { target = \"5ms\", interval = \"30ms\" }");
    let queue = |figures: &Figures| figures["link.wan.there.queued_p50_ms"];
    assert!(queue(&deep) > 40.0 && queue(&codel) < 15.0, "{} {}", queue(&deep), queue(&codel));
    assert!(codel["link.wan.there.early_drops"] > 0.0);
    let policed = with("policer = { rate = \"10mbit\", burst = \"64k\" }");
    assert!(policed["app.bulk.goodput_mbit"] < 10.5 && policed["link.wan.there.policed"] > 0.0);
    let wifi = with(
        "buffer = \"500 packets\"\nwifi = { overhead = \"1ms\", frames = 32, airtime = \"4ms\" }",
    );
    // A full aggregate takes 4 ms of airtime and 1 ms beside it.
    let goodput = wifi["app.bulk.goodput_mbit"];
    assert!((30.0..40.5).contains(&goodput), "{goodput}");
}

#[test]
fn every_kind_of_application_does_what_it_is_for() {
    let text = BASE.to_owned()
        + r#"
[app.file]
kind = "transfer"
from = "b"
to = "a"
bytes = "300k"
[app.ask]
kind = "request-response"
from = "a"
to = "b"
request = 100
response = 5000
think = "10ms"
[app.burst]
kind = "on-off"
from = "b"
to = "a"
burst = "50k"
off = "20ms"
[app.voice]
kind = "udp"
from = "a"
to = "b"
message = 200
interval = "10ms"
[app.steady]
kind = "paced"
from = "b"
to = "a"
message = 1000
interval = "5ms"
[app.web]
kind = "mixed"
from = "b"
to = "a"
urgent = 500
interval = "20ms"
frame = "16k"
[app.slow]
kind = "bulk"
from = "b"
to = "a"
read_rate = "1mbit"
[app.many]
kind = "bulk"
from = "b"
to = "a"
count = 4
writer = "edge"
"#;
    let (figures, _) = figures(&text);
    let within = |name: &str, low: f64, high: f64| {
        assert!((low..=high).contains(&figures[name]), "{name} is {}", figures[name]);
    };
    within("app.file.finished", 1.0, 1.0);
    within("app.ask.messages", 5.0, 40.0);
    within("app.ask.latency_p50_ms", 20.0, 100.0);
    within("app.burst.goodput_mbit", 0.3, 30.0);
    within("app.voice.messages", 80.0, 101.0);
    within("app.voice.latency_p50_ms", 10.0, 40.0);
    within("app.steady.goodput_mbit", 1.2, 2.0);
    within("app.web.messages", 40.0, 60.0);
    within("app.web.latency_p99_ms", 20.0, 2000.0);
    // A megabit in the second of the measurement.
    within("app.slow.delivered_bytes", 0.9e6 / 8.0, 1.1e6 / 8.0);
    within("app.many.jain_index", 0.25, 1.0);
    for app in ["file", "ask", "burst", "voice", "steady", "web", "slow", "many", "bulk"] {
        within(&format!("app.{app}.failed"), 0.0, 0.0);
    }
    within("host.a.wakeups_per_s", 10.0, 1e6);
    within("host.b.memory_pages_max", 10.0, 1e6);
}

#[test]
fn sweeps_are_all_combinations_and_expectations_compare_them() -> Result<(), ScenarioError> {
    let text = BASE.to_owned()
        + r#"
[[expect]]
figure = "app.bulk.goodput_mbit"
at_least = 9
at_most = 10
when = { "link.wan.rate" = "10mbit" }
[[expect]]
figure = "app.bulk.goodput_mbit"
at_least = 3
relative_to = { "link.wan.rate" = "10mbit" }
when = { "link.wan.rate" = "40mbit" }
[[expect]]
figure = "app.bulk.retransmitted"
at_most = -1
when = { "host.a.sysctl.net.ipv4.tcp_timestamps" = 0 }
[sweep]
"link.wan.rate" = ["10mbit", "40mbit"]
"host.a.sysctl.net.ipv4.tcp_timestamps" = [0, 1]
"#;
    let experiment = Experiment::parse("test.toml", &text, &no_files)?;
    assert_eq!(experiment.choices().len(), 4);
    let runs: Vec<_> = experiment
        .choices()
        .iter()
        .map(|choice| (choice.clone(), experiment.run(choice, &|_| {}).expect("a run").figures))
        .collect();
    let holds: Vec<bool> = experiment.judge(&runs)?.iter().map(|verdict| verdict.holds).collect();
    let verdicts = experiment.judge(&runs)?;
    assert_eq!(holds, [true, true, true, true, false, false], "{verdicts:#?}");
    Ok(())
}

#[test]
fn events_change_links_while_they_carry() {
    let udp = "kind = \"udp\"\nmessage = 1000\ninterval = \"250us\"";
    let text = BASE.replace("kind = \"bulk\"", udp)
        + "[[event]]\nat = \"700ms\"\nlink = \"wan\"\nfrom = \"r\"\nrate = \"5mbit\"\n";
    let experiment = Experiment::parse("test.toml", &text, &no_files).expect("a scenario");
    let series = experiment.run(&vec![], &|_| {}).expect("a run").series;
    let column = |name: &str| series.names.iter().position(|one| one == name).expect("a column");
    let (time, bytes) = (column("ms"), column("app.bulk.delivered_bytes"));
    let at = |ms: f64| series.rows.iter().find(|row| row[time] >= ms).expect("a row")[bytes];
    // Measured from 200 ms on: fast until 500 ms.
    let (fast, slow) = (at(490.0) - at(290.0), at(990.0) - at(790.0));
    assert!(fast > 5.0 * slow && slow > 0.0, "{fast} {slow}");
}

#[test]
fn the_delivered_bytes_of_a_series_are_those_of_its_figure() {
    let experiment = Experiment::parse("test.toml", BASE, &no_files).expect("a scenario");
    let run = experiment.run(&vec![], &|_| {}).expect("a run");
    let name = "app.bulk.delivered_bytes";
    let column = run.series.names.iter().position(|one| one == name).expect("a column");
    let last = run.series.rows.last().expect("a row")[column];
    let whole = run.figures[name];
    assert!(last > 0.9 * whole && last <= whole, "{last} {whole}");
}

#[test]
fn how_busy_a_port_is_stays_unsaid_where_a_trace_says_when_packets_leave() {
    let text = BASE.replace("buffer = \"100 packets\"", "there = { trace = \"steady\" }");
    let (figures, _) = figures(&text);
    assert!(figures["link.wan.there.wire_mbit"] > 5.0);
    assert!(!figures.contains_key("link.wan.there.busy"));
    assert!(figures.contains_key("link.wan.back.busy"));
    // A host has a card in front of a trace.
    let (figures, _) = self::figures(&pair("there = { trace = \"steady\" }", BULK));
    assert!(figures["link.w.there.busy"] > 0.0);
}

#[test]
fn a_connection_that_opens_has_no_part_in_the_mean_round_trip() {
    // Its SYN is lost, so it has no round-trip time for a second.
    let text = pair("there = { drop = [0] }", &format!("{BULK}count = 2\nstagger = \"1ms\"\n"));
    let experiment = Experiment::parse("test.toml", &text, &no_files).expect("a scenario");
    let series = experiment.run(&vec![], &|_| {}).expect("a run").series;
    let column = series.names.iter().position(|one| one == "app.x.srtt_ms").expect("a column");
    let times: Vec<f64> = series.rows.iter().map(|row| row[column]).collect();
    let known: Vec<f64> = times.into_iter().filter(|time| *time > 0.0).collect();
    // The path takes 20 ms.
    assert!(known.len() > 900 && known.iter().all(|time| *time >= 20.0), "{known:?}");
}

#[test]
fn two_changes_of_a_rate_leave_the_wire_its_bytes() {
    let text =
        "about = \"a port that is raised while packets wait\"\n[host.a]\n[host.b]\n[router.r]
[link.l]\nends = [\"a\", \"r\"]\nrate = \"1gbit\"
[link.w]\nends = [\"r\", \"b\"]\nrate = \"1mbit\"\ndelay = \"10ms\"\nbuffer = \"1000 packets\"
[[event]]\nat = \"2s\"\nlink = \"w\"\nrate = \"100mbit\"
[[event]]\nat = \"2500ms\"\nlink = \"w\"\nrate = \"200mbit\"\n";
    for times in ["duration = \"3s\"", "warm_up = \"5s\"\nduration = \"3s\""] {
        let (figures, _) = figures(&format!("{times}\n{text}{UDP}"));
        let (wire, goodput) = (figures["link.w.there.wire_mbit"], figures["app.x.goodput_mbit"]);
        assert!(wire >= goodput && wire < goodput * 1.2, "{wire} {goodput}");
    }
}

#[test]
fn a_transfer_of_which_an_end_gives_up_is_not_finished() {
    let file = |keys: &str| {
        "[app.file]\nkind = \"transfer\"\nfrom = \"a\"\nto = \"b\"\n".to_owned() + keys
    };
    let cut = "[[event]]\nat = \"200ms\"\nlink = \"w\"\ndown = true\n\
               [host.b.sysctl]\n\"net.ipv4.tcp_keepalive_intvl\" = 1\n\
               \"net.ipv4.tcp_keepalive_probes\" = 2\n";
    // The receiver asks in vain; the sender still tries.
    let one = file("bytes = \"50m\"\nkeepalive = \"2s\"\n") + cut;
    let text = pair("", &one).replace("\"1s\"", "\"20s\"").replace("\"2s\"", "\"1s\"");
    let (one, _) = figures(&text);
    assert_eq!((one["app.file.finished"], one["app.file.failed"]), (0.0, 1.0));
    assert!(one["app.file.delivered_bytes"] > 0.0 && !one.contains_key("app.file.transfer_ms"));
    let (later, _) = figures(&format!("warm_up = \"10s\"\n{text}"));
    assert_eq!(later["app.file.failed"], 0.0, "it failed in the warm-up");
    // The time of some says nothing of all.
    let two = file("bytes = \"100k\"\ncount = 2\n");
    let (whole, _) = figures(&pair("", &two));
    assert!(whole["app.file.finished"] == 2.0 && whole["app.file.transfer_ms"] > 20.0);
    let (half, _) = figures(&pair("there = { drop = [0] }", &two));
    assert_eq!(half["app.file.finished"], 1.0);
    assert!(!half.contains_key("app.file.transfer_ms"));
}

#[test]
fn a_quotient_of_nothing_holds_no_bound() -> Result<(), ScenarioError> {
    let expect = "[[expect]]\nfigure = \"app.bulk.goodput_mbit\"\nat_least = 0.9\n\
                  relative_to = { \"link.wan.loss\" = \"100%\" }\n";
    let says = format!("{expect}says = \"{{}} times as much\"\n");
    let other = "[sweep]\n\"link.wan.loss\" = [\"0%\", \"1%\", \"100%\"]\n";
    let text = format!("{BASE}{expect}{says}{other}");
    let experiment = Experiment::parse("test.toml", &text, &no_files)?;
    let run = |choice: &_| experiment.run(choice, &|_| {}).expect("a run").figures;
    let choices = experiment.choices().iter();
    let mut runs: Vec<_> = choices.map(|choice| (choice.clone(), run(choice))).collect();
    let holds = |runs: &[_]| -> Result<Vec<bool>, ScenarioError> {
        Ok(experiment.judge(runs)?.iter().map(|verdict| verdict.holds).collect())
    };
    assert_eq!(holds(&runs)?, [false; 3]);
    // A sentence about several runs is about one that breaks the bound.
    for (run, goodput) in runs.iter_mut().zip([1.0, 0.8, 1.0]) {
        run.1.insert("app.bulk.goodput_mbit".to_owned(), goodput);
    }
    assert_eq!(holds(&runs)?, [true, false, false]);
    Ok(())
}
