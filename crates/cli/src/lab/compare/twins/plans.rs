//! Which twins there are: how each is sent, and the scenario of it.

use super::rows::{DELAYED, LOSSY, OF_KERNEL, OF_NEAP, Row};
use crate::lab::compare::predict::LINK_HEADER;
use crate::lab::compare::{Link, Sender, TwinsOf};

/// What one experiment is on a real device: how it is sent, and the scenario of it.
pub(super) struct Twin {
    pub(super) name: &'static str,
    pub(super) sender: Sender,
    pub(super) way: Way,
    /// Options of `neap perf` and `iperf3`, and those of neap alone.
    pub(super) options: String,
    pub(super) own: Vec<String>,
    /// Settings of the kernel, if it sends.
    pub(super) settings: Vec<String>,
    pub(super) flows: u32,
    pub(super) seconds: u32,
    pub(super) scenario: String,
    pub(super) rows: &'static [Row],
}

/// What is between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A veth, with what the machine gives.
    Veth,
    /// A veth with `fq`.
    Fair,
    /// A veth with `tbf`.
    Slow(Link),
    /// `tbf`, and behind it the link of the scenario in real time, which is the delay.
    SlowAndLong(Link),
    /// The link of the scenario, in real time.
    Relay,
}

/// Flows of the twins of E3 and E4, and seconds of all.
const FLOWS: u32 = 4;
const PACED_FLOWS: u32 = 20;
const SECONDS: u32 = 6;

/// Seconds of those over a link of the lab: loss at random needs time to become even.
const LINK_SECONDS: u32 = 15;

/// The slow links of the twins of E2 and E3.
const SLOW: Link = Link { mbit: 100, gso_max: 65_535, burst: 81_920 };
const FASTER: Link = Link { mbit: 400, gso_max: 65_535, burst: 262_144 };

/// The mark of E3's twins, bytes.
const MARK: u32 = 262_144;
/// Their send buffers: as in the publication.
const BUFFERS: &str = "4096 262144 64000000";

/// Stands in a scenario for the lateness of the machine, which is measured first.
pub(super) const LATENESS: &str = "LATENESS";

/// A scenario of two hosts at a veth pair, as late as those of E1: the reader as the machine wakes
/// it, neap as in the lab's experiments, and the kernel that sends not at all. Without fq each
/// connection of the kernel has a timer of its own. `host` has more of the sender.
fn scenario(sender: Sender, seconds: u32, host: &str, link: &str, app: &str) -> String {
    let (profile, late, bql) = match sender {
        Sender::Neap => ("neap", "\"50us\"", true),
        Sender::Kernel => ("linux-6.18", "\"0us\"\ntimer_per_flow = true", false),
    };
    format!(
        "about = \"a twin\"\nduration = \"{seconds}s\"\nsample = \"10ms\"\n[host.a]\n\
         profile = \"{profile}\"\nlateness = {late}\nnic = {{ ring = 1000, bql = {bql} }}\n{host}\
         [host.b]\nprofile = \"linux-6.18\"\nlateness = {LATENESS}\n\
         nic = {{ rx_usecs = 10, rx_frames = 64 }}\n[host.b.sysctl]\n\
         \"net.ipv4.tcp_rmem\" = \"4096 262144 64000000\"\n\
         [link.wire]\nends = [\"a\", \"b\"]\n{link}\n\
         [app.bulk]\nkind = \"bulk\"\nfrom = \"a\"\nto = \"b\"\nwriter = \"edge\"\n{app}"
    )
}

/// A slow link with a long way back: its way on a machine, what is more of the sender, and the link
/// of the scenario.
///
/// neap waits in the ring of its socket until `tbf` lets a frame go, which does not count all that
/// Ethernet adds: here a card with a slow wire. The kernel waits in its `tbf`.
fn long_path(sender: Sender, slow: Link, millis: u32) -> (Way, String, String) {
    let Link { mbit, burst, .. } = slow;
    let bits = f64::from(mbit) * 1e6;
    let back = format!("back = {{ rate = \"10gbit\", delay = \"{millis}ms\" }}");
    match sender {
        Sender::Neap => {
            let rate = (bits * 1538.0 / 1514.0) as u64;
            let there = format!("there = {{ rate = \"{rate}bit\", delay = \"10us\" }}");
            (Way::Slow(slow), String::new(), format!("{there}\n{back}"))
        }
        Sender::Kernel => {
            let rate = (bits / LINK_HEADER) as u64;
            let queue = format!("qdisc = \"tbf rate {rate}bit burst {burst} limit 10mb\"\n");
            let there = "there = { rate = \"100gbit\", delay = \"10us\" }";
            (Way::SlowAndLong(slow), queue, format!("{there}\n{back}"))
        }
    }
}

fn rows(sender: Sender) -> &'static [Row] {
    if sender == Sender::Neap { OF_NEAP } else { OF_KERNEL }
}

fn long_flow(sender: Sender, seconds: u32) -> Twin {
    let (way, host, link) = long_path(sender, SLOW, 40);
    Twin {
        name: "E2's path: one flow of CUBIC over 40 ms, 100 Mbit/s",
        sender,
        way,
        options: "-C cubic -i 0.5".to_owned(),
        own: words("--delay 40"),
        settings: Vec::new(),
        flows: 1,
        seconds,
        scenario: scenario(sender, seconds, &host, &link, ""),
        rows: rows(sender),
    }
}

fn low_water(sender: Sender, mark: Option<u32>, seconds: u32) -> Twin {
    let (way, queue, link) = long_path(sender, FASTER, 100);
    let host = format!(
        "{queue}[host.a.sysctl]\n\"net.ipv4.tcp_congestion_control\" = \"bbr\"\n\
         \"net.ipv4.tcp_wmem\" = \"{BUFFERS}\"\n"
    );
    let lowat = mark.map_or(String::new(), |mark| format!("notsent_lowat = {mark}\n"));
    let app = format!("count = {FLOWS}\n{lowat}");
    let buffers = format!("net.ipv4.tcp_wmem={BUFFERS}");
    let mut own = words("--delay 100 --sysctl");
    own.push(buffers.clone());
    own.extend(mark.into_iter().flat_map(|mark| words(&format!("--notsent-lowat {mark}"))));
    // iperf3 has no option for the mark.
    let mark_of_kernel = mark.map(|mark| format!("net.ipv4.tcp_notsent_lowat={mark}"));
    Twin {
        name: match mark {
            None => "E3's path: 4 flows of BBR over 100 ms, 400 Mbit/s, without a mark",
            Some(_) => "E3's path with a mark of 256 KiB",
        },
        sender,
        way,
        options: format!("-C bbr -P {FLOWS} -i 0.5"),
        own,
        settings: [buffers].into_iter().chain(mark_of_kernel).collect(),
        flows: FLOWS,
        seconds,
        scenario: scenario(sender, seconds, &host, &link, &app),
        rows: rows(sender),
    }
}

fn paced(sender: Sender, way: Way, seconds: u32) -> Twin {
    let app = format!("count = {PACED_FLOWS}\nstagger = \"10ms\"\npacing_rate = \"48mbit\"\n");
    let link = "rate = \"100gbit\"\ndelay = \"10us\"";
    let (name, host) = match way {
        Way::Fair => ("E4's flows: 20 of 48 Mbit/s, paced by fq", "qdisc = \"fq\"\n"),
        _ => ("E4's flows: 20 of 48 Mbit/s", ""),
    };
    Twin {
        name,
        sender,
        way,
        options: format!("-P {PACED_FLOWS} --fq-rate 48M -i 1"),
        own: Vec::new(),
        settings: Vec::new(),
        flows: PACED_FLOWS,
        seconds,
        scenario: scenario(sender, seconds, host, link, &app),
        rows: rows(sender),
    }
}

/// One flow over a link of the lab in real time: a round trip of 20 ms at 50 Mbit/s.
fn over_link(sender: Sender, controller: &str, lossy: bool, seconds: u32) -> Twin {
    let name = match (controller, lossy) {
        ("cubic", false) => "a link of 50 Mbit/s and 20 ms: one flow of CUBIC",
        ("cubic", true) => "the same link with 1 % loss: one flow of CUBIC",
        _ => "the same link with 1 % loss: one flow of BBR",
    };
    let loss = if lossy { "1%" } else { "0%" };
    let link = format!(
        "rate = \"10gbit\"\nbottleneck = {{ rate = \"50mbit\", buffer = \"256k\" }}\ndelay = \"10ms\"\n\
         there = {{ loss = \"{loss}\" }}"
    );
    let sysctls =
        format!("[host.a.sysctl]\n\"net.ipv4.tcp_congestion_control\" = \"{controller}\"\n");
    Twin {
        name,
        sender,
        way: Way::Relay,
        options: format!("-C {controller} -i 1"),
        own: Vec::new(),
        settings: Vec::new(),
        flows: 1,
        seconds,
        scenario: scenario(sender, seconds, &sysctls, &link, ""),
        rows: if lossy { LOSSY } else { DELAYED },
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The twins of one part, or of all; of other seconds than theirs if that is asked for. The one
/// with fq is among them if the kernel has it.
pub(super) fn twins(only: Option<TwinsOf>, seconds: Option<u32>, has_fq: bool) -> Vec<Twin> {
    let has = |part| only.is_none_or(|only| only == part);
    let both = [Sender::Neap, Sender::Kernel];
    let short = seconds.unwrap_or(SECONDS);
    let mut all = Vec::new();
    if has(TwinsOf::E2) {
        all.extend(both.map(|sender| long_flow(sender, short)));
    }
    if has(TwinsOf::E3) {
        for mark in [None, Some(MARK)] {
            all.extend(both.map(|sender| low_water(sender, mark, short)));
        }
    }
    if has(TwinsOf::E4) {
        all.extend(both.map(|sender| paced(sender, Way::Veth, short)));
        all.extend(has_fq.then(|| paced(Sender::Kernel, Way::Fair, short)));
    }
    if has(TwinsOf::Link) {
        let long = seconds.unwrap_or(LINK_SECONDS);
        for (controller, lossy) in [("cubic", false), ("cubic", true), ("bbr", true)] {
            all.extend(both.map(|sender| over_link(sender, controller, lossy, long)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neap_and_the_kernel_have_the_same_twins() {
        let of = |sender| -> Vec<&str> {
            let all = twins(None, None, false).into_iter();
            all.filter(|twin| twin.sender == sender).map(|twin| twin.name).collect()
        };
        assert_eq!(of(Sender::Neap), of(Sender::Kernel));
        assert_eq!(of(Sender::Kernel).len(), 7);
        let fair = twins(Some(TwinsOf::E4), Some(2), true);
        let ways: Vec<(Sender, Way)> = fair.iter().map(|twin| (twin.sender, twin.way)).collect();
        let kernel = |way| (Sender::Kernel, way);
        assert_eq!(ways, [(Sender::Neap, Way::Veth), kernel(Way::Veth), kernel(Way::Fair)]);
        assert!(fair.iter().all(|twin| twin.seconds == 2));
    }

    #[test]
    fn each_sender_has_the_rows_of_its_stack() {
        for twin in twins(None, None, true) {
            let has = |what: &str| twin.rows.iter().any(|row| row.what.contains(what));
            assert!(has("goodput") && has("packets handed down"), "{}", twin.name);
            let is_of_link = twin.way == Way::Relay;
            assert_eq!(has("MB per flow") && has("wake-ups"), !is_of_link, "{}", twin.name);
            assert_eq!(has("skmem"), twin.sender == Sender::Kernel && !is_of_link);
        }
    }

    #[test]
    fn the_mark_of_the_kernel_is_a_setting() {
        let [_, bare, _, marked] = &twins(Some(TwinsOf::E3), None, false)[..] else {
            panic!("four twins");
        };
        assert_eq!(bare.settings, ["net.ipv4.tcp_wmem=4096 262144 64000000"]);
        assert_eq!(marked.settings[1..], ["net.ipv4.tcp_notsent_lowat=262144"]);
        assert_eq!(marked.way, Way::SlowAndLong(FASTER));
    }
}
