//! What each sysctl acts on when it is set while connections are open: the lab runs a scenario with
//! and without the change, and the figures after it tell.
//!
//! The table has a row for every sysctl of [`Config`]; those that need a call of an application are
//! in the tests of `neap-stack`.

use Relation::{Less, More, Other};
use neap_lab::scenario::Experiment;
use neap_tcp::config::Config;
use neap_tcp::sysctl::ActsOn;

/// How a figure after the change is to that without it.
#[derive(Clone, Copy, Debug)]
enum Relation {
    /// At most this share of it.
    Less(f64),
    /// At least so many times it; where there is none, at least one.
    More(f64),
    /// Another one.
    Other,
}

/// One scenario: what is said of hosts, link and application beside the common text.
#[derive(Clone, Copy)]
struct Case {
    a: &'static str,
    b: &'static str,
    a_sysctl: &'static str,
    b_sysctl: &'static str,
    nic: &'static str,
    link: &'static str,
    app: &'static str,
    events: &'static str,
    /// The host that changes, and when.
    host: &'static str,
    at: &'static str,
    duration: &'static str,
}

/// One flow that fills 100 Mbit/s over 10 ms for two seconds; the sender changes after one.
const BULK: Case = Case {
    a: "",
    b: "",
    a_sysctl: "",
    b_sysctl: "",
    nic: "",
    link: "rate = \"100mbit\"\ndelay = \"5ms\"",
    app: "kind = \"bulk\"",
    events: "",
    host: "a",
    at: "1s",
    duration: "1s",
};

const FAST: Case = Case { link: "rate = \"1gbit\"\ndelay = \"50us\"", ..BULK };

const SLOW: Case = Case { link: "rate = \"5mbit\"\ndelay = \"5ms\"", ..BULK };

/// A flow whose rate is limited by its socket.
const PACED: Case = Case { app: "kind = \"bulk\"\npacing_rate = \"20mbit\"", ..BULK };

const LOSSY: Case =
    Case { link: "rate = \"100mbit\"\ndelay = \"5ms\"\nloss = \"1%\"", duration: "5s", ..BULK };

/// A window of a few segments at a rate at which a frame could have more.
const FAST_LOSSY: Case =
    Case { link: "rate = \"1gbit\"\ndelay = \"50us\"\nloss = \"1%\"", duration: "5s", ..BULK };

const REORDERED: Case = Case {
    link: "rate = \"100mbit\"\ndelay = \"5ms\"\nreorder = \"5%\"\nreorder_delay = \"4ms\"\n\
           loss = \"0.1%\"",
    duration: "5s",
    ..BULK
};

/// The link dies shortly after the change.
const CUT: Case = Case {
    events: "[[event]]\nat = \"1100ms\"\nlink = \"wire\"\ndown = true\n",
    duration: "20s",
    ..BULK
};

/// Nobody answers from the start.
const UNANSWERED: Case = Case {
    link: "rate = \"100mbit\"\ndelay = \"5ms\"\nloss = \"100%\"",
    at: "100ms",
    duration: "20s",
    ..BULK
};

const PING: Case = Case {
    app: "kind = \"request-response\"\nrequest = 100\nresponse = 200000\nthink = \"700ms\"",
    host: "b",
    duration: "5s",
    ..BULK
};

/// A connection that says nothing after its first words, and is probed.
const IDLE: &str = "kind = \"request-response\"\nrequest = 10\nresponse = 10\nthink = \"90s\"\n\
    keepalive = \"1s\"";

const FIGURE_GOODPUT: &str = "app.x.goodput_mbit";
const FIGURE_FRAMES: &str = "link.wire.there.segments_per_frame";
const FIGURE_BELOW: &str = "app.x.below_bytes_max";
const FIGURE_MEMORY: &str = "host.a.memory_pages_mean";
const FIGURE_FAILED: &str = "app.x.failed";

/// Sysctls that act on what is open: name, value, scenario, figure, and how the figure changes.
const OPEN: &[(&str, &str, Case, &str, Relation)] = &[
    ("net.ipv4.tcp_limit_output_bytes", "6000", FAST, FIGURE_FRAMES, Less(0.5)),
    ("net.ipv4.tcp_notsent_lowat", "16384", BULK, FIGURE_MEMORY, Less(0.9)),
    ("neap.tcp_notsent_lowat_us", "1000", BULK, FIGURE_MEMORY, Less(0.9)),
    (
        "neap.tcp_notsent_lowat_half",
        "0",
        Case { a_sysctl: "\"net.ipv4.tcp_notsent_lowat\" = 262144", ..FAST },
        "host.a.wakeups_per_s",
        More(1.5),
    ),
    (
        "net.ipv4.tcp_autocorking",
        "0",
        Case { app: "kind = \"bulk\"\nwrite = 200\nnodelay = true\nsndbuf = 8000", ..SLOW },
        "host.a.TcpExtTCPAutoCorking",
        Less(0.1),
    ),
    ("net.ipv4.tcp_min_tso_segs", "12", SLOW, FIGURE_FRAMES, More(1.5)),
    (
        "net.ipv4.tcp_tso_rtt_log",
        "20",
        Case { a: "profile = \"linux-6.18\"", ..BULK },
        FIGURE_FRAMES,
        More(1.5),
    ),
    ("net.ipv4.tcp_tso_win_divisor", "1", FAST_LOSSY, FIGURE_FRAMES, Other),
    ("neap.tcp_tso_defer", "half_rtt", LOSSY, FIGURE_FRAMES, Other),
    ("neap.tcp_tso_autosizing", "0", BULK, FIGURE_FRAMES, More(1.5)),
    ("neap.tcp_tso_at_write", "1", BULK, FIGURE_FRAMES, Other),
    ("neap.tcp_tso_bonus", "linux", FAST, FIGURE_FRAMES, More(1.2)),
    ("neap.tcp_tso_max_usecs", "50", FAST, FIGURE_FRAMES, Less(0.5)),
    ("neap.tcp_half_cwnd", "0", FAST_LOSSY, FIGURE_FRAMES, Other),
    ("neap.tcp_small_queues", "0", BULK, FIGURE_BELOW, More(2.0)),
    ("neap.tcp_small_queue_rule", "fixed", BULK, FIGURE_BELOW, More(2.0)),
    ("neap.tcp_small_queue_spare", "64", BULK, FIGURE_BELOW, More(1.5)),
    (
        "neap.tcp_small_queue_cap_paced",
        "0",
        Case {
            a_sysctl: "\"net.ipv4.tcp_limit_output_bytes\" = 2000\n\
                       \"neap.tcp_small_queue_spare\" = 0\n\"neap.tcp_late_completions\" = 0\n\
                       \"neap.tcp_pacing_debt_us\" = 0",
            app: "kind = \"bulk\"\npacing_rate = \"90mbit\"",
            nic: "completion_delay = \"2ms\"",
            ..BULK
        },
        FIGURE_GOODPUT,
        More(1.2),
    ),
    (
        "neap.tcp_late_completions",
        "0",
        Case { nic: "completion_delay = \"4ms\"", ..BULK },
        FIGURE_GOODPUT,
        Less(0.9),
    ),
    ("neap.tcp_skb_overhead", "20000", BULK, FIGURE_BELOW, Other),
    ("neap.tcp_internal_pacing", "0", PACED, FIGURE_GOODPUT, More(2.0)),
    (
        "neap.tcp_pacing_credit",
        "0",
        Case { a: "lateness = \"400us\"", ..PACED },
        FIGURE_GOODPUT,
        Less(0.99),
    ),
    (
        "neap.tcp_pacing_debt_us",
        "0",
        Case { a: "lateness = \"20ms\"", ..PACED },
        FIGURE_GOODPUT,
        Less(0.9),
    ),
    (
        "neap.tcp_pacing_arrears_us",
        "0",
        Case { a: "lateness = \"20ms\"", a_sysctl: "\"neap.tcp_pacing_debt_us\" = 15000", ..PACED },
        FIGURE_GOODPUT,
        Less(0.99),
    ),
    ("neap.tcp_pacing_free_segs", "1000000000", PACED, FIGURE_GOODPUT, More(2.0)),
    (
        "neap.tcp_reply_ack_us",
        "0",
        // An ACK of each answer, beside the twelve segments of the next request.
        Case {
            link: "rate = \"10gbit\"\ndelay = \"5us\"",
            app: "kind = \"request-response\"\nrequest = 16384\nresponse = 16384\nthink = \"100us\"",
            ..BULK
        },
        "link.wire.there.packets",
        More(1.04),
    ),
    (
        "net.ipv4.tcp_pacing_ca_ratio",
        "10",
        Case { app: "kind = \"bulk\"\npacing_rate = \"1gbit\"", ..LOSSY },
        FIGURE_GOODPUT,
        Less(0.5),
    ),
    (
        "net.ipv4.tcp_pacing_ss_ratio",
        "10",
        Case { app: "kind = \"bulk\"\npacing_rate = \"1gbit\"\nrcvbuf = 65536", ..BULK },
        FIGURE_GOODPUT,
        Less(0.5),
    ),
    (
        "neap.tcp_hystart",
        "off",
        Case {
            link: "rate = \"1gbit\"\ndelay = \"50ms\"\n\
                   bottleneck = { rate = \"50mbit\", buffer = \"1000 packets\" }",
            at: "300ms",
            duration: "3s",
            ..BULK
        },
        "app.x.retransmitted",
        More(1.5),
    ),
    ("net.ipv4.tcp_slow_start_after_idle", "0", PING, "app.x.latency_p50_ms", Less(0.95)),
    (
        "net.ipv4.tcp_early_retrans",
        "0",
        Case { link: "rate = \"100mbit\"\ndelay = \"5ms\"\nloss = \"5%\"", ..PING },
        "host.b.TcpExtTCPLossProbes",
        Less(0.0),
    ),
    (
        "net.ipv4.tcp_frto",
        "0",
        Case {
            events: "[[event]]\nat = \"1500ms\"\nlink = \"wire\"\ndelay = \"600ms\"\n",
            a_sysctl: "\"net.ipv4.tcp_early_retrans\" = 0\n\"net.ipv4.tcp_timestamps\" = 0",
            duration: "6s",
            ..BULK
        },
        "host.a.TcpExtTCPSpuriousRTOs",
        Less(0.0),
    ),
    (
        "net.ipv4.tcp_dsack",
        "0",
        Case { link: "rate = \"100mbit\"\ndelay = \"5ms\"\nduplicate = \"5%\"", host: "b", ..BULK },
        "host.b.TcpExtTCPDSACKOldSent",
        Less(0.0),
    ),
    (
        "net.ipv4.tcp_retrans_collapse",
        "0",
        // Messages that each are a segment, and an outage that loses several of them.
        Case {
            app: "kind = \"paced\"\nmessage = 200\ninterval = \"2ms\"\nnodelay = true",
            events: "[[event]]\nat = \"1100ms\"\nlink = \"wire\"\ndown = true\n\
                     [[event]]\nat = \"1120ms\"\nlink = \"wire\"\ndown = false\n",
            ..BULK
        },
        "host.a.TcpRetransSegs",
        More(2.0),
    ),
    (
        "net.ipv4.tcp_max_reordering",
        "300",
        // Without SACK the degree decides what counts as lost, however often reordering was seen.
        Case {
            a_sysctl: "\"net.ipv4.tcp_max_reordering\" = 3\n\"net.ipv4.tcp_sack\" = 0",
            ..REORDERED
        },
        "host.a.TcpRetransSegs",
        Less(0.9),
    ),
    ("net.ipv4.tcp_reordering", "300", REORDERED, FIGURE_GOODPUT, Other),
    ("net.ipv4.tcp_retries2", "2", CUT, FIGURE_FAILED, More(1.0)),
    (
        "net.ipv4.tcp_keepalive_intvl",
        "1",
        Case { app: IDLE, ..CUT },
        "host.a.TcpExtTCPKeepAlive",
        More(5.0),
    ),
    (
        "net.ipv4.tcp_keepalive_probes",
        "2",
        Case {
            a_sysctl: "\"net.ipv4.tcp_keepalive_intvl\" = 2",
            app: IDLE,
            duration: "15s",
            ..CUT
        },
        FIGURE_FAILED,
        More(1.0),
    ),
    (
        "net.ipv4.tcp_rmem",
        "4096 131072 131072",
        Case {
            link: "rate = \"100mbit\"\ndelay = \"50ms\"",
            host: "b",
            at: "250ms",
            duration: "5s",
            ..BULK
        },
        FIGURE_GOODPUT,
        Less(0.5),
    ),
    (
        "net.ipv4.tcp_moderate_rcvbuf",
        "0",
        Case {
            link: "rate = \"100mbit\"\ndelay = \"50ms\"",
            host: "b",
            at: "250ms",
            duration: "5s",
            ..BULK
        },
        FIGURE_GOODPUT,
        Less(0.5),
    ),
    (
        "net.ipv4.tcp_wmem",
        "4096 16384 4194304",
        Case {
            link: "rate = \"100mbit\"\ndelay = \"50ms\"",
            a_sysctl: "\"net.ipv4.tcp_wmem\" = \"4096 16384 65536\"",
            duration: "5s",
            ..BULK
        },
        FIGURE_GOODPUT,
        More(1.5),
    ),
    ("net.ipv4.tcp_syn_retries", "1", UNANSWERED, FIGURE_FAILED, More(1.0)),
    ("net.ipv4.tcp_syn_linear_timeouts", "0", UNANSWERED, "link.wire.there.lost", Less(0.8)),
    (
        "net.ipv4.tcp_ecn_fallback",
        "0",
        Case {
            link: "rate = \"100mbit\"\ndelay = \"5ms\"\nmark = \"1%\"\n\
                   outages = [[\"0s\", \"500ms\"]]",
            a_sysctl: "\"net.ipv4.tcp_ecn\" = 1",
            at: "200ms",
            duration: "3s",
            ..BULK
        },
        "link.wire.there.marked",
        More(1.0),
    ),
    (
        "neap.timer_slack_ns",
        "20000000",
        Case { a_sysctl: "\"neap.tcp_pacing_debt_us\" = 0", ..PACED },
        FIGURE_GOODPUT,
        Less(0.9),
    ),
    (
        "net.ipv4.tcp_syncookies",
        "2",
        Case { app: "kind = \"bulk\"\ncount = 20\nstagger = \"2s\"", host: "b", ..BULK },
        "host.b.TcpExtSyncookiesSent",
        More(1.0),
    ),
];

/// Sysctls for connections that open later: name, value, and what else is said.
const NEW: &[(&str, &str, Case)] = &[
    ("net.ipv4.tcp_congestion_control", "reno", LOSSY),
    ("net.ipv4.tcp_ecn", "1", BULK),
    ("net.ipv4.tcp_min_snd_mss", "1500", BULK),
    ("net.ipv4.tcp_rto_max_ms", "1000", CUT),
    ("net.ipv4.tcp_rto_min_us", "1000", CUT),
    ("net.ipv4.tcp_sack", "0", LOSSY),
    ("net.ipv4.tcp_timestamps", "0", BULK),
    ("net.ipv4.tcp_window_scaling", "0", BULK),
];

/// What the file of the other table says.
const ELSEWHERE: &str = include_str!("../../stack/tests/sysctls.rs");

fn no_files(_: &str) -> Result<String, String> {
    Err("no such file".into())
}

/// The scenario; the sysctl changes if one is given.
fn text(case: &Case, change: Option<(&str, &str)>, late: &str) -> String {
    let Case { a, b, a_sysctl, b_sysctl, nic, link, app, events, host, at, duration } = case;
    let change = change.map_or(String::new(), |(name, value)| {
        format!(
            "[[event]]\nat = \"{at}\"\nhost = \"{host}\"\nsysctl = {{ \"{name}\" = \"{value}\" }}\n"
        )
    });
    format!(
        "about = \"a sysctl changes\"\nwarm_up = \"{at}\"\nduration = \"{duration}\"\n\
         [host.a]\n{a}\n[host.a.nic]\n{nic}\n[host.a.sysctl]\n{a_sysctl}\n\
         [host.b]\n{b}\n[host.b.sysctl]\n{b_sysctl}\n\
         [link.wire]\nends = [\"a\", \"b\"]\n{link}\n\
         [app.x]\nfrom = \"a\"\nto = \"b\"\n{app}\n{late}\n{events}\n{change}"
    )
}

/// The figure, and the hash of the run.
fn run(text: &str, figure: &str) -> (f64, String) {
    let experiment = Experiment::parse("test.toml", text, &no_files)
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let run = experiment.run(&vec![], &|_| {}).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let value = run.figures.get(figure);
    (*value.unwrap_or_else(|| panic!("{figure}: not in {:#?}", run.figures)), run.hash)
}

fn acts_on(name: &str) -> ActsOn {
    let sysctl = Config::sysctls().iter().find(|sysctl| sysctl.name == name);
    sysctl.unwrap_or_else(|| panic!("{name} is no sysctl")).acts_on
}

#[test]
fn every_sysctl_has_one_row() {
    for sysctl in Config::sysctls() {
        let name = sysctl.name;
        let rows = OPEN.iter().filter(|row| row.0 == name).count()
            + NEW.iter().filter(|row| row.0 == name).count()
            + ELSEWHERE.matches(&format!("\"{name}\",\n        value:")).count();
        assert_eq!(rows, 1, "{name}");
    }
}

#[test]
fn what_acts_on_open_connections_does_so_at_their_next_event() {
    let mut wrong = Vec::new();
    for (name, value, case, figure, relation) in OPEN {
        let is_open = [ActsOn::OpenConnections, ActsOn::OpenListeners, ActsOn::Host];
        assert!(is_open.contains(&acts_on(name)), "{name}");
        let (before, _) = run(&text(case, None, ""), figure);
        let (after, _) = run(&text(case, Some((name, value)), ""), figure);
        let holds = match relation {
            Less(share) => before > 0.0 && after <= share * before,
            More(times) => after > 0.0 && after >= times * before.max(f64::MIN_POSITIVE),
            Other => after.to_bits() != before.to_bits(),
        };
        if !holds {
            wrong.push(format!("{name}={value}: {figure} from {before} to {after}, {relation:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_is_for_new_connections_leaves_open_ones_as_they_are() {
    for (name, value, case) in NEW {
        assert_eq!(acts_on(name), ActsOn::NewConnections, "{name}");
        let (_, before) = run(&text(case, None, ""), FIGURE_GOODPUT);
        let (_, after) = run(&text(case, Some((name, value)), ""), FIGURE_GOODPUT);
        assert_eq!(before, after, "{name} acts on an open connection");
    }
}

#[test]
fn what_is_for_new_connections_acts_on_them() {
    let late = "[app.late]\nkind = \"bulk\"\nfrom = \"a\"\nto = \"b\"\nstart = \"1050ms\"";
    for (name, value, case) in NEW {
        // An MSS that small peers announce, and marks for whoever asked for ECN.
        let link = format!("{}\nmark = \"1%\"", case.link);
        let b = if *name == "net.ipv4.tcp_min_snd_mss" { "[host.b.nic]\nmtu = 600\n" } else { "" };
        let of = |change| text(case, change, late).replace(case.link, &link) + b;
        let (_, before) = run(&of(None), FIGURE_GOODPUT);
        let (_, after) = run(&of(Some((name, value))), FIGURE_GOODPUT);
        assert_ne!(before, after, "{name} does not act on a new connection");
    }
}
