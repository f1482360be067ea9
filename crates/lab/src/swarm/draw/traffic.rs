//! Applications and sessions.

use super::{Drawer, FQ_ROUND, Theme, put, share, size, speed, time, within};
use crate::rng::Ppm;
use neap_tcp::time::Nanos;
use toml::{Table, Value};

/// Messages of one application that writes now and then.
const MESSAGES: u64 = 200;

impl Drawer {
    pub(super) fn applications(&mut self) {
        let count = self.rng.pick(&[1, 1, 1, 2, 2, 3, 4]);
        for index in 0..count {
            let now_and_then = if self.theme == Theme::Slow { 75 } else { 25 };
            if self.often(now_and_then) {
                let app = self.app();
                within(&mut self.table, "app").insert(format!("app{index}"), Value::Table(app));
            } else {
                let one = self.session();
                within(&mut self.table, "session").insert(format!("s{index}"), Value::Table(one));
            }
        }
    }

    fn ends(&mut self, table: &mut Table) {
        let from = self.rng.below(self.hosts.len() as u64) as usize;
        let other = self.rng.range(1, self.hosts.len() as u64 - 1) as usize;
        let to = (from + other) % self.hosts.len();
        let start = self.rng.time(Nanos::from_millis(500));
        put(
            table,
            [
                ("from", self.hosts[from].clone().into()),
                ("to", self.hosts[to].clone().into()),
                ("start", time(start)),
            ],
        );
    }

    /// Silence after which a socket probes whether its peer is there.
    fn keepalive(&mut self) -> Value {
        let most = if self.theme == Theme::Slow { 1800 } else { 60 };
        let idle = Nanos::from_secs(self.rng.log_range(5, most));
        time(if self.delivers { idle.max(self.longest_silence()) } else { idle })
    }

    /// How long a sound connection may hear nothing: its link is down, now and again, and then
    /// others are served.
    fn longest_silence(&self) -> Nanos {
        self.longest_outage().saturating_mul(4) + Nanos::from_secs(FQ_ROUND / self.slowest_rate())
    }

    fn app(&mut self) -> Table {
        let mut app = Table::new();
        self.ends(&mut app);
        let stop = time(self.duration);
        // About so much time between two messages.
        let interval = Nanos(self.duration.0 / self.rng.log_range(2, MESSAGES));
        let message = self.rng.log_range(1, (self.budget / 50).clamp(10, 20_000));
        let kind = self.rng.below(8);
        match kind {
            0..2 => put(
                &mut app,
                [
                    ("kind", "on-off".into()),
                    ("burst", size(message)),
                    ("off", time(interval)),
                    ("stop", stop),
                ],
            ),
            2..4 => put(
                &mut app,
                [
                    ("kind", "request-response".into()),
                    ("request", size(message)),
                    ("response", size(self.rng.log_range(1, message * 4))),
                    ("think", time(interval)),
                    ("stop", stop),
                ],
            ),
            4 => put(
                &mut app,
                [
                    ("kind", "paced".into()),
                    ("message", size(message)),
                    ("interval", time(interval)),
                    ("stop", stop),
                ],
            ),
            5 => put(
                &mut app,
                [
                    ("kind", "udp".into()),
                    ("message", size(self.rng.range(8, 1200))),
                    ("interval", time(interval)),
                    ("stop", stop),
                ],
            ),
            _ => put(
                &mut app,
                [
                    ("kind", "transfer".into()),
                    ("bytes", size(self.rng.log_range(1, self.budget))),
                    ("write", size(self.rng.log_range(500, 100_000))),
                ],
            ),
        }
        put(&mut app, [("count", size(self.rng.pick(&[1, 1, 1, 2, 4])))]);
        if kind != 5 {
            self.app_options(&mut app, kind != 2 && kind != 3);
        }
        app
    }

    /// What only connections have; `streams` if the other end is told how fast to read.
    fn app_options(&mut self, app: &mut Table, streams: bool) {
        let keepalive = self.keepalive();
        put(app, [("keepalive", keepalive), ("nodelay", self.rng.chance(Ppm::percent(30)).into())]);
        if self.often(15) && streams {
            put(app, [("read_rate", speed((self.rate / 2).max(1000)))]);
        }
        if self.often(20) {
            put(app, [("writer", self.rng.pick(&["edge", "async"]).into())]);
        }
        if self.often(15) {
            put(app, [("notsent_lowat", size(self.rng.log_range(1, 65_536)))]);
        }
        if self.often(10) {
            put(app, [("priority", size(self.rng.below(16)))]);
        }
    }

    fn session(&mut self) -> Table {
        let mut one = Table::new();
        self.ends(&mut one);
        let kind = self.rng.below(10);
        let bytes = self.rng.log_range(1, self.budget);
        let answer = self.rng.log_range(1, self.budget);
        if kind < 7 {
            put(&mut one, [("bytes", size(bytes))]);
        }
        if kind > 3 {
            put(&mut one, [("answer", size(answer))]);
        }
        // Each write may wait for the ACK of the one before it.
        let least = bytes.max(answer) / (100_000_000_000 / (self.delay.0 + 50_000_000)).max(1);
        let write = self.rng.log_range(1, 100_000).max(least + 1);
        let keepalive = self.keepalive();
        put(
            &mut one,
            [
                ("write", size(write)),
                ("read", size(self.rng.log_range(200, 100_000))),
                ("zero_copy", share(self.rng.pick(&[0, 30, 100].map(Ppm::percent)))),
                ("pause", share(self.rng.pick(&[0, 1, 10].map(Ppm::percent)))),
                ("rest", time(self.rest())),
                ("nodelay", self.rng.chance(Ppm::percent(30)).into()),
                ("keepalive", keepalive),
            ],
        );
        if self.often(10) {
            put(&mut one, [("late", time(Nanos::from_secs(self.rng.range(1, 20))))]);
        }
        self.ending(&mut one, bytes + answer);
        if self.theme == Theme::Pair && !one.contains_key("ending") {
            // A probe would hide that a connection sleeps too long. Only an end that is reset or
            // left needs probes.
            one.remove("keepalive");
        }
        self.options(&mut one);
        one
    }

    fn rest(&mut self) -> Nanos {
        let most = if self.theme == Theme::Slow { 20_000_000_000 } else { 300_000_000 };
        Nanos(self.rng.log_range(1_000, most))
    }

    fn ending(&mut self, one: &mut Table, bytes: u64) {
        match self.rng.below(10) {
            0 => {
                put(one, [("ending", "abort".into()), ("after", size(self.rng.below(bytes + 1)))]);
            }
            1..4 => put(one, [("ending", "close".into())]),
            _ => {}
        }
        if self.often(50) {
            put(one, [("ended_by_server", true.into())]);
        }
    }

    fn options(&mut self, one: &mut Table) {
        if self.often(15) {
            put(one, [("sndbuf", size(self.rng.log_range(1_000, 500_000)))]);
        }
        if self.often(15) {
            put(one, [("rcvbuf", size(self.rng.log_range(1_000, 500_000)))]);
        }
        if self.often(10) {
            put(one, [("mss", size(self.rng.range(88, 1460)))]);
        }
        if self.often(10) {
            let least = if self.theme == Theme::Slow { 2_000 } else { 50_000 };
            put(one, [("pacing_rate", speed(self.rng.log_range(least, 100_000_000)))]);
        }
        if self.often(15) {
            put(one, [("notsent_lowat", size(self.rng.log_range(1, 65_536)))]);
        }
        if self.often(20) {
            let name = self.rng.pick(&["reno", "cubic", "bbr", "bbr3"]);
            put(one, [("congestion", name.into())]);
        }
        if !self.delivers && self.often(20) {
            let timeout = Nanos::from_millis(self.rng.log_range(100, 300_000));
            put(one, [("user_timeout", time(timeout))]);
        }
    }
}
