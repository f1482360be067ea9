//! Draws scenarios from a seed.

mod network;
mod traffic;

use crate::hostile::Attack;
use crate::rng::{Ppm, Rng};
use neap_tcp::profile::Profile;
use neap_tcp::time::Nanos;
use toml::{Table, Value};

/// The slowest of all links, in bytes per second.
const LEAST_RATE: u64 = 1_000;

/// Bytes that the bands of an `fq` send before it is the turn of the first one again: its weights.
const FQ_ROUND: u64 = 589_824 + 196_608 + 65_536;

/// Connections of a world that may time out at the same time.
const COPIES: u64 = 16;

/// Bytes of most frames on the wire, at the most.
const LARGEST_FRAME: u64 = 1_538;

/// What the parts of a world have in common.
struct Drawer {
    rng: Rng,
    theme: Theme,
    is_v6: bool,
    /// Everything must arrive: there is patience enough for all faults.
    delivers: bool,
    is_lossy: bool,
    /// Bytes per second, propagation.
    rate: u64,
    delay: Nanos,
    /// Applications act within this.
    duration: Nanos,
    /// Bytes that one connection may carry.
    budget: u64,
    hosts: Vec<String>,
    table: Table,
}

/// What a world is about.
///
/// [`Transfers`](Self::Transfers), [`Slow`](Self::Slow) and [`Hostile`](Self::Hostile) worlds are
/// those of [`draw`]; their seeds are known, so what is drawn for them may not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    /// Transfers, over links of any speed.
    Transfers,
    /// Much silence: slow links, applications that write now and then, for up to two hours.
    Slow,
    /// Hostile peers.
    Hostile,
    /// Two hosts at one link, where everything must arrive: most of it by sessions, which keep
    /// nothing alive.
    Pair,
}

/// Returns the scenario of a seed as text: transfers, silence or hostile peers, in networks of any
/// shape.
pub fn draw(seed: u64) -> String {
    let mut rng = Rng::new(seed).fork(200);
    let theme = match rng.below(20) {
        0..11 => Theme::Transfers,
        11..16 => Theme::Slow,
        _ => Theme::Hostile,
    };
    draw_theme(seed, theme, rng)
}

/// Returns the scenario of a seed as text: two hosts at one link, where everything must arrive. It
/// differs from that of [`draw`] for the same seed.
pub fn draw_pair(seed: u64) -> String {
    draw_theme(seed, Theme::Pair, Rng::new(seed).fork(201))
}

fn draw_theme(seed: u64, theme: Theme, mut rng: Rng) -> String {
    let (rate, duration) = match theme {
        Theme::Transfers => (rng.log_range(5_000, 1_250_000_000), rng.range(5, 60)),
        Theme::Slow => (rng.log_range(1_250, 125_000), rng.log_range(300, 7200)),
        Theme::Hostile => (rng.log_range(100_000, 12_500_000), rng.range(5, 60)),
        Theme::Pair => (rng.log_range(20_000, 1_250_000_000), rng.range(5, 60)),
    };
    let delay = match theme {
        Theme::Hostile => rng.log_range(1_000, 50_000_000),
        Theme::Pair => rng.log_range(1_000, 200_000_000),
        _ => rng.log_range(1_000, 300_000_000),
    };
    // Few worlds are large.
    let most = match theme {
        Theme::Pair => 1_500_000,
        _ if rng.chance(Ppm::percent(5)) => 2_000_000,
        _ => 150_000,
    };
    let mut draw = Drawer {
        theme,
        is_v6: rng.chance(Ppm::percent(30)),
        delivers: match theme {
            Theme::Hostile => false,
            Theme::Pair => true,
            _ => rng.chance(Ppm::percent(60)),
        },
        is_lossy: rng.chance(Ppm::percent(if theme == Theme::Pair { 75 } else { 60 })),
        rate,
        delay: Nanos(delay),
        duration: Nanos::from_secs(duration),
        budget: (rate * 4).clamp(5_000, most),
        hosts: Vec::new(),
        table: Table::new(),
        rng,
    };
    draw.world(seed);
    draw.table.to_string()
}

/// A time as scenario files say it.
fn time(Nanos(nanos): Nanos) -> Value {
    Value::String(format!("{nanos}ns"))
}

fn share(Ppm(ppm): Ppm) -> Value {
    Value::String(format!("{ppm}ppm"))
}

fn speed(bytes_per_second: u64) -> Value {
    Value::String(format!("{bytes_per_second}bps"))
}

fn size(bytes: u64) -> Value {
    Value::Integer(bytes as i64)
}

/// Sets keys of a table.
fn put<'a>(table: &mut Table, pairs: impl IntoIterator<Item = (&'a str, Value)>) {
    table.extend(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)));
}

/// A table within a table.
fn within<'a>(table: &'a mut Table, key: &str) -> &'a mut Table {
    let entry = table.entry(key.to_owned()).or_insert_with(|| Value::Table(Table::new()));
    match entry {
        Value::Table(table) => table,
        _ => unreachable!("the keys of tables are those of nothing else"),
    }
}

impl Drawer {
    fn often(&mut self, percent: u32) -> bool {
        self.rng.chance(Ppm::percent(percent))
    }

    fn world(&mut self, seed: u64) {
        let about = format!("world {seed} of the swarm");
        let oracles = if self.delivers { "delivery" } else { "survival" };
        put(
            &mut self.table,
            [
                ("about", about.into()),
                ("seed", Value::Integer((seed & i64::MAX as u64) as i64)),
                ("duration", time(self.duration)),
                ("oracles", oracles.into()),
                ("ipv6", self.is_v6.into()),
            ],
        );
        self.network();
        let hosts = self.hosts.clone();
        for host in &hosts {
            let own = self.host();
            within(&mut self.table, "host").insert(host.clone(), Value::Table(own));
        }
        self.applications();
        if self.theme == Theme::Hostile {
            self.enemies();
        }
        if self.often(20) {
            self.events();
        }
        self.leave_out_idle_queues();
        if self.theme == Theme::Pair && self.is_clean() && self.often(50) {
            for host in &hosts {
                let host = within(within(&mut self.table, "host"), host);
                put(within(host, "sysctl"), [("net.ipv4.tcp_syncookies", size(2))]);
            }
        }
    }

    /// Whether the links lose nothing. The ACK that carries a SYN cookie is sent once: if it is
    /// lost, what follows is answered by a reset, as in Linux.
    fn is_clean(&mut self) -> bool {
        let has_events = self.table.contains_key("event");
        let mut links = within(&mut self.table, "link").values().filter_map(Value::as_table);
        !has_events && links.all(|link| !link.contains_key("there") && !link.contains_key("back"))
    }

    fn host(&mut self) -> Table {
        let mut host = Table::new();
        if self.often(25) {
            let profile = self.rng.pick(&Profile::ALL);
            put(&mut host, [("profile", profile.name().into())]);
        }
        let sysctls = self.sysctls();
        put(&mut host, [("sysctl", Value::Table(sysctls))]);
        let qdisc = if self.often(40) { Some(self.qdisc()) } else { None };
        let is_shaped = qdisc.as_ref().is_some_and(|qdisc| qdisc.starts_with("tbf"));
        put(&mut host, qdisc.map(|qdisc| ("qdisc", qdisc.into())));
        if self.often(20) {
            put(&mut host, [("lateness", time(Nanos(self.rng.log_range(1_000, 5_000_000))))]);
        }
        if self.often(10) {
            put(&mut host, [("per_wakeup", time(Nanos(self.rng.log_range(1_000, 200_000))))]);
        }
        if self.often(10) {
            put(&mut host, [("per_switch", time(Nanos(self.rng.log_range(1_000, 200_000))))]);
        }
        if self.theme == Theme::Pair && self.often(20) {
            put(&mut host, [("lateness", time(Nanos::ZERO))]);
        }
        let mut nic = self.nic();
        if is_shaped {
            // Nothing larger than its burst passes a tbf.
            nic.remove("mtu");
        }
        put(&mut host, [("nic", Value::Table(nic))]);
        host
    }

    fn qdisc(&mut self) -> String {
        let rate = (self.rate * 8 * self.rng.range(1, 20) / 10).max(8_000);
        let burst = self.rng.log_range(2_000, 100_000);
        match self.rng.below(10) {
            0 => "pfifo_fast".into(),
            1 => "mq".into(),
            2 | 3 => "fq".into(),
            4 => format!(
                "fq limit {} flow_limit {}",
                self.rng.range(20, 500),
                self.rng.range(10, 100)
            ),
            5 | 6 => "fq_codel".into(),
            7 => format!("fq_codel limit {} ecn", self.rng.range(20, 1000)),
            8 => "codel".into(),
            _ => format!("tbf rate {rate}bit burst {burst} latency 200ms"),
        }
    }

    fn sysctls(&mut self) -> Table {
        let mut table = Table::new();
        let switches = [
            ("net.ipv4.tcp_sack", 85),
            ("net.ipv4.tcp_dsack", 85),
            ("net.ipv4.tcp_retrans_collapse", 85),
            ("net.ipv4.tcp_timestamps", 80),
            ("net.ipv4.tcp_window_scaling", 85),
            ("net.ipv4.tcp_frto", 80),
            ("net.ipv4.tcp_autocorking", 80),
            ("net.ipv4.tcp_moderate_rcvbuf", 80),
            ("net.ipv4.tcp_slow_start_after_idle", 80),
            ("neap.tcp_small_queues", 80),
            ("neap.tcp_tso_autosizing", 85),
            ("neap.tcp_late_completions", 85),
            ("neap.tcp_internal_pacing", 85),
        ];
        for (name, percent) in switches {
            if !self.often(percent) {
                table.insert(name.into(), Value::Integer(0));
            }
        }
        let rng = &mut self.rng;
        let mut pick = |name: &str, values: &[i64]| {
            let value = rng.pick(values);
            if value != values[0] {
                table.insert(name.into(), Value::Integer(value));
            }
        };
        pick("net.ipv4.tcp_early_retrans", &[3, 3, 3, 0]);
        pick("net.ipv4.tcp_limit_output_bytes", &[4 << 20, 4 << 20, 131_072, 20_000, 1]);
        pick("net.ipv4.tcp_ecn", &[2, 2, 1, 1, 0]);
        pick("net.ipv4.tcp_min_tso_segs", &[2, 2, 1, 8]);
        pick("net.ipv4.tcp_reordering", &[3, 3, 3, 1, 20]);
        pick("net.ipv4.tcp_notsent_lowat", &[u32::MAX.into(), u32::MAX.into(), 16_384, 1]);
        pick("neap.tcp_notsent_lowat_us", &[0, 0, 0, 1000, 50_000]);
        if !self.delivers {
            pick("net.ipv4.tcp_syncookies", &[1, 1, 2, 0]);
            pick("net.ipv4.tcp_max_syn_backlog", &[1024, 1024, 16]);
            pick("net.core.somaxconn", &[4096, 4096, 4]);
            pick("net.ipv4.tcp_abort_on_overflow", &[0, 0, 1]);
            pick("net.ipv4.tcp_fin_timeout", &[60, 60, 5]);
            pick("net.ipv4.tcp_retries2", &[15, 15, 6, 3]);
        }
        self.patience(&mut table);
        self.buffers(&mut table);
        let controllers = ["cubic", "cubic", "reno", "bbr", "bbr3"];
        let controller = self.rng.pick(&controllers);
        table.insert("net.ipv4.tcp_congestion_control".into(), controller.into());
        let bonus = self.rng.pick(&["bounded", "bounded", "linux", "off"]);
        table.insert("neap.tcp_tso_bonus".into(), bonus.into());
        table
    }

    /// Timeouts. Where everything must arrive they are short, and there are enough of them.
    fn patience(&mut self, table: &mut Table) {
        let mut put = |name: &str, value: i64| table.insert(name.into(), Value::Integer(value));
        if self.delay <= Nanos::from_millis(50) {
            let least = self.rng.pick(&[200_000, 200_000, 20_000, 5_000]);
            if least != 200_000 {
                put("net.ipv4.tcp_rto_min_us", least);
            }
        }
        if self.delivers {
            // A timeout shorter than what waits at the slowest link fills it with copies, for ever,
            // unless one of each connection leaves room for what is new.
            let least = (COPIES * LARGEST_FRAME * 1000 / self.slowest_rate()) as i64;
            put("net.ipv4.tcp_rto_max_ms", self.rng.pick(&[1_000, 2_000, 10_000]).max(least));
            put("net.ipv4.tcp_retries2", 200);
            put("net.ipv4.tcp_orphan_retries", 200);
            // A burst of losses may take ten answers in a row.
            put("net.ipv4.tcp_keepalive_probes", 200);
            put("net.ipv4.tcp_syn_retries", 60);
            put("net.ipv4.tcp_synack_retries", 60);
        }
    }

    /// Bytes per second of the slowest link that there may be.
    fn slowest_rate(&self) -> u64 {
        (self.rate / 10).max(LEAST_RATE)
    }

    fn longest_outage(&self) -> Nanos {
        if self.delivers { self.duration / 20 } else { self.duration / 3 }
    }

    fn buffers(&mut self, table: &mut Table) {
        if !self.often(40) {
            return;
        }
        for name in ["net.ipv4.tcp_wmem", "net.ipv4.tcp_rmem"] {
            let default = self.rng.log_range(4_608, 262_144);
            let most = (default << self.rng.below(5)).max(16_384);
            table.insert(name.into(), format!("4096 {default} {most}").into());
        }
    }

    fn enemies(&mut self) {
        let count = self.rng.range(1, 3);
        for index in 0..count {
            let mut attack = self.rng.pick(Attack::of_random_worlds());
            if attack == Attack::Blind && !self.table.contains_key("session") {
                attack = Attack::SegmentFlood;
            }
            let name = format!("enemy{index}");
            let target = self.rng.pick(&(0..self.hosts.len()).collect::<Vec<_>>());
            let target = self.hosts[target].clone();
            let mut enemy = Table::new();
            put(
                &mut enemy,
                [
                    ("attack", attack.name().into()),
                    ("target", target.clone().into()),
                    ("start", time(self.rng.time(Nanos::from_secs(1)))),
                    ("stop", time(Nanos::from_secs(self.rng.range(3, 30)))),
                    ("count", size(self.rng.log_range(1, 8))),
                    ("interval", time(Nanos(self.rng.log_range(20_000_000, 1_000_000_000)))),
                    ("burst", size(self.rng.log_range(1, 20))),
                ],
            );
            if attack == Attack::Blind {
                let sessions = within(&mut self.table, "session");
                let session = sessions.keys().next().cloned().unwrap_or_default();
                put(&mut enemy, [("session", session.into())]);
            }
            within(&mut self.table, "hostile").insert(name.clone(), Value::Table(enemy));
            let mut link = self.link(false, false);
            put(&mut link, [("ends", vec![name.clone(), target].into())]);
            within(&mut self.table, "link").insert(format!("to-{name}"), Value::Table(link));
        }
    }

    /// Links that are cut for a while, and that become other links.
    fn events(&mut self) {
        let links: Vec<String> = within(&mut self.table, "link").keys().cloned().collect();
        let mut events = Vec::new();
        for _ in 0..self.rng.range(1, 4) {
            let link = links[self.rng.below(links.len() as u64) as usize].clone();
            let at = self.rng.time(self.duration / 2);
            let mut event = Table::new();
            put(&mut event, [("at", time(at)), ("link", link.clone().into())]);
            match self.rng.below(4) {
                0 => {
                    let length = self.rng.time(self.longest_outage());
                    put(&mut event, [("down", true.into())]);
                    let mut again = Table::new();
                    let up = at + length;
                    put(
                        &mut again,
                        [("at", time(up)), ("link", link.into()), ("down", false.into())],
                    );
                    events.push(Value::Table(event));
                    event = again;
                }
                1 => {
                    let delay = self.delay.0 * self.rng.range(1, 40) / 10;
                    put(&mut event, [("delay", time(Nanos(delay)))]);
                }
                _ => {
                    let rate = (self.rate * self.rng.range(1, 30) / 10).max(1_250);
                    put(&mut event, [("rate", speed(rate))]);
                }
            }
            events.push(Value::Table(event));
        }
        self.table.insert("event".into(), Value::Array(events));
    }
}
