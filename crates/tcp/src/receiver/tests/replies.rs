//! ACKs that wait for the reply of the application.

use super::*;

fn super_segment(host: &Host, offset: u32, len: u32, flags: Flags) -> Segment {
    Segment { gso_size: MSS as u16, ..host.segment(offset, len, flags) }
}

#[test]
fn the_ack_of_a_turn_waits_a_millisecond_for_the_reply() {
    let millisecond = Nanos::from_millis(1);
    for (wait, flags, bytes, due) in [
        (1_000, Flags::PSH, 16_384, millisecond),
        (0, Flags::PSH, 16_384, Nanos::ZERO),
        (1_000, Flags::empty(), 16_384, Nanos::ZERO),
        (1_000, Flags::PSH | Flags::FIN, 16_384, Nanos::ZERO),
        (1_000, Flags::PSH, 16_000, Nanos::ZERO),
        (1_000, Flags::PSH, 21_844, millisecond),
        (1_000, Flags::PSH, 21_846, Nanos::ZERO),
    ] {
        let config = Config { reply_ack_us: wait, ..Config::default() };
        let terms = Terms { rcvbuf: Some(1 << 20), ..setup() };
        let mut host = Host::of(config, &terms, Arc::default());
        let offset = host.settle();
        host.rx.set_quickack(0);
        host.rx.on_data_sent(host.now);
        let half = bytes / 2;
        host.input(super_segment(&host, offset, half, Flags::empty()));
        host.acks();
        host.input(super_segment(&host, offset + half, bytes, flags));
        let case = format!("{wait} {flags:?} {bytes}");
        let at = match host.rx.ack_due() {
            AckDue::Delayed(at) => at,
            _ => host.now,
        };
        assert_eq!(at.since(host.now), due, "{case}");
        host.read(1 << 20);
        assert_eq!(host.rx.ack_due() == AckDue::Now, due == Nanos::ZERO, "read, {case}");
        host.wait(1);
        assert_eq!(host.rx.ack_due(), AckDue::Now, "{case}");
        host.ack();
        if due > Nanos::ZERO {
            host.input(super_segment(&host, offset + half + bytes, bytes, Flags::PSH));
            assert_eq!(host.rx.ack_due(), AckDue::Now, "no reply came the last time: {case}");
        }
    }
}

#[test]
fn an_ack_waits_for_twice_what_replies_take_and_not_for_slow_ones() {
    let mut host = Host::with(&Terms { rcvbuf: Some(1 << 20), ..setup() });
    let mut offset = host.settle();
    host.rx.set_quickack(0);
    host.rx.on_data_sent(host.now);
    // A reply's time in microseconds, and how long the next ACK waits.
    for (reply, wait) in
        [(0, 1_000), (800, 2_600), (0, 2_226), (1_600, 4_000), (4_100, 0), (0, 4_000)]
    {
        host.input(super_segment(&host, offset, 2_500, Flags::PSH));
        offset += 2_500;
        host.now += Nanos::from_micros(reply);
        host.rx.on_data_sent(host.now);
        host.ack();
        host.input(super_segment(&host, offset, 2_500, Flags::PSH));
        offset += 2_500;
        let at = match host.rx.ack_due() {
            AckDue::Delayed(at) => at,
            _ => host.now,
        };
        assert_eq!(at.since(host.now), Nanos::from_micros(wait), "{reply}");
        host.rx.on_data_sent(host.now);
        host.ack();
    }
}

#[test]
fn a_turn_that_fills_half_of_the_window_or_that_nobody_is_woken_for_is_acknowledged_at_once() {
    for (wnd, lowat, waits) in [(64_000, 1, true), (20_000, 1, false), (64_000, 30_000, false)] {
        let mut host = Host::with(&Terms { wnd, rcvbuf: Some(1 << 20), ..setup() });
        host.rx.set_quickack(0);
        host.estimates.lowat = lowat;
        host.input(super_segment(&host, 0, 12_100, Flags::PSH));
        assert_eq!(host.rx.ack_due() != AckDue::Now, waits, "{wnd} {lowat}");
    }
}
