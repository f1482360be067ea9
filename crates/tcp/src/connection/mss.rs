//! Sizes of segments and buffers, from the path, the peer, the options and the window.

use super::Connection;
use crate::sender::scoreboard::MAX_SEGMENTS;
use crate::state::State;

/// Largest IP packet.
const LARGEST_PACKET: u32 = 65_535;
/// Largest options of a TCP header.
const MAX_OPTIONS: u32 = 40;
/// `TCP_MSS_DEFAULT`: a largest window up to this is used whole.
const DEFAULT_MSS: u32 = 536;

impl Connection {
    /// Recomputes the payload of a full segment from path, peer and options.
    pub(super) fn refresh_mss(&mut self) {
        let header = self.usual_header();
        let mss = self.half_window(self.mss_for(header), 68 - header);
        self.sender.set_mss(mss);
    }

    /// `bytes`, but no more than half of the largest window that the peer had, so that it need not
    /// wait for a window that never opens so far (`tcp_bound_to_half_wnd`); at least `least`.
    fn half_window(&self, bytes: u32, least: u32) -> u32 {
        let window = self.sender.max_wnd();
        let half = if window > DEFAULT_MSS { window / 2 } else { window };
        if half == 0 { bytes } else { bytes.min(half.max(least)) }
    }

    /// Bytes of payload per segment that leaves now (`tcp_current_mss`): those that windows and
    /// rates are counted in, less what its options take beyond the usual ones.
    pub(super) fn current_mss(&self, header: u32) -> u32 {
        let more = header.saturating_sub(self.usual_header());
        let counted = self.sender.mss().saturating_sub(more);
        self.mss_for(header).min(counted.max(8))
    }

    /// Bytes of the TCP header of most data segments (`tp->tcp_header_len`). Before the peer has
    /// answered, those of what the SYN offers.
    pub(super) fn usual_header(&self) -> u32 {
        let is_offered = || self.state == State::SynSent && self.config.tcp_timestamps;
        20 + if self.opening.timestamps || is_offered() { 12 } else { 0 }
    }

    /// Bytes of payload per segment, when TCP header and options take `header` bytes. The limit
    /// that the handshake agreed on counts the options as payload (RFC 6691).
    /// Where the MTU is as large as a packet can be, room stays for options that a retransmission
    /// may have more.
    pub(super) fn mss_for(&self, header: u32) -> u32 {
        let by_path = self
            .path
            .mtu
            .min(LARGEST_PACKET - MAX_OPTIONS)
            .saturating_sub(self.path.ip_header + header);
        let by_limit = (u32::from(self.opening.mss_clamp) + 20).saturating_sub(header);
        by_path.min(by_limit).max(8)
    }

    /// Returns the payload bytes at which a buffer of the write queue is full
    /// (`tcp_xmit_size_goal`).
    pub fn size_goal(&self) -> u32 {
        let mss = self.sender.mss().max(1);
        if self.gso.max_segs <= 1 {
            return mss;
        }
        let bytes = self.half_window(self.gso.max_size.saturating_sub(self.most_headers()), mss);
        (bytes / mss).clamp(1, self.gso.max_segs) * mss
    }

    /// Payload bytes of the largest frame that the way down takes, whatever the peer's window is.
    /// Before anything was sent those of a full segment.
    pub(super) fn largest_frame(&self) -> u32 {
        let mss = self.sender.mss().max(1);
        let bytes = self.gso.max_size.saturating_sub(self.most_headers());
        (bytes / mss).clamp(1, self.gso.max_segs.clamp(1, MAX_SEGMENTS)) * mss
    }

    /// Bytes of the longest headers of IP and TCP.
    fn most_headers(&self) -> u32 {
        self.path.ip_header + 60
    }
}
