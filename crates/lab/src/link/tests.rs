use super::*;
use neap_stack::device::RxChecksum;
use neap_stack::frame::{Gso, GsoKind, Headers};
use neap_stack::gso;
use neap_stack::wire::checksum::Pseudo;
use neap_stack::wire::{ChecksumBy, Ports, Protocol, ipv4, partial_checksum, tcp};
use neap_tcp::segment::{Ecn, Flags, Segment};
use neap_tcp::seq::SeqNumber;
use std::net::Ipv4Addr;

pub(super) const SIZE: u32 = 1000;
/// A segment of `SIZE` with IP, TCP and Ethernet, at 1000 Mbit/s.
const ONE: Nanos = Nanos((SIZE as u64 + 40 + 14 + 24) * 8);
const DELAY: Nanos = Nanos::from_micros(100);
pub(super) const START: Instant = Instant::from_nanos(1_000_000);

/// A TCP frame of `segments` pieces that begins at `seq`.
pub(super) fn frame(seq: u32, segments: u32, flags: Flags) -> Frame {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let payload: Vec<u8> = (0..segments * SIZE).map(|i| (seq + i) as u8).collect();
    let segment = Segment {
        seq: SeqNumber(seq),
        flags,
        payload: bytes::Bytes::from(payload).into(),
        ..Segment::default()
    };
    let mut headers = Headers::default();
    let pseudo = Pseudo::v4(source, destination, Protocol::TCP);
    let ports = Ports { source: 1, destination: 2 };
    let len = tcp::emit(&mut headers, ports, &segment, pseudo, ChecksumBy::Device);
    let header = ipv4::Header {
        source,
        destination,
        protocol: Protocol::TCP,
        ttl: 64,
        dscp: 0,
        ecn: Ecn::Ect0,
        identification: 7,
        dont_fragment: true,
    };
    header.emit(&mut headers, (len as u32 + segments * SIZE) as u16);
    Frame {
        checksum: Some(partial_checksum(&headers, len, tcp::CHECKSUM_AT)),
        gso: (segments > 1).then_some(Gso { size: SIZE as u16, kind: GsoKind::Tcp4 }),
        departure: START,
        ecn: Ecn::Ect0,
        ..Frame::new(headers, segment.payload)
    }
}

fn path() -> PathConfig {
    PathConfig::clean(Rate::from_bits(1_000_000_000), DELAY)
}

fn link(nic: NicConfig, path: PathConfig) -> (Link, [Device; 2]) {
    let config = LinkConfig { nics: [nic.clone(), nic], paths: [path.clone(), path] };
    Link::new(&config, &Rng::new(1), START)
}

fn send(device: &mut Device, frames: impl IntoIterator<Item = Frame>) {
    for frame in frames {
        assert!(device.queues[0].tx.submit(frame, START).is_ok());
    }
    device.queues[0].tx.flush(START);
}

fn all(device: &mut Device, now: Instant) -> Vec<Received> {
    core::iter::from_fn(|| device.queues[0].rx.receive(now)).collect()
}

/// Sequence number and payload, after the host's own checks.
fn parse(packet: &Received) -> Result<(u32, Vec<u8>, Flags), tcp::Error> {
    let ip = ipv4::parse(&packet.data).map_err(|_| tcp::Error::Checksum)?;
    let pseudo = Pseudo::v4(ip.header.source, ip.header.destination, Protocol::TCP);
    let verify = (packet.checksum == RxChecksum::Unknown).then_some(pseudo);
    let (_, segment) = tcp::parse(packet.data.slice(ip.payload), verify)?;
    Ok((segment.seq.0, segment.payload.chunks().concat(), segment.flags))
}

const FAR: Instant = Instant::from_nanos(1_000_000_000);

#[test]
fn a_super_frame_is_complete_when_its_last_segment_has_left() {
    let (link, [mut a, mut b]) = link(NicConfig::default(), path());
    send(&mut a, [frame(0, 3, Flags::ACK | Flags::PSH), frame(3000, 1, Flags::ACK)]);
    let tx = &mut a.queues[0].tx;
    let done = START + ONE.saturating_mul(3);
    assert_eq!(tx.next_event(), done);
    assert_eq!(tx.reap(done - Nanos(1)), Completed::default());
    assert_eq!(tx.reap(done), Completed { frames: 1, bytes: 3040 });
    assert_eq!(tx.reap(done + ONE), Completed { frames: 1, bytes: 1040 });
    assert_eq!(b.queues[0].rx.next_event(), START + ONE + DELAY);
    let joined = all(&mut b, FAR);
    assert_eq!(joined.iter().map(|packet| packet.gso_size).collect::<Vec<_>>(), [1000, 0]);
    let (seq, payload, flags) = parse(&joined[0]).expect("a sound packet");
    assert_eq!((seq, payload.len(), flags), (0, 3000, Flags::ACK | Flags::PSH));
    assert_eq!(payload, (0..3000u32).map(|i| i as u8).collect::<Vec<_>>());
    assert_eq!(link.contents(), 0);
    assert_eq!(link.stats(0, FAR).busy, ONE.saturating_mul(4));
}

#[test]
fn only_what_follows_is_joined() {
    let (_, [mut a, mut b]) = link(NicConfig::default(), path());
    let push = Flags::ACK | Flags::PSH;
    send(
        &mut a,
        [
            frame(0, 2, Flags::ACK),
            frame(2000, 1, push),
            frame(3000, 1, Flags::ACK),
            frame(5000, 1, Flags::ACK),
            frame(6000, 0, Flags::ACK),
        ],
    );
    let lens: Vec<usize> =
        all(&mut b, FAR).iter().map(|packet| parse(packet).expect("sound").1.len()).collect();
    assert_eq!(lens, [3000, 1000, 1000, 0]);
}

#[test]
fn a_full_ring_gives_the_frame_back() {
    let (_, [mut a, _]) = link(NicConfig { descriptors: 1, ..NicConfig::default() }, path());
    send(&mut a, [frame(0, 2, Flags::ACK)]);
    let tx = &mut a.queues[0].tx;
    assert!(tx.submit(frame(2000, 1, Flags::ACK), START).is_err());
    tx.reap(START + ONE.saturating_mul(2));
    assert!(tx.submit(frame(2000, 1, Flags::ACK), START).is_ok());
}

#[test]
fn a_flipped_bit_is_a_checksum_error_wherever_it_is() {
    let path = PathConfig { corruption: Ppm::percent(100), ..path() };
    let (link, [mut a, mut b]) = link(NicConfig::default(), path);
    send(&mut a, (0..200).map(|i| frame(i * SIZE, 1, Flags::ACK)));
    let damaged = all(&mut b, FAR);
    assert_eq!((damaged.len(), link.stats(0, FAR).corrupted), (200, 200));
    assert!(damaged.iter().all(|packet| parse(packet).is_err()));
}

#[test]
fn a_host_without_offloads_gets_finished_checksums() {
    let nic = NicConfig { checksums: false, gro: false, ..NicConfig::default() };
    let (_, [mut a, mut b]) = link(nic, path());
    send(&mut a, [frame(0, 3, Flags::ACK)]);
    let packets = all(&mut b, FAR);
    assert!(packets.iter().all(|packet| packet.checksum == RxChecksum::Unknown));
    assert_eq!(packets.iter().filter(|packet| parse(packet).is_ok()).count(), 3);
}

#[test]
fn a_capture_says_which_checksums_are_wrong() {
    let (link, [mut a, _]) = link(NicConfig::default(), path());
    drop(link.capture(0));
    let mut wrong = frame(9000, 1, Flags::ACK);
    // The sum of another pseudo-header.
    wrong.headers.as_mut_slice()[20 + tcp::CHECKSUM_AT + 1] ^= 1;
    let mut finished = frame(8000, 1, Flags::ACK);
    gso::finish_checksum(&mut finished);
    send(&mut a, [frame(0, 3, Flags::ACK), wrong, finished]);
    let sound: Vec<_> = link.capture(0).iter().map(|packet| packet.is_sound).collect();
    assert_eq!(sound, [true, true, true, false, true]);
}

#[test]
fn interrupts_wait_for_time_or_frames() {
    let coalescing = Coalescing { delay: Nanos::from_micros(50), frames: 3 };
    let nic =
        NicConfig { tx_coalescing: coalescing, rx_coalescing: coalescing, ..NicConfig::default() };
    let (link, [mut a, mut b]) = link(nic, path());
    send(&mut a, [frame(0, 1, Flags::ACK)]);
    let first = START + ONE;
    assert_eq!(a.queues[0].tx.next_event(), first + coalescing.delay);
    assert_eq!(a.queues[0].tx.reap(first + Nanos(1)).frames, 0);
    assert_eq!(link.next_interrupt(1), first + DELAY + coalescing.delay);
    send(&mut a, [frame(1000, 2, Flags::ACK), frame(9000, 1, Flags::ACK)]);
    assert_eq!(a.queues[0].tx.next_event(), START + ONE.saturating_mul(4));
    assert_eq!(link.next_interrupt(1), START + ONE.saturating_mul(3) + DELAY);
    assert!(b.queues[0].rx.receive(first + DELAY).is_none());
}

#[test]
fn impairments_happen_as_often_as_asked_and_jitter_keeps_the_order() {
    let tenth = Ppm::percent(10);
    let bad = PathConfig { loss: tenth, duplication: tenth, jitter: DELAY, ..path() };
    let (link, [mut a, mut b]) = link(NicConfig { descriptors: 5000, ..no_gro() }, bad);
    send(&mut a, (0..2000).map(|i| frame(i * SIZE, 1, Flags::ACK)));
    let seqs: Vec<u32> = all(&mut b, FAR).iter().map(|p| parse(p).expect("sound").0).collect();
    assert!(seqs.is_sorted());
    let stats = link.stats(0, FAR);
    assert!((150..250).contains(&stats.lost) && (130..230).contains(&stats.duplicated));
    assert_eq!(seqs.len() as u64, 2000 - stats.lost + stats.duplicated);
}

fn no_gro() -> NicConfig {
    NicConfig { gro: false, ..NicConfig::default() }
}

#[test]
fn a_bottleneck_drops_at_its_tail() {
    let slow = Bottleneck { rate: Rate::from_bits(100_000_000), packets: 10, bytes: 1 << 20 };
    let path = PathConfig { bottleneck: Some(slow), ..path() };
    let (link, [mut a, mut b]) = link(no_gro(), path);
    send(&mut a, (0..50).map(|i| frame(i * SIZE, 1, Flags::ACK)));
    let backlog = |tenths| link.backlog(0, START + Nanos(ONE.0 * tenths / 10));
    assert_eq!((backlog(0), backlog(5)), ((0, 0), (0, 0)), "all are in the card still");
    assert_eq!((backlog(15).0, backlog(105).0), (1, 10), "the card sends one after the other");
    assert_eq!((backlog(1105).0, backlog(1415)), (4, (0, 0)), "fourteen have left");
    let seqs: Vec<u32> = all(&mut b, FAR).iter().map(|p| parse(p).expect("sound").0).collect();
    // While 50 arrive four leave, and ten are there.
    let stats = link.stats(0, FAR);
    assert_eq!((seqs.len(), stats.dropped), (14, 36));
    let frame = ONE.0 / 8;
    assert_eq!((stats.wire_bytes, stats.carried_bytes), (50 * frame, 14 * frame));
    // The hop has begun with the eleventh: half of it has left.
    let half = START + ONE.saturating_mul(1 + 10 * 10 + 5);
    assert_eq!(link.stats(0, half).carried_bytes, 10 * frame + frame / 2);
    assert_eq!(seqs[..10], core::array::from_fn::<u32, 10, _>(|i| i as u32 * SIZE));
}

#[test]
fn a_router_says_what_is_too_big_and_marks_what_may_be_marked() {
    let small = PathConfig { mtu: Some(900), ..path() };
    let (link_small, [mut a, mut b]) = link(no_gro(), small);
    send(&mut a, [frame(0, 1, Flags::ACK), frame(1000, 0, Flags::ACK)]);
    assert_eq!(all(&mut b, FAR).len(), 1);
    let answer = all(&mut a, FAR);
    let ip = ipv4::parse(&answer[0].data).expect("a sound packet");
    assert_eq!((ip.header.protocol, link_small.stats(0, FAR).too_big), (Protocol::ICMP, 1));
    let marks = PathConfig { congestion_marks: Ppm::percent(100), ..path() };
    let (_, [mut a, mut b]) = link(no_gro(), marks);
    send(&mut a, [frame(0, 1, Flags::ACK)]);
    let marked = ipv4::parse(&all(&mut b, FAR)[0].data).expect("a sound packet");
    assert_eq!(marked.header.ecn, Ecn::Ce);
}

/// Sends one frame of `SIZE` every `gap`, and takes what arrives; marks and sequence numbers.
fn stream(path: PathConfig, count: u32, gap: Nanos) -> (LinkStats, Vec<(u32, bool)>) {
    stream_at(path, (0..count).map(|i| gap.saturating_mul(i.into())))
}

/// The same with a frame at each of these times.
fn stream_at(
    path: PathConfig,
    times: impl Iterator<Item = Nanos>,
) -> (LinkStats, Vec<(u32, bool)>) {
    let (link, [mut a, mut b]) = link(no_gro(), path);
    let mut arrived = Vec::new();
    for (i, time) in (0..).zip(times) {
        let now = START + time;
        link.advance(0, now);
        a.queues[0].tx.reap(now);
        assert!(a.queues[0].tx.submit(frame(i * SIZE, 1, Flags::ACK), now).is_ok());
        a.queues[0].tx.flush(now);
    }
    link.advance(0, FAR);
    for packet in all(&mut b, FAR) {
        let ip = ipv4::parse(&packet.data).expect("a sound packet");
        arrived.push((parse(&packet).expect("sound").0 / SIZE, ip.header.ecn == Ecn::Ce));
    }
    a.queues[0].tx.reap(FAR);
    assert_eq!(link.contents(), 0);
    (link.stats(0, FAR), arrived)
}

/// A hop of 100 Mbit/s that gets twice as much.
fn overloaded(discipline: Discipline) -> PathConfig {
    let slow = Bottleneck { rate: Rate::from_bits(100_000_000), packets: 5000, bytes: 1 << 30 };
    PathConfig { bottleneck: Some(slow), discipline, ..path() }
}

const TWICE: Nanos = Nanos(ONE.0 * 5);

#[test]
fn a_threshold_marks_whatever_finds_more_than_it() {
    let (stats, arrived) = stream(overloaded(Discipline::MarkAbove(10_780)), 100, TWICE);
    let first = arrived.iter().position(|&(_, marked)| marked).expect("some are marked");
    // Every second packet stays: at the 21st or so, ten of 1078 bytes wait.
    assert!((19..24).contains(&first), "{first}");
    assert!(arrived[first..].iter().all(|&(_, marked)| marked));
    assert_eq!(stats.marked as usize, 100 - first);
}

#[test]
fn early_detection_marks_more_the_more_waits() {
    let red =
        Red { min: 20_000, max: 60_000, probability: Ppm::percent(20), weight_log: 3, ecn: true };
    let (stats, arrived) = stream(overloaded(Discipline::Red(red)), 160, TWICE);
    let marked = |range: core::ops::Range<usize>| {
        arrived[range].iter().filter(|&&(_, marked)| marked).count()
    };
    assert_eq!((marked(0..35), stats.early_drops), (0, 0), "below min");
    assert!((2..20).contains(&marked(50..110)), "{}", marked(50..110));
    assert_eq!(marked(140..160), 20, "above max");
    let dropping = Discipline::Red(Red { ecn: false, ..red });
    let (stats, arrived) = stream(overloaded(dropping), 160, TWICE);
    assert!(stats.marked == 0 && stats.early_drops > 2);
    assert_eq!(arrived.len() as u64 + stats.early_drops, 160);
}

#[test]
fn early_detection_forgets_while_idle_though_it_drops() {
    let red =
        Red { min: 20_000, max: 25_000, probability: Ppm::percent(100), weight_log: 9, ecn: false };
    // A backlog, and then frames that each find an empty queue.
    let backlog = (0..400).map(|i| TWICE.saturating_mul(i));
    let sparse = (1..101).map(|i| TWICE.saturating_mul(420) + Nanos::from_micros(4800 * i));
    let (stats, arrived) = stream_at(overloaded(Discipline::Red(red)), backlog.chain(sparse));
    let late = arrived.iter().filter(|&&(i, _)| i >= 400).count();
    assert!((50..100).contains(&late), "{late} of 100, {} dropped", stats.early_drops);
}

#[test]
fn controlled_delay_drops_faster_and_faster_while_the_queue_stands() {
    let codel =
        CoDel { target: Nanos::from_millis(1), interval: Nanos::from_millis(10), ecn: false };
    let (stats, arrived) = stream(overloaded(Discipline::CoDel(codel)), 2000, TWICE);
    let lost: Vec<u32> =
        (0..2000).filter(|i| arrived.binary_search(&(*i, false)).is_err()).collect();
    assert_eq!((lost.len() as u64, stats.dropped), (stats.early_drops, 0));
    // 172 ms of departures: one drop after the first interval, then every 10 ms over the root.
    assert!((40..160).contains(&lost.len()), "{}", lost.len());
    let gap = |pair: &[u32]| pair[1] - pair[0];
    let (early, late) = (gap(&lost[1..3]), gap(&lost[lost.len() - 3..lost.len() - 1]));
    assert!(late < early / 2, "{early} {late}");
}

#[test]
fn an_aggregate_arrives_as_a_whole_and_costs_its_overhead_once() {
    let wifi = Wifi { overhead: Nanos::from_millis(1), frames: 10, airtime: Nanos::from_millis(4) };
    let air = PathConfig { wifi: Some(wifi), ..overloaded(Discipline::DropTail) };
    let (link, [mut a, mut b]) = link(no_gro(), air);
    send(&mut a, (0..21).map(|i| frame(i * SIZE, 1, Flags::ACK)));
    let mut times = Vec::new();
    while link.next_turn(0, false) < FAR {
        link.advance(0, link.next_turn(0, false));
    }
    while link.next_interrupt(1) < FAR {
        let now = link.next_interrupt(1);
        times.push((now, all(&mut b, now).len()));
    }
    // The first finds itself alone.
    let of = |frames: u64| wifi.overhead + Nanos(ONE.0 * 10 * frames);
    let first = START + ONE + of(1);
    let second = first + of(10);
    let third = second + of(10);
    assert_eq!(times, [(first + DELAY, 1), (second + DELAY, 10), (third + DELAY, 10)]);
}

/// An aggregate of ten frames at 100 Mbit/s needs less airtime than it may have, at 10 Mbit/s more.
const WIFI: Wifi =
    Wifi { overhead: Nanos::from_millis(1), frames: 10, airtime: Nanos::from_millis(4) };

/// How many frames arrive together of those that are sent at once.
fn aggregates(link: &Link, a: &mut Device, b: &mut Device, frames: u32) -> Vec<usize> {
    send(a, (0..frames).map(|i| frame(i * SIZE, 1, Flags::ACK)));
    while link.next_turn(0, false) < FAR {
        link.advance(0, link.next_turn(0, false));
    }
    let next = || Some(link.next_interrupt(1)).filter(|&now| now < FAR);
    core::iter::from_fn(|| next().map(|now| all(b, now).len())).collect()
}

#[test]
fn aggregates_are_as_long_as_the_rate_of_their_time_allows() {
    let air = PathConfig { wifi: Some(WIFI), ..overloaded(Discipline::DropTail) };
    let (link, [mut a, mut b]) = link(no_gro(), air);
    link.set_rate(0, Rate::from_bits(10_000_000));
    // A frame takes 0.86 ms of the 4 ms.
    assert_eq!(aggregates(&link, &mut a, &mut b, 9), [1, 4, 4]);
}

#[test]
fn frames_of_an_aggregate_are_queued_until_its_end() {
    let air = PathConfig { wifi: Some(WIFI), ..overloaded(Discipline::DropTail) };
    let (link, [mut a, mut b]) = link(no_gro(), air);
    assert_eq!(aggregates(&link, &mut a, &mut b, 11), [1, 10]);
    let queued = link.stats(0, FAR).queued;
    // The last of the eleven came ten frames behind the first one.
    let of = |frames: u64| WIFI.overhead + Nanos(ONE.0 * 10 * frames);
    let least = (of(1) + of(10)).saturating_sub(ONE.saturating_mul(10));
    let second = queued.percentile(15.0);
    assert!(second.0 * 100 >= least.0 * 98, "{second:?} {least:?}");
}

#[test]
fn early_detection_forgets_by_the_rate_of_the_time() {
    let red =
        Red { min: 20_000, max: 25_000, probability: Ppm::percent(100), weight_log: 9, ecn: false };
    // A backlog, and one frame long after it.
    let late = |rate: u64| {
        let (link, [mut a, _]) = link(no_gro(), overloaded(Discipline::Red(red)));
        let mut at = |time: Nanos| {
            let now = START + time;
            a.queues[0].tx.reap(now);
            assert!(a.queues[0].tx.submit(frame(0, 1, Flags::ACK), now).is_ok());
            a.queues[0].tx.flush(now);
        };
        (0..400).for_each(|i| at(TWICE.saturating_mul(i)));
        let before = link.stats(0, FAR).early_drops;
        link.set_rate(0, Rate::from_bits(rate));
        at(Nanos::from_millis(300));
        link.stats(0, FAR).early_drops - before
    };
    // As many packets as the idle time carries are forgotten: two thousand, or two.
    assert_eq!((late(100_000_000), late(100_000)), (0, 1));
}

/// A trace with one opportunity per millisecond.
fn traced() -> PathConfig {
    PathConfig { trace: Some(Trace::parse("1\n2\n3").expect("a sound trace")), ..path() }
}

#[test]
fn a_full_packet_needs_one_opportunity_of_a_trace() {
    let (_, [mut a, mut b]) = link(no_gro(), traced());
    let full = |seq| {
        let mut frame = frame(seq, 1, Flags::ACK);
        frame.payload.push(vec![0; 460].into());
        frame
    };
    send(&mut a, (0..10).map(full));
    for i in 1..=10 {
        let at = START + Nanos::from_millis(i) + DELAY;
        assert_eq!(b.queues[0].rx.next_event(), at);
        assert_eq!(all(&mut b, at).len(), 1);
    }
}

#[test]
fn early_detection_forgets_by_the_opportunities_of_a_trace() {
    let red =
        Red { min: 20_000, max: 25_000, probability: Ppm::percent(100), weight_log: 8, ecn: false };
    // A backlog that has left after 120 ms, and one frame later.
    let passes = |ms: u64| {
        let backlog = (0..400).map(|i| ONE.saturating_mul(i));
        let path = PathConfig { discipline: Discipline::Red(red), ..traced() };
        let (_, arrived) = stream_at(path, backlog.chain([Nanos::from_millis(ms)]));
        arrived.iter().any(|&(i, _)| i == 400)
    };
    // As many packets as the idle time has opportunities are forgotten: a hundred, or 800.
    assert_eq!((passes(200), passes(900)), (false, true));
}

#[test]
fn a_policer_passes_a_burst_and_then_its_rate() {
    let policer = Policer { rate: Rate::from_bits(100_000_000), burst: 10_780 };
    let policed = PathConfig { policer: Some(policer), ..path() };
    let (stats, arrived) = stream(policed, 200, TWICE);
    let passed = arrived.iter().take_while(|&&(i, _)| i < 18).count();
    assert_eq!(passed, 18, "ten of the burst, and what came in meanwhile");
    assert!((106..114).contains(&arrived.len()), "{}", arrived.len());
    assert_eq!(arrived.len() as u64 + stats.policed, 200);
    assert_eq!(stats.carried_bytes, arrived.len() as u64 * (ONE.0 / 8));
}

#[test]
fn what_came_since_the_last_departure_waits_too() {
    let codel = CoDel { target: DELAY, interval: DELAY, ecn: false };
    let on_wire = ONE.0 / 8;
    let slow = |packets, bytes| {
        let slow = Bottleneck { rate: Rate(on_wire), packets, bytes };
        PathConfig { bottleneck: Some(slow), discipline: Discipline::CoDel(codel), ..path() }
    };
    // A packet takes a second. One leaves, one waits, and two more come before the next departure.
    let backlog = |path| {
        let (link, [mut a, _]) = link(no_gro(), path);
        for (i, time) in (0..).zip([0, 0, 100, 100].map(Nanos::from_millis)) {
            let now = START + time;
            a.queues[0].tx.reap(now);
            assert!(a.queues[0].tx.submit(frame(i * SIZE, 1, Flags::ACK), now).is_ok());
            a.queues[0].tx.flush(now);
            while link.next_turn(0, false) <= now + ONE {
                link.advance(0, link.next_turn(0, false));
            }
        }
        [50, 500].map(|ms| link.backlog(0, START + Nanos::from_millis(ms)))
    };
    assert_eq!(backlog(slow(1000, u64::MAX)), [(1, on_wire), (3, 3 * on_wire)]);
    assert_eq!(backlog(slow(2, u64::MAX)), [(1, on_wire), (2, 2 * on_wire)]);
    assert_eq!(backlog(slow(1000, 2 * on_wire)), [(1, on_wire), (2, 2 * on_wire)]);
}

#[test]
fn no_packet_overtakes_earlier_ones_when_the_delay_becomes_less() {
    let late = Nanos::from_micros(1);
    let delay = Nanos::from_millis(100);
    let reorders =
        PathConfig { delay, reordering: Ppm::percent(50), reorder_delay: late, ..path() };
    let (link, [mut a, mut b]) = link(no_gro(), reorders);
    let sent = |i: u64| START + Nanos::from_micros(10 * i);
    for i in 0..200 {
        if i == 100 {
            link.set_delay(0, Nanos::from_millis(10));
        }
        a.queues[0].tx.reap(sent(i));
        assert!(a.queues[0].tx.submit(frame(i as u32 * SIZE, 1, Flags::ACK), sent(i)).is_ok());
        a.queues[0].tx.flush(sent(i));
    }
    let mut arrived = Vec::new();
    while link.next_interrupt(1) < FAR {
        let now = link.next_interrupt(1);
        let packets = all(&mut b, now);
        let numbers = packets.iter().map(|packet| parse(packet).expect("sound").0 / SIZE);
        arrived.extend(numbers.map(|number| (number, now)));
    }
    assert_eq!((arrived.len(), link.stats(0, FAR).reordered > 50), (200, true));
    // The last one that is not late.
    let in_order =
        |&&(number, at): &&(u32, Instant)| number < 100 && at == sent(number.into()) + ONE + delay;
    let last = arrived.iter().filter(in_order).map(|(_, at)| *at).max().expect("some are");
    for (number, at) in arrived.iter().filter(|(number, _)| *number >= 100) {
        assert!(*at >= last, "{number} at {at:?}, {last:?}");
    }
}
