//! Impairments of a path, as netem has them: which packets are lost, and a source of randomness for
//! each kind of impairment.

use super::config::PathConfig;
use crate::rng::Rng;
use neap_tcp::time::Instant;

/// Sources of randomness, one for each kind of impairment: to switch one on changes no other.
#[derive(Debug)]
pub(super) struct ImpairmentRngs {
    loss: Rng,
    burst: Rng,
    pub(super) corruption: Rng,
    pub(super) duplication: Rng,
    pub(super) reordering: Rng,
    pub(super) jitter: Rng,
    pub(super) marks: Rng,
    pub(super) early: Rng,
}

impl ImpairmentRngs {
    pub(super) fn new(rng: &Rng) -> Self {
        Self {
            loss: rng.fork(1),
            corruption: rng.fork(2),
            duplication: rng.fork(3),
            reordering: rng.fork(4),
            jitter: rng.fork(5),
            marks: rng.fork(6),
            burst: rng.fork(7),
            early: rng.fork(8),
        }
    }
}

/// Which packets are lost. O(1) per packet.
#[derive(Debug, Default)]
pub(super) struct LossModel {
    is_bad: bool,
    packet: u64,
    next_packet: usize,
    next_outage: usize,
}

impl LossModel {
    /// Whether the next packet, which leaves at `at`, vanishes; the world began at `start`.
    pub(super) fn takes(
        &mut self,
        path: &PathConfig,
        rngs: &mut ImpairmentRngs,
        at: Instant,
        start: Instant,
    ) -> bool {
        let mut is_lost = rngs.loss.chance(path.loss);
        if let Some(model) = path.bursts {
            let flip = if self.is_bad { model.to_good } else { model.to_bad };
            self.is_bad ^= rngs.burst.chance(flip);
            let loss = if self.is_bad { model.loss_in_bad } else { model.loss_in_good };
            is_lost |= rngs.burst.chance(loss);
        }
        let index = self.packet;
        self.packet += 1;
        let packets = &path.scripted.packets;
        while packets.get(self.next_packet).is_some_and(|&packet| packet < index) {
            self.next_packet += 1;
        }
        is_lost |= packets.get(self.next_packet) == Some(&index);
        let outages = &path.scripted.outages;
        while outages.get(self.next_outage).is_some_and(|&(_, end)| start + end <= at) {
            self.next_outage += 1;
        }
        is_lost || outages.get(self.next_outage).is_some_and(|&(begin, _)| start + begin <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{GilbertElliott, ScriptedLoss};
    use super::*;
    use crate::rng::Ppm;
    use neap_tcp::time::{Nanos, Rate};

    const START: Instant = Instant::from_nanos(1_000_000_000);

    fn lost(path: &PathConfig, count: u64) -> Vec<bool> {
        let (mut model, mut rngs) = (LossModel::default(), ImpairmentRngs::new(&Rng::new(3)));
        let at = |i| START + Nanos::from_millis(i);
        (0..count).map(|i| model.takes(path, &mut rngs, at(i), START)).collect()
    }

    fn path() -> PathConfig {
        PathConfig::clean(Rate(1000), Nanos::ZERO)
    }

    #[test]
    fn bursts_are_as_frequent_and_as_long_as_asked() {
        let model = GilbertElliott {
            to_bad: Ppm::percent(1),
            to_good: Ppm::percent(20),
            loss_in_bad: Ppm::percent(100),
            loss_in_good: Ppm::NEVER,
        };
        let lost = lost(&PathConfig { bursts: Some(model), ..path() }, 100_000);
        let count = lost.iter().filter(|&&lost| lost).count();
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        // 1/21 of the time is bad, in bursts of five.
        assert!((4300..5300).contains(&count), "{count}");
        assert!((870..1030).contains(&bursts), "{bursts}");
    }

    #[test]
    fn scripts_name_packets_and_times() {
        let scripted = ScriptedLoss {
            packets: vec![2, 3],
            outages: vec![(Nanos::from_millis(5), Nanos::from_millis(7))],
        };
        let lost = lost(&PathConfig { scripted, ..path() }, 10);
        let which: Vec<usize> = (0..10).filter(|&i| lost[i]).collect();
        assert_eq!(which, [2, 3, 5, 6]);
    }
}
