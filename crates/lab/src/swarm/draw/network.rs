//! Topologies, links and cards.

use super::{Drawer, Theme, put, share, size, speed, time, within};
use crate::rng::Ppm;
use neap_tcp::time::Nanos;
use toml::{Table, Value};

impl Drawer {
    /// Two hosts at a link, behind one or two routers, or more at a star.
    pub(super) fn network(&mut self) {
        let is_pair = self.theme == Theme::Pair;
        let hosts = match if is_pair { 0 } else { self.rng.below(8) } {
            0..7 => 2,
            _ => self.rng.range(3, 5) as usize,
        };
        self.hosts = ["a", "b", "c", "d", "e"][..hosts].iter().map(|&name| name.into()).collect();
        let routers = match hosts {
            2 if is_pair => 0,
            2 => self.rng.pick(&[0, 0, 0, 1, 1, 2]),
            _ => 1,
        };
        for index in 0..routers {
            let table = Value::Table(Table::new());
            within(&mut self.table, "router").insert(format!("r{index}"), table);
        }
        let ends: Vec<[String; 2]> = match (hosts, routers) {
            (2, 0) => vec![["a".into(), "b".into()]],
            (2, 2) => vec![
                ["a".into(), "r0".into()],
                ["r0".into(), "r1".into()],
                ["r1".into(), "b".into()],
            ],
            _ => self.hosts.iter().map(|host| [host.clone(), "r0".into()]).collect(),
        };
        let is_lossy = self.is_lossy;
        for (index, ends) in ends.into_iter().enumerate() {
            // The first link has impairments; now and then others have them too.
            let is_bad = is_lossy && (index == 0 || self.often(20));
            let mut link = self.link(routers > 0, is_bad);
            put(&mut link, [("ends", ends.map(Value::from).to_vec().into())]);
            within(&mut self.table, "link").insert(format!("l{index}"), Value::Table(link));
        }
    }

    /// A link; `has_port` if one end is at a router.
    pub(super) fn link(&mut self, has_port: bool, is_bad: bool) -> Table {
        let mut link = Table::new();
        let rate = if has_port { self.rate * self.rng.range(1, 20) / 10 } else { self.rate };
        put(&mut link, [("rate", speed(rate.max(1_250))), ("delay", time(self.delay))]);
        if has_port {
            let buffer = format!("{} packets", self.rng.log_range(5, 1000));
            put(&mut link, [("buffer", buffer.into())]);
        }
        for way in ["there", "back"] {
            if self.often(if self.theme == Theme::Pair { 90 } else { 70 }) {
                let way_table = self.way(has_port, is_bad);
                link.insert(way.into(), Value::Table(way_table));
            }
        }
        if self.often(10) {
            let least = if self.is_v6 { 1280 } else { 576 };
            put(&mut link, [("mtu", size(self.rng.range(least, 1500)))]);
        }
        link
    }

    /// What differs in one direction.
    fn way(&mut self, has_port: bool, is_bad: bool) -> Table {
        let mut way = Table::new();
        if !has_port && self.often(25) {
            let mut hop = Table::new();
            let rate = (self.rate / self.rng.range(1, 10)).max(1_250);
            let mut buffer: Value = format!("{} packets", self.rng.log_range(4, 500)).into();
            if self.theme == Theme::Pair && self.often(50) {
                buffer = size(self.rng.log_range(20_000, 2_000_000));
            }
            put(&mut hop, [("rate", speed(rate)), ("buffer", buffer)]);
            put(&mut way, [("bottleneck", Value::Table(hop))]);
        }
        if self.often(15) {
            put(&mut way, [("mark", share(Ppm(self.rng.log_range(100, 50_000) as u32)))]);
        }
        self.management(&mut way);
        if is_bad {
            self.impairments(&mut way);
        }
        way
    }

    fn management(&mut self, way: &mut Table) {
        // Each kind of queue is one of so many.
        let kinds = if self.theme == Theme::Pair { 8 } else { 20 };
        let ecn = self.often(50);
        match self.rng.below(kinds) {
            0 => {
                let mut codel = Table::new();
                put(&mut codel, [("ecn", ecn.into())]);
                put(way, [("codel", Value::Table(codel))]);
            }
            1 => {
                let mut red = Table::new();
                let min = self.rng.log_range(3_000, 60_000);
                put(
                    &mut red,
                    [
                        ("min", size(min)),
                        ("max", size(min * 3)),
                        ("probability", "10%".into()),
                        ("ecn", ecn.into()),
                    ],
                );
                put(way, [("red", Value::Table(red))]);
            }
            2 => put(way, [("mark_above", size(self.rng.log_range(3_000, 60_000)))]),
            _ => {}
        }
        match self.rng.below(kinds) {
            0 => {
                let mut wifi = Table::new();
                put(
                    &mut wifi,
                    [
                        ("overhead", time(Nanos(self.rng.log_range(50_000, 1_000_000)))),
                        ("frames", size(self.rng.range(1, 64))),
                        ("airtime", time(Nanos::from_millis(self.rng.range(1, 6)))),
                    ],
                );
                put(way, [("wifi", Value::Table(wifi))]);
            }
            1 => {
                let mut policer = Table::new();
                let rate = (self.rate / self.rng.range(1, 4)).max(2_500);
                let burst = self.rng.log_range(10_000, 200_000);
                put(&mut policer, [("rate", speed(rate)), ("burst", size(burst))]);
                put(way, [("policer", Value::Table(policer))]);
            }
            _ => {}
        }
    }

    /// Leaves out the management of queues where it means nothing: at a host's card, whose queue
    /// never fills, and of RED and marks at a wifi hop. It is drawn all the same, so that the world
    /// of a seed stays what it was besides.
    pub(super) fn leave_out_idle_queues(&mut self) {
        let routers: Vec<String> = within(&mut self.table, "router").keys().cloned().collect();
        for (_, link) in within(&mut self.table, "link") {
            let Some(link) = link.as_table_mut() else { continue };
            for (end, way) in ["there", "back"].into_iter().enumerate() {
                let begins = link.get("ends").and_then(|ends| ends.get(end)?.as_str());
                let is_port = begins.is_some_and(|begins| routers.iter().any(|one| one == begins));
                let Some(way) = link.get_mut(way).and_then(Value::as_table_mut) else { continue };
                let has_wifi = way.contains_key("wifi");
                let has_hop = is_port || has_wifi || way.contains_key("bottleneck");
                if has_wifi || !has_hop {
                    way.remove("red");
                    way.remove("mark_above");
                }
                if !has_hop {
                    way.remove("codel");
                }
            }
        }
    }

    /// Loss, corruption, duplicates, overtaking, jitter.
    fn impairments(&mut self, way: &mut Table) {
        let worst = if self.delivers { 1 } else { 4 };
        let how_often = if self.theme == Theme::Pair { 75 } else { 60 };
        for (key, most) in
            [("loss", 40_000), ("corrupt", 20_000), ("duplicate", 50_000), ("reorder", 100_000)]
        {
            if self.often(how_often) {
                let value = share(Ppm(self.rng.log_range(100, most * worst) as u32));
                put(way, [(key, value)]);
            }
        }
        let late = self.rng.log_range(1_000, self.delay.0 * 3 + 1_000);
        put(way, [("reorder_delay", time(Nanos(late)))]);
        if self.often(30) {
            put(way, [("jitter", time(self.rng.time(self.delay / 2)))]);
        }
        if self.often(15) {
            let mut bursts = Table::new();
            put(
                &mut bursts,
                [
                    ("to_bad", share(Ppm(self.rng.log_range(100, 10_000) as u32))),
                    ("to_good", share(Ppm::percent(self.rng.range(10, 60) as u32))),
                    ("loss_in_bad", share(Ppm::percent(self.rng.range(10, 90) as u32))),
                ],
            );
            put(way, [("bursts", Value::Table(bursts))]);
        }
    }

    /// A network card.
    pub(super) fn nic(&mut self) -> Table {
        let mut nic = Table::new();
        if self.often(40) {
            let least = if self.is_v6 { 1280 } else { 576 };
            put(&mut nic, [("mtu", size(self.rng.pick(&[1500, 9000, least, 1400])))]);
        }
        if !self.often(70) {
            put(&mut nic, [("checksums", false.into()), ("gro", false.into())]);
        } else if self.often(30) {
            put(&mut nic, [("gro", false.into())]);
        }
        match self.rng.below(4) {
            0 => put(&mut nic, [("tso", false.into())]),
            1 => put(&mut nic, [("gso_max_size", size(self.rng.range(2048, 65_536)))]),
            _ => {}
        }
        if self.often(40) {
            put(&mut nic, [("ring", size(self.rng.pick(&[1, 2, 4, 16])))]);
        }
        if self.often(20) {
            put(&mut nic, [("rx_ring", size(self.rng.pick(&[64, 512])))]);
        }
        if self.often(25) {
            let delay = time(Nanos(self.rng.log_range(1_000, 2_000_000)));
            put(&mut nic, [("completion_delay", delay)]);
        }
        for (usecs, frames) in [("tx_usecs", "tx_frames"), ("rx_usecs", "rx_frames")] {
            if self.often(30) {
                put(&mut nic, [(usecs, size(self.rng.log_range(1, 2000)))]);
                put(&mut nic, [(frames, size(self.rng.range(1, 64)))]);
            }
        }
        if self.often(15) {
            put(&mut nic, [("bql", false.into())]);
        }
        if self.theme == Theme::Pair && self.often(50) {
            put(&mut nic, [("gso_max_segs", size(self.rng.pick(&[2, 16])))]);
        }
        nic
    }
}
