//! Packets are told with the state of their flow.

use neap_lab::report::{Observed, Watch};
use neap_lab::scenario::Experiment;

/// Connections begin in random order and are short, so that the first one may begin after others
/// are over.
const SCENARIO: &str = r#"about = "short transfers"
duration = "2s"
[host.a]
[host.b]
[link.wire]
ends = ["a", "b"]
rate = "10mbit"
delay = "5ms"
[app.file]
kind = "transfer"
from = "a"
to = "b"
bytes = "20k"
count = 20
stagger = "1500ms"
"#;

/// Bytes of the headers of a segment without data: IPv4, and TCP with timestamps and SACK blocks.
const HEADERS: u32 = 100;

#[test]
fn data_of_every_connection_has_a_comment() {
    let files = |name: &str| Err(format!("there is no file {name}"));
    let experiment = Experiment::parse("test.toml", SCENARIO, &files).expect("sound");
    let (mut data, mut bare) = (0, 0);
    let mut packets = |packet: &Observed<'_>| {
        let is_data = packet.len > HEADERS;
        data += u32::from(is_data);
        bare += u32::from(is_data && packet.comment.is_empty());
    };
    let watch = Watch { record: false, packets: Some(&mut packets) };
    experiment.run_watched(&Vec::new(), &|_| {}, watch).expect("a run");
    assert!(data > 250, "{data}");
    assert_eq!(bare, 0, "of {data}");
}

#[test]
fn what_leaves_a_port_is_captured_then_and_what_it_drops_is_not() {
    let port = |queue: &str| {
        format!(
            "about = \"a port that is too slow\"\nduration = \"3s\"\n[host.a]\n[host.b]\n[router.r]\n\
             [link.l]\nends = [\"a\", \"r\"]\nrate = \"1gbit\"\n\
             [link.w]\nends = [\"r\", \"b\"]\nrate = \"1mbit\"\nbuffer = \"100 packets\"\n{queue}\n\
             [app.u]\nkind = \"udp\"\nfrom = \"a\"\nto = \"b\"\nmessage = 1000\ninterval = \"1ms\"\n"
        )
    };
    let files = |name: &str| Err(format!("there is no file {name}"));
    for queue in ["", "codel = {}"] {
        let text = port(queue);
        let experiment = Experiment::parse("test.toml", &text, &files).expect("sound");
        let (mut last, mut seconds) = (0, [0; 4]);
        let mut packets = |packet: &Observed<'_>| {
            if packet.link == "w" && packet.end == 0 {
                let at = packet.at.as_nanos();
                assert!(at > last, "one packet leaves behind the other");
                last = at;
                // The world begins at one second. What waits at the end is told too.
                let second = (at / 1_000_000_000 - 1).min(3) as usize;
                seconds[second] += packet.len * 8;
            }
        };
        let watch = Watch { record: false, packets: Some(&mut packets) };
        experiment.run_watched(&Vec::new(), &|_| {}, watch).expect("a run");
        for bits in &seconds[..3] {
            assert!((900_000..=1_000_000).contains(bits), "{queue}: {seconds:?}");
        }
    }
}
