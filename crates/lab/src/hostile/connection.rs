//! One connection of an attacker: just enough of TCP to keep it going.

use crate::app::page;
use crate::rng::Rng;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_tcp::segment::{Flags, Options, Payload, SackBlock, Segment, Timestamps};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::Instant;

/// Payload of a segment.
const SEGMENT: u32 = 1200;

/// Shift of its windows.
const SCALE: u8 = 7;

/// Where a connection's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A SYN is out.
    Opening,
    /// Data may flow.
    Open,
    /// It says nothing any more.
    Silent,
}

/// One connection of an attacker.
#[derive(Debug)]
pub(super) struct AttackConnection {
    pub(super) own: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) phase: Phase,
    iss: SeqNumber,
    /// Own stream: what is acknowledged, and what is sent.
    pub(super) una: SeqNumber,
    pub(super) nxt: SeqNumber,
    /// The victim's stream: what has arrived in order, and the highest that was seen.
    pub(super) got: SeqNumber,
    pub(super) high: SeqNumber,
    /// The victim's FIN has arrived in order.
    pub(super) has_fin: bool,
    /// What arrived beyond a hole.
    pub(super) held: Vec<SackBlock>,
    /// Offered, in bytes.
    pub(super) window: u32,
    /// The victim's window and its shift.
    room: u32,
    scale: u8,
    /// The victim's last timestamp.
    echo: Option<u32>,
    pub(super) fin_sent: bool,
    /// Data of the victim has come.
    pub(super) has_heard: bool,
    /// Single bytes sent with a hole before each.
    pub(super) holes: u32,
}

impl AttackConnection {
    pub(super) fn new(own: SocketAddr, peer: SocketAddr, rng: &mut Rng) -> Self {
        let iss = SeqNumber(rng.next_u64() as u32);
        Self {
            own,
            peer,
            phase: Phase::Opening,
            iss,
            una: iss,
            nxt: iss + 1,
            got: SeqNumber(0),
            high: SeqNumber(0),
            has_fin: false,
            held: Vec::new(),
            window: 1 << 20,
            room: 0,
            scale: 0,
            echo: None,
            fin_sent: false,
            has_heard: false,
            holes: 0,
        }
    }

    /// A segment at `seq` with the ACK, window and timestamps of now.
    pub(super) fn segment(&self, now: Instant, seq: SeqNumber, flags: Flags) -> Segment {
        let value = now.as_millis() as u32;
        let window = (self.window >> SCALE).min(65_535) as u16;
        Segment {
            seq,
            ack: self.got,
            flags,
            window,
            options: Options {
                timestamps: self.echo.map(|echo| Timestamps { value, echo }),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    /// Its SYN, or its SYN-ACK.
    pub(super) fn syn(&self, now: Instant, mss: u16, answers: bool) -> Segment {
        let flags = if answers { Flags::SYN | Flags::ACK } else { Flags::SYN };
        let mut segment = self.segment(now, self.iss, flags);
        let echo = self.echo.unwrap_or(0);
        segment.window = 65_535;
        segment.options.mss = Some(mss);
        segment.options.window_scale = Some(SCALE);
        segment.options.sack_permitted = true;
        segment.options.timestamps = Some(Timestamps { value: now.as_millis() as u32, echo });
        segment
    }

    /// Bytes of its stream at `seq`: what the victim expects.
    pub(super) fn data(&self, now: Instant, seq: SeqNumber, len: u32) -> Segment {
        let mut segment = self.segment(now, seq, Flags::ACK);
        segment.payload = self.bytes(seq, len);
        segment
    }

    fn bytes(&self, seq: SeqNumber, len: u32) -> Payload {
        let first = self.iss + 1;
        let before = if seq.before(first) { first.bytes_since(seq).min(len) } else { 0 };
        let at = u64::from((seq + before).bytes_since(first));
        let mut payload = Payload::from(Bytes::from(vec![0; before as usize]));
        payload.push(page::slice(at, (len - before) as usize));
        payload
    }

    /// Bytes of its stream that it has sent.
    pub(super) fn sent(&self) -> u32 {
        self.nxt.bytes_since(self.iss + 1)
    }

    /// The next segment of a stream of `total` bytes, if the victim's window has room.
    pub(super) fn next(&mut self, now: Instant, total: u32) -> Option<Segment> {
        let flight = self.nxt.bytes_since(self.una);
        let len = total.saturating_sub(self.sent()).min(SEGMENT);
        if self.phase != Phase::Open || self.fin_sent || len == 0 || flight + len > self.room {
            return None;
        }
        let segment = self.data(now, self.nxt, len);
        self.nxt += len;
        Some(segment)
    }

    /// The next single byte behind a hole, from the start again at the edge of the window.
    pub(super) fn next_hole(&mut self, now: Instant) -> Segment {
        let offset = 1 + 2 * self.holes;
        let offset = if offset < self.room { offset } else { 1 };
        self.holes = offset / 2 + 1;
        self.data(now, self.nxt + offset, 1)
    }

    /// Once more what is not acknowledged: one segment of it.
    pub(super) fn again(&self, now: Instant) -> Option<Segment> {
        let flight = self.nxt.bytes_since(self.una);
        (self.phase == Phase::Open && flight > 0 && !self.fin_sent)
            .then(|| self.data(now, self.una, flight.min(SEGMENT)))
    }

    /// Takes note of what the victim says. Whether anything came that wants an ACK.
    pub(super) fn hear(&mut self, segment: &Segment) -> bool {
        if let Some(timestamps) = segment.options.timestamps {
            self.echo = Some(timestamps.value);
        }
        if segment.flags.contains(Flags::RST) {
            self.phase = Phase::Silent;
            return false;
        }
        let shift = if segment.flags.contains(Flags::SYN) { 0 } else { self.scale };
        self.room = u32::from(segment.window) << shift;
        if segment.flags.contains(Flags::ACK) {
            let is_news = segment.ack.after(self.una) && segment.ack.at_or_before(self.nxt);
            self.una = if is_news { segment.ack } else { self.una };
        }
        if segment.flags.contains(Flags::SYN) {
            let is_repeated = self.phase != Phase::Opening;
            self.scale = segment.options.window_scale.unwrap_or(0);
            if segment.options.timestamps.is_none() {
                self.echo = None;
            }
            if !is_repeated {
                self.got = segment.seq + 1;
                self.high = self.got;
            }
            return true;
        }
        self.take(segment)
    }

    /// Data and FIN of the victim.
    fn take(&mut self, segment: &Segment) -> bool {
        if segment.seq_len() == 0 {
            return false;
        }
        self.has_heard = true;
        self.high = self.high.later(segment.end_seq());
        if segment.seq.at_or_before(self.got) && segment.end_seq().after(self.got) {
            self.got = segment.end_seq();
            self.has_fin |= segment.flags.contains(Flags::FIN);
            self.held.retain(|block| block.right.after(segment.end_seq()));
            if let Some(at) = self.held.iter().position(|held| held.left.at_or_before(self.got)) {
                self.got = self.held.remove(at).right;
            }
        } else if segment.seq.after(self.got) {
            let block = SackBlock { left: segment.seq, right: segment.end_seq() };
            let adjacent = self.held.iter().position(|held| held.right == block.left);
            match adjacent {
                Some(at) => self.held[at].right = block.right,
                None if self.held.len() < 4 => self.held.push(block),
                None => {}
            }
        }
        true
    }
}
