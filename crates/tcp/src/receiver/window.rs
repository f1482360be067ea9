//! The advertised window and the size of the receive buffer, as Linux 6.18 sets them.

use super::ack::AckPolicy;
use super::queue::OVERHEAD;
use crate::config::Config;
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos};

/// Most to which memory that runs over lets a buffer grow, bytes. A peer makes it run over by tiny
/// segments, without anybody having read.
const MOST_BY_OVERRUN: u32 = 6 << 20;
/// `TCP_RMEM_TO_WIN_SCALE`: the scaling ratio counts in 256ths.
const RATIO_SHIFT: u32 = 8;
/// Window per buffer before a segment was seen: one half.
const RATIO_DEFAULT: u8 = 128;
/// Largest shift count (RFC 7323 section 2.3).
const MAX_WSCALE: u8 = 14;
const MAX_UNSCALED: u32 = 65_535;
/// Segments of the peer's initial window (`TCP_INIT_CWND`).
const INIT_CWND: u32 = 10;
/// The smallest receive buffer, bytes (`SOCK_MIN_RCVBUF`).
const MIN_RCVBUF: u32 = 2_304;
/// The round trip of a flow most of whose window is on its path, however much waits in the device.
const HELD_RTT: Nanos = Nanos::from_millis(50);
/// No window is so large (RFC 7323 section 2.3).
const NOT_HELD: u32 = u32::MAX;
/// A flow with a shorter round trip loses nothing by a share of what the host takes in this time.
const SHARED_RTT: Nanos = Nanos::from_millis(2);

/// How long a round trip is without what waits in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Path {
    /// Less than [`SHARED_RTT`].
    Short,
    /// Less than [`HELD_RTT`].
    Middle,
    /// All others, and what was not measured.
    Long,
}

impl Path {
    fn of(rtt: Nanos) -> Self {
        match rtt {
            rtt if rtt < SHARED_RTT => Self::Short,
            rtt if rtt < HELD_RTT => Self::Middle,
            _ => Self::Long,
        }
    }
}

/// Window that one segment advertises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedWindow {
    /// Window field of the header, scaled down.
    pub field: u16,
    /// Window in bytes, as the peer will understand the field.
    pub wnd: u32,
}

/// Largest window that a buffer with `space` free bytes of memory allows.
fn win_from_space(space: u32, ratio: u8) -> u32 {
    ((u64::from(space) * u64::from(ratio)) >> RATIO_SHIFT) as u32
}

/// Window and buffer. All operations are O(1).
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// Advertised window, counted from `wup`.
    wnd: u32,
    /// Next expected byte when the window was last advertised.
    wup: SeqNumber,
    rcvbuf: u32,
    clamp: u32,
    /// What may be offered at the most now; grows as segments prove to be worth their memory.
    ssthresh: u32,
    advmss: u32,
    /// Bytes that the application took in the last round trip (`rcvq_space`), and that measurement.
    space: u32,
    space_seq: SeqNumber,
    space_time: Instant,
    /// Eight times the round-trip time as the receiver sees it, microseconds; 0 unknown.
    rtt8_us: u32,
    rtt_seq: SeqNumber,
    /// When the byte before `rtt_seq` was first allowed; `FAR_FUTURE` before the first data.
    rtt_time: Instant,
    last_echo: u32,
    /// Bytes by which rounding moved the edge since the window last opened.
    rounded: u32,
    wscale: u8,
    ratio: u8,
    locked: bool,
    /// Bytes that the peer may send at once while data waits below the connection; otherwise
    /// [`NOT_HELD`].
    held: u32,
    /// The path by the shortest round trip that the sender of this end has measured. The measure of
    /// the receiver includes the wait in the device. This one does not, if that wait began later
    /// than the connection.
    path: Path,
}

/// What is queued, as the window needs to know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    /// Next expected byte.
    pub(super) nxt: SeqNumber,
    /// Bytes in order and unread.
    pub(super) unread: u32,
    /// Bytes from `nxt` to the end of what arrived out of order.
    pub(super) beyond: u32,
}

/// What the window starts with.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstWindow {
    pub(super) nxt: SeqNumber,
    pub(super) wnd: u32,
    pub(super) wscale: u8,
    pub(super) advmss: u32,
    pub(super) rcvbuf: Option<u32>,
}

impl ReceiveWindow {
    /// `tcp_init_buffer_space`.
    pub(super) fn new(now: Instant, config: &Config, start: &FirstWindow) -> Self {
        let wscale = start.wscale.min(MAX_WSCALE);
        let advmss = start.advmss.max(1);
        let rcvbuf = start.rcvbuf.unwrap_or(config.tcp_rmem.default).max(MIN_RCVBUF);
        let full = win_from_space(rcvbuf, RATIO_DEFAULT);
        let representable = MAX_UNSCALED << wscale;
        let mut clamp = representable.min(full);
        if clamp > 2 * advmss && clamp + advmss > full {
            clamp = (2 * advmss).max(full.saturating_sub(advmss));
        }
        let wnd = start.wnd.min(representable);
        let whole = if full > advmss { full - full % advmss } else { full };
        let ssthresh = whole.min(clamp);
        Self {
            wnd,
            wup: start.nxt,
            rcvbuf,
            clamp,
            ssthresh,
            advmss,
            space: ssthresh.min(wnd).min(INIT_CWND.saturating_mul(advmss)).max(1),
            space_seq: start.nxt,
            space_time: now,
            rtt8_us: 0,
            rtt_seq: start.nxt,
            rtt_time: Instant::FAR_FUTURE,
            last_echo: 0,
            rounded: 0,
            wscale,
            ratio: RATIO_DEFAULT,
            locked: start.rcvbuf.is_some(),
            held: NOT_HELD,
            path: Path::Long,
        }
    }

    /// Says whether data waits below the connection for want of a processor, and how many bytes the
    /// peer may then send at once. A larger buffer or window would only let more wait there.
    /// `path` is the shortest round trip that the sender of this end has measured, or the largest
    /// time if it has measured none.
    pub(super) fn hold(&mut self, held: Option<u32>, path: Nanos) {
        self.held = held.map_or(NOT_HELD, |share| share.min(NOT_HELD - 1));
        self.path = Path::of(path);
    }

    /// The path by the shorter one of both ends' measures; a long one if nothing was measured.
    fn path(&self) -> Path {
        let own = if self.rtt8_us == 0 { Path::Long } else { Path::of(self.rtt()) };
        own.min(self.path)
    }

    /// What is offered at the most while data waits below the connection.
    fn most_while_held(&self) -> u32 {
        if self.held == NOT_HELD || self.path() != Path::Short {
            return u32::MAX;
        }
        self.held.max(2 * self.advmss)
    }

    pub(super) fn wnd(&self) -> u32 {
        self.wnd
    }

    pub(super) fn wscale(&self) -> u8 {
        self.wscale
    }

    pub(super) fn wup(&self) -> SeqNumber {
        self.wup
    }

    /// The right edge: no byte at or beyond it was allowed.
    pub(super) fn edge(&self) -> SeqNumber {
        self.wup + self.wnd
    }

    /// What is left of the advertised window (`tcp_receive_window`).
    pub(super) fn remaining(&self, nxt: SeqNumber) -> u32 {
        let edge = self.edge();
        if edge.after(nxt) { edge.bytes_since(nxt) } else { 0 }
    }

    pub(super) fn rcvbuf(&self) -> u32 {
        self.rcvbuf
    }

    pub(super) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    pub(super) fn clamp(&self) -> u32 {
        self.clamp
    }

    pub(super) fn advmss(&self) -> u32 {
        self.advmss
    }

    pub(super) fn rcv_space(&self) -> u32 {
        self.space
    }

    pub(super) fn rtt(&self) -> Nanos {
        Nanos::from_micros(u64::from(self.rtt8_us / 8))
    }

    /// Whether memory held is within the buffer (`tcp_can_ingest`).
    pub(super) fn fits(&self, memory: u32) -> bool {
        memory <= self.rcvbuf
    }

    fn free(&self, memory: u32) -> u32 {
        win_from_space(self.rcvbuf.saturating_sub(memory), self.ratio)
    }

    fn set_clamp(&mut self, clamp: u32) {
        let clamp = clamp.max(MIN_RCVBUF / 2).min(MAX_UNSCALED << self.wscale);
        if clamp < self.clamp {
            self.ssthresh = self.ssthresh.min(clamp);
        } else {
            self.ssthresh = self.ssthresh.max(self.wnd.min(clamp));
        }
        self.clamp = clamp;
    }

    /// `SO_RCVBUF`: fixes the buffer at `bytes` of memory (already doubled and bounded).
    pub(super) fn lock(&mut self, bytes: u32) {
        self.rcvbuf = bytes.max(MIN_RCVBUF);
        self.locked = true;
        self.set_clamp(win_from_space(self.rcvbuf, self.ratio));
    }

    /// Lets `bytes` wait unread, unless the application set the size (`tcp_set_rcvlowat`).
    pub(super) fn make_room_for(&mut self, bytes: u32) {
        let space = (u64::from(bytes) << RATIO_SHIFT).div_ceil(u64::from(self.ratio.max(1)));
        let space = u32::try_from(space).unwrap_or(u32::MAX);
        if !self.locked && space > self.rcvbuf {
            self.rcvbuf = space;
            self.clamp = self.clamp.max(bytes.min(MAX_UNSCALED << self.wscale));
        }
    }

    /// The peer's segment size changed: how much of the buffer's memory is window follows from a
    /// segment of `len` bytes (in `tcp_measure_rcv_mss`).
    pub(super) fn rescale(&mut self, len: u32) {
        let ratio = (u64::from(len) << RATIO_SHIFT) / (u64::from(len) + u64::from(OVERHEAD));
        let ratio = ratio.clamp(1, 255) as u8;
        if ratio != self.ratio {
            self.ratio = ratio;
            self.set_clamp(win_from_space(self.rcvbuf, ratio));
            self.space = self.space.min(self.clamp);
        }
    }

    /// A segment of `len` bytes arrived: more may be offered if segments of this size leave room
    /// (`tcp_grow_window`). Returns whether it grew.
    pub(super) fn grow(&mut self, config: &Config, memory: u32, len: u32, rcv_mss: u32) -> bool {
        let room = self.clamp.min(self.free(memory)).saturating_sub(self.ssthresh);
        if room == 0 {
            return false;
        }
        let cost = win_from_space(len.saturating_add(OVERHEAD), self.ratio);
        let increase = if cost <= len {
            2 * self.advmss
        } else {
            self.slow_growth(config, len, cost, rcv_mss)
        };
        if increase == 0 {
            return false;
        }
        self.ssthresh += room.min(increase.max(len.saturating_mul(2)));
        true
    }

    /// `__tcp_grow_window`: segments that cost more than they hold still let a small window grow.
    fn slow_growth(&self, config: &Config, len: u32, cost: u32, rcv_mss: u32) -> u32 {
        let mut cost = cost / 2;
        let mut window = win_from_space(config.tcp_rmem.max, self.ratio) / 2;
        while self.ssthresh <= window && window > 0 {
            if cost <= len {
                return 2 * rcv_mss;
            }
            cost /= 2;
            window /= 2;
        }
        0
    }

    /// Memory ran over the buffer: lets the buffer grow to what is held, or stops offering more
    /// (`tcp_clamp_window`). `may_grow` says whether the host has memory for that.
    pub(super) fn on_overrun(&mut self, config: &Config, memory: u32, may_grow: bool) {
        let most = config.tcp_rmem.max.min(MOST_BY_OVERRUN);
        if self.rcvbuf < most && !self.locked && may_grow {
            self.rcvbuf = self.rcvbuf.max(memory.min(most));
        }
        if memory > self.rcvbuf {
            self.ssthresh = self.clamp.min(2 * self.advmss);
        }
    }

    /// The memory of the host is short: little is offered until segments let the window grow again
    /// (`tcp_adjust_rcv_ssthresh`).
    pub(super) fn hold_back(&mut self) {
        self.ssthresh = self.ssthresh.min(4 * self.advmss);
    }

    /// The window that the buffer justifies (`__tcp_select_window`); may be less than what was
    /// promised already.
    pub(super) fn select(&self, memory: u32, rcv_mss: u32) -> (u32, bool) {
        let allowed = win_from_space(self.rcvbuf, self.ratio);
        let full = self.clamp.min(allowed);
        let mss = rcv_mss.min(full).max(1);
        let mut free = self.free(memory);
        let unit = 1_u32 << self.wscale;
        let mut tight = false;
        if free < full / 2 {
            tight = true;
            free -= free % unit;
            if free < allowed / 16 || free < mss {
                return (0, tight);
            }
        }
        free = free.min(self.ssthresh).min(self.most_while_held());
        if self.wscale > 0 {
            return (free.next_multiple_of(unit), tight);
        }
        let keep = self.wnd.saturating_add(mss) > free && self.wnd <= free;
        let window = if !keep {
            free - free % mss
        } else if mss == full && free > self.wnd.saturating_add(full / 2) {
            free
        } else {
            self.wnd
        };
        (window, tight)
    }

    /// The window of a segment that acknowledges `nxt` (`tcp_select_window`): never takes back
    /// what was promised.
    ///
    /// What is promised is rounded up to the scale. A peer that sends byte by byte could move the
    /// edge by that, one byte with each ACK, so that the window never closes: after an eighth of
    /// the buffer was given away so, it is rounded down. The edge up to which data is taken stays.
    pub(super) fn next(&self, nxt: SeqNumber, selected: u32) -> AdvertisedWindow {
        let unit = 1_u32 << self.wscale;
        let mut wnd = self.remaining(nxt);
        if self.rounded <= self.rcvbuf / 8 + unit {
            wnd = wnd.next_multiple_of(unit);
        }
        let wnd = selected.max(wnd).min(MAX_UNSCALED << self.wscale);
        let field = (wnd >> self.wscale) as u16;
        AdvertisedWindow { field, wnd: u32::from(field) << self.wscale }
    }

    /// `window` went out with an acknowledgment of `nxt`. The right edge never moves left.
    pub(super) fn on_advertised(&mut self, nxt: SeqNumber, window: AdvertisedWindow) {
        let remaining = self.remaining(nxt);
        let growth = window.wnd.saturating_sub(remaining);
        let opened = growth >= 1 << self.wscale;
        self.rounded = if opened { 0 } else { self.rounded.saturating_add(growth) };
        self.wnd = remaining + growth;
        self.wup = nxt;
    }

    fn sample_rtt(&mut self, micros: u32, by_window: bool, drained: bool) {
        let sample8 = micros.max(1).saturating_mul(8);
        if self.rtt8_us == 0 || sample8 < self.rtt8_us {
            self.rtt8_us = sample8;
        } else if !by_window && drained {
            let old = self.rtt8_us;
            self.rtt8_us = (old - old / 8).saturating_add(micros);
        }
    }

    /// Measures the round trip by the time that a window of data takes (`tcp_rcv_rtt_measure`).
    pub(super) fn measure_by_window(&mut self, now: Instant, nxt: SeqNumber) {
        if self.rtt_time != Instant::FAR_FUTURE {
            if nxt.before(self.rtt_seq) {
                return;
            }
            let micros = u32::try_from(now.since(self.rtt_time).as_micros()).unwrap_or(u32::MAX);
            self.sample_rtt(micros, true, false);
        }
        self.rtt_seq = nxt + self.wnd;
        self.rtt_time = now;
    }

    /// Measures the round trip by an echoed timestamp of a full segment, once per echo
    /// (`tcp_rcv_rtt_measure_ts`). Ticks are milliseconds.
    pub(super) fn measure_by_echo(&mut self, tsval: u32, echo: u32, full: bool, drained: bool) {
        if echo == self.last_echo {
            return;
        }
        self.last_echo = echo;
        let ticks = tsval.wrapping_sub(echo);
        if full && ticks > 0 && ticks < i32::MAX as u32 / 1_000 {
            self.sample_rtt(ticks * 1_000, false, drained);
        }
    }

    /// The application took data: the buffer follows twice what it takes in a round trip, and
    /// doubles ahead of a sender in slow start (dynamic right-sizing, `tcp_rcv_space_adjust`).
    /// With `may_grow` off it is measured only.
    pub(super) fn adjust(&mut self, now: Instant, config: &Config, queued: Queued, may_grow: bool) {
        if self.rtt8_us == 0 {
            return;
        }
        let elapsed = now.since(self.space_time).as_micros();
        if elapsed < u64::from(self.rtt8_us / 8) {
            return;
        }
        let read_to = queued.nxt - queued.unread;
        let copied = read_to.bytes_since(self.space_seq).saturating_sub(queued.unread);
        let is_held = self.held != NOT_HELD && self.path() != Path::Long;
        if is_held || !may_grow {
            // Growth begins again with a doubling, as if half of it had been taken until then.
            self.space = self.space.max(copied / 2);
        } else if copied > self.space {
            self.grow_buffer(config, copied, queued.beyond);
        }
        self.space_seq = read_to;
        self.space_time = now;
    }

    /// Out-of-order data must not eat up the window (`tcp_data_queue_ofo`).
    pub(super) fn make_room_beyond(&mut self, config: &Config, beyond: u32) {
        self.grow_buffer(config, self.space, beyond);
    }

    /// `tcp_rcvbuf_grow`.
    fn grow_buffer(&mut self, config: &Config, space: u32, beyond: u32) {
        let old = self.space.max(1);
        self.space = space;
        if !config.tcp_moderate_rcvbuf || self.locked {
            return;
        }
        let window = u64::from(space) * 2;
        let growth = window * u64::from(space.saturating_sub(old)) / u64::from(old);
        let window = window + growth * 2 + u64::from(beyond);
        let buffer = (window << RATIO_SHIFT) / u64::from(self.ratio);
        let buffer = buffer.min(u64::from(config.tcp_rmem.max)) as u32;
        if buffer > self.rcvbuf {
            self.rcvbuf = buffer;
            self.clamp = win_from_space(buffer, self.ratio).min(MAX_UNSCALED << self.wscale);
        }
    }

    /// Whether a read opened the window so far that the peer must hear of it
    /// (second half of `tcp_cleanup_rbuf`).
    pub(super) fn wants_update(&self, nxt: SeqNumber, memory: u32, ack: &AckPolicy) -> bool {
        let now = self.remaining(nxt);
        if now > self.clamp / 2 {
            return false;
        }
        let (new, _) = self.select(memory, ack.rcv_mss());
        new > 0 && new >= now.saturating_mul(2)
    }
}
