//! Frames as large as the window, to a receiver that acknowledges every other segment: the rate is
//! known only if each of its ACKs is a sample.

use neap_lab::scenario::Experiment;

const SCENARIO: &str = r#"
about = "BBR, frames as large as the window, a receiver that does not join segments"
warm_up = "1s"
duration = "2s"
[host.a]
profile = "linux-6.18"
[host.a.nic]
completes_early = true
[host.a.sysctl]
"net.ipv4.tcp_congestion_control" = "bbr"
[host.b]
[host.b.nic]
gro = false
[router.r]
[link.a]
ends = ["a", "r"]
rate = "1gbit"
delay = "10us"
[link.wan]
ends = ["r", "b"]
rate = "100mbit"
delay = "100us"
buffer = "400 packets"
[app.bulk]
kind = "bulk"
from = "a"
to = "b"
[sweep]
"link.wan.delay" = ["300us", "500us", "700us"]
"#;

fn no_files(_: &str) -> Result<String, String> {
    Err("no such file".into())
}

#[test]
fn long_frames_fill_a_short_path() {
    for seed in 1..=3 {
        let text = format!("seed = {seed}\n{SCENARIO}");
        let experiment = Experiment::parse("test.toml", &text, &no_files).expect("a scenario");
        for choice in experiment.choices() {
            let run = experiment.run(choice, &|_| {}).expect("a run");
            let goodput = run.figures["app.bulk.goodput_mbit"];
            assert!(goodput > 90.0, "{seed} {choice:?}: {goodput:.1} Mbit/s of 94.1");
        }
    }
}
