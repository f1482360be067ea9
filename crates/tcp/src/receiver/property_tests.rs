use super::*;
use crate::segment::Timestamps;
use crate::segment::{Ecn, Payload};
use proptest::prelude::*;
use std::collections::VecDeque;

/// A small generator, so that a failing world is one seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % u64::from(n.max(1))) as u32
    }

    fn percent(&mut self, n: u32) -> bool {
        self.below(100) < n
    }
}

/// What varies between worlds.
#[derive(Clone, Debug)]
struct World {
    seed: u64,
    irs: u32,
    len: u32,
    mss: u32,
    rcvbuf: u32,
    wscale: u8,
    sack: bool,
    loss: u32,
    reader: u32,
}

fn worlds() -> impl Strategy<Value = World> {
    let line = (1_u32..4_000, 2_304_u32..300_000, 0_u8..10, any::<bool>());
    let habits = (any::<u64>(), any::<u32>(), 0_u32..100, 0_u32..40, 1_u32..60);
    (line, habits).prop_map(|((mss, rcvbuf, wscale, sack), (seed, irs, len, loss, reader))| World {
        seed: seed | 1,
        irs,
        len: len * mss + len % 3,
        mss,
        rcvbuf,
        wscale,
        sack,
        loss,
        reader,
    })
}

fn byte(at: u32) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 24) as u8
}

/// A sender that honours the advertised window and repeats what is not acknowledged, a line that
/// loses, repeats and reorders, and a reader of its own pace.
struct Run {
    world: World,
    dice: Dice,
    rx: Receiver,
    now: Instant,
    line: VecDeque<Segment>,
    /// Offsets that the sender knows: acknowledged, allowed, sent.
    una: u32,
    edge: u32,
    nxt: u32,
    read: u32,
}

impl Run {
    fn new(world: &World) -> Self {
        let setup = Terms {
            irs: SeqNumber(world.irs),
            wnd: (world.rcvbuf / 2).min(65_535),
            wscale: world.wscale,
            advmss: world.mss as u16,
            mss: world.mss as u16,
            ts_recent: None,
            sack: world.sack,
            ecn: false,
            rcvbuf: Some(world.rcvbuf),
        };
        let now = Instant::from_nanos(1);
        let rx = Receiver::new(now, Arc::default(), Arc::default(), &setup);
        Self {
            dice: Dice(world.seed),
            rx,
            now,
            line: VecDeque::new(),
            una: 0,
            edge: setup.wnd,
            nxt: 0,
            read: 0,
            world: world.clone(),
        }
    }

    fn send(&mut self, from: u32) {
        // The FIN takes the number behind the data.
        let most = self.dice.below(4) * self.world.mss + 1 + self.dice.below(self.world.mss);
        let to = (from + most).min(self.world.len).min(self.edge);
        let fin = to == self.world.len && self.edge > self.world.len;
        if to < from || (to == from && !fin) {
            return;
        }
        let segment = Segment {
            seq: SeqNumber(self.world.irs) + 1 + from,
            flags: if fin { Flags::FIN | Flags::ACK } else { Flags::ACK },
            payload: Payload::from(Bytes::from((from..to).map(byte).collect::<Vec<_>>())),
            ..Segment::default()
        };
        self.nxt = self.nxt.max(to);
        if self.dice.percent(self.world.loss) {
            return;
        }
        if self.dice.percent(5) {
            self.line.push_back(segment.clone());
        }
        let at = self.line.len() - self.dice.below(4).min(self.line.len() as u32) as usize;
        self.line.insert(at, segment);
    }

    fn deliver(&mut self) {
        let Some(mut segment) = self.line.pop_front() else {
            return;
        };
        let before = self.rx.nxt();
        let end = segment.end_seq();
        let in_order = segment.seq.at_or_before(before) && end.after(before);
        let allowed = end.at_or_before(self.rx.adv());
        let intake = self.rx.on_segment(self.now, &mut segment, Estimates::default());
        if in_order && allowed {
            assert!(self.rx.nxt().at_or_after(end), "inside the window, refused: {intake:?}");
        }
        let limit = self.world.rcvbuf + self.world.rcvbuf / 4 + 2 * OVERHEAD;
        let limit = limit + 5 * self.world.mss + (1 << self.world.wscale);
        assert!(self.rx.rmem_alloc() <= limit, "{} > {limit}", self.rx.rmem_alloc());
    }

    fn read(&mut self) {
        let before = self.rx.unread();
        let got = if self.dice.percent(30) {
            self.rx.read_bytes(self.now).map(Vec::from).unwrap_or_default()
        } else {
            let mut buf = vec![0; self.dice.below(3 * self.world.mss) as usize];
            let peeked = self.rx.peek(&mut buf);
            let copy = buf[..peeked].to_vec();
            let len = self.rx.read(self.now, &mut buf);
            buf.truncate(len);
            assert_eq!(copy, buf);
            buf
        };
        assert_eq!(before - got.len() as u32, self.rx.unread());
        for got in got {
            assert_eq!(got, byte(self.read), "at {}", self.read);
            self.read += 1;
        }
    }

    fn acknowledge(&mut self) {
        while self.rx.ack_due() == AckDue::Now {
            let first = SeqNumber(self.world.irs) + 1;
            let blocks = self.rx.sack_blocks(3);
            assert!(blocks.is_empty() || self.world.sack);
            for block in &blocks {
                assert!(block.left.before(block.right));
                assert!(block.right.bytes_since(first) <= self.nxt.max(self.edge + 1) + 1);
            }
            let offer = self.rx.next_window();
            let edge = self.rx.adv();
            self.rx.on_ack_sent(offer);
            assert!(self.rx.adv().at_or_after(edge), "the edge moved left");
            assert_eq!(u32::from(offer.field) << self.world.wscale, offer.wnd);
            let announced = (self.rx.nxt() + offer.wnd).bytes_since(first);
            let unit = 1 << self.world.wscale;
            assert!(announced + unit > self.edge, "the announced edge moved left");
            assert!(announced >= self.edge || 16 * unit > self.world.mss, "by rounding");
            if !self.dice.percent(self.world.loss) {
                self.una = self.una.max(self.rx.nxt().bytes_since(first));
                self.edge = self.edge.max(self.una + offer.wnd);
            }
        }
    }

    fn step(&mut self) {
        match self.dice.below(100) {
            0..30 => self.send(self.nxt),
            30..38 => self.send(self.una),
            38..42 => {
                let span = self.nxt - self.una.min(self.nxt);
                let from = self.una + self.dice.below(span);
                self.send(from);
            }
            42..75 => self.deliver(),
            _ => {}
        }
        if self.dice.percent(self.world.reader) {
            self.read();
        }
        if self.dice.percent(10) {
            self.now += Nanos::from_millis(u64::from(self.dice.below(20)));
            if self.rx.deadline() <= self.now {
                self.rx.on_deadline(self.now, Estimates::default());
            }
        }
        self.acknowledge();
        if self.dice.percent(2) && self.una <= self.world.len {
            // A window probe repeats the edge.
            let mut probe = Segment {
                seq: SeqNumber(self.world.irs) + 1 + self.edge,
                payload: Payload::from(Bytes::from(vec![byte(self.edge)])),
                ..Segment::default()
            };
            if self.edge < self.world.len {
                let refused = probe.end_seq().after(self.rx.adv());
                self.rx.on_segment(self.now, &mut probe, Estimates::default());
                assert!(!refused || self.rx.ack_due() == AckDue::Now);
            }
        }
    }
}

proptest! {
    #[test]
    fn every_byte_is_read_once_in_order(world in worlds()) {
        let mut run = Run::new(&world);
        let mut steps = 0;
        while !(run.rx.is_finished() && run.read == world.len) {
            run.step();
            steps += 1;
            prop_assert!(steps < 200_000, "stuck at {} of {}", run.read, world.len);
        }
        prop_assert_eq!(run.rx.unread(), 0);
        prop_assert_eq!(run.rx.rmem_alloc(), 0);
        prop_assert_eq!(run.rx.bytes_received(), u64::from(world.len));
        prop_assert_eq!(run.rx.nxt(), SeqNumber(world.irs) + 2 + world.len);
    }

    #[test]
    fn the_first_bytes_to_arrive_win(
        irs in any::<u32>(),
        segments in prop::collection::vec((0_u32..3_000, 1_u32..600), 1..100),
    ) {
        let counters: Arc<Counters> = Arc::default();
        let setup = Terms {
            irs: SeqNumber(irs), wnd: 65_535, wscale: 0, advmss: 1_000, mss: 1_000,
            ts_recent: None, sack: true, ecn: false, rcvbuf: Some(1 << 20),
        };
        let mut rx = Receiver::new(Instant::ZERO, Arc::default(), counters, &setup);
        let mut model = vec![None; 4_000];
        for (i, &(from, len)) in segments.iter().enumerate() {
            let mut segment = Segment {
                seq: SeqNumber(irs) + 1 + from,
                payload: Payload::from(Bytes::from(vec![i as u8; len as usize])),
                ..Segment::default()
            };
            rx.on_segment(Instant::ZERO, &mut segment, Estimates::default());
            for slot in &mut model[from as usize..(from + len) as usize] {
                slot.get_or_insert(i as u8);
            }
        }
        let expected: Vec<u8> = model.iter().map_while(|&slot| slot).collect();
        let mut got = vec![0; 4_000];
        let len = rx.read(Instant::ZERO, &mut got);
        prop_assert_eq!(&got[..len], &expected[..]);
    }

    #[test]
    fn no_input_breaks_it(
        irs in any::<u32>(),
        wnd in any::<u32>(),
        wscale in any::<u8>(),
        mss in any::<(u16, u16)>(),
        bits in any::<(bool, bool, bool)>(),
        rcvbuf in prop::option::of(0_u32..1 << 20),
        inputs in prop::collection::vec(
            (any::<u8>(), any::<u32>(), 0_u32..40_000, any::<u8>(), any::<u32>()), 1..300),
    ) {
        let config = Arc::new(Config::default());
        let counters: Arc<Counters> = Arc::default();
        let setup = Terms {
            irs: SeqNumber(irs), wnd, wscale, advmss: mss.0, mss: mss.1,
            ts_recent: bits.2.then_some(irs), sack: bits.0, ecn: bits.1, rcvbuf,
        };
        let mut now = Instant::from_nanos(u64::from(irs));
        let mut rx = Receiver::new(now, config.clone(), counters, &setup);
        let first_wnd = rx.wnd();
        for (kind, word, len, flags, time) in inputs {
            let (srtt, rto) = (Nanos(time.into()), Nanos(word.into()));
            let rto_min = Nanos::from_millis(200);
            let estimates = Estimates { srtt, rto, rto_min, tsval: time, lowat: word };
            let edge = rx.adv();
            match kind {
                0..200 => {
                    // Half of them near the window, the others anywhere.
                    let near = rx.nxt() + word % 100_000 - 20_000;
                    let seq = if kind < 120 { near } else { SeqNumber(word) };
                    let mut segment = Segment {
                        seq,
                        flags: Flags::from_bits_retain(flags),
                        payload: Payload::from(Bytes::from(vec![flags; len as usize])),
                        gso_size: time as u16,
                        ..Segment::default()
                    };
                    segment.options.timestamps = Some(Timestamps { value: time, echo: word });
                    segment.ecn = if time & 1 == 0 { Ecn::Ce } else { Ecn::Ect0 };
                    rx.acceptable(segment.seq, segment.end_seq());
                    rx.paws_refuses(now, time, word);
                    rx.update_ts_recent(now, segment.seq, time);
                    if kind < 190 {
                        rx.on_segment(now, &mut segment, estimates);
                    } else {
                        rx.on_unacceptable(now, &segment, Counter::ACKSkippedSeq);
                    }
                }
                200..220 => {
                    let mut buf = vec![0; len as usize];
                    rx.read(now, &mut buf);
                }
                220..225 => { rx.read_bytes(now); }
                225..228 => rx.set_rcvbuf(word),
                228..233 => rx.set_quickack(word as i32),
                233..236 => rx.on_data_sent(now),
                _ => {
                    now += Nanos(time.into());
                    rx.on_deadline(now, estimates);
                    let offer = rx.next_window();
                    prop_assert!(rx.sack_blocks(4).len() <= 4);
                    rx.on_ack_sent(offer);
                }
            }
            prop_assert!(rx.adv().at_or_after(edge));
            prop_assert!(rx.unread() <= rx.rmem_alloc());
            if rcvbuf.is_some() && kind < 225 {
                let most = rx.rcvbuf().max(first_wnd).saturating_mul(2).saturating_add(1 << 20);
                prop_assert!(rx.rmem_alloc() <= most);
            }
        }
    }
}
