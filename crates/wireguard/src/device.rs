//! The UDP socket of an interface as a device of the stack.
//!
//! One queue pair, whose descriptor tells of the socket. A frame, up to 59 KB with GSO, becomes up
//! to 44 sealed datagrams in one buffer, which leave by one `sendmsg` with `UDP_SEGMENT`. One
//! `recvmsg` with `UDP_GRO` brings up to 64. A frame is complete when the host's driver has freed
//! its datagrams (`credits`), so small queues and byte queue limits see the host's queue and no
//! other.
//!
//! The engine is locked to reserve counters and to take what was opened, once per frame and twice
//! per batch. Sealing, opening and calls of the system happen without its lock. The exchange of
//! keys of a handshake happens with it: for one at a time, and those who wait come in between.

mod black_hole;
mod credits;
mod handle;
mod merge;
mod monitor;
mod path;
mod receive;
mod sealers;
mod shared;
mod socket;
mod suspends;
mod toll;
mod transmit;
mod unreachable;
mod waiting;

pub use handle::WireguardHandle;

#[cfg(test)]
#[path = "../../cli/tests/common/namespace.rs"]
mod namespace;

use crate::config::WireguardConfig;
use crate::error::Error;
use crate::protocol::{OVERHEAD, PADDING};
use monitor::Monitor;
use neap_stack::device::{Capabilities, Completion, Device, Medium, QueuePair};
use receive::Receiver;
use shared::Shared;
use socket::{MOST_BYTES, MOST_SEGMENTS};
use std::sync::Arc;
use transmit::Sender;

/// Headers of IPv6 and TCP with all its options, in bytes. Those of UDP are shorter.
const HEADERS_MAX: usize = 40 + 60;

/// An open interface, whose UDP socket is bound.
#[derive(Debug)]
pub struct Wireguard {
    shared: Arc<Shared>,
    sealers: usize,
}

impl Wireguard {
    /// Binds the UDP socket, without any privilege but those that the port and the mark need. Peers
    /// with a persistent keepalive are greeted when the device runs.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Mark`], [`Error::OutOfRange`], [`Error::BadPeer`],
    /// [`Error::DuplicatePeer`], [`Error::System`].
    pub fn open(config: &WireguardConfig) -> Result<Self, Error> {
        let shared = Arc::new(Shared::open(config)?);
        Ok(Self { shared, sealers: config.sealers })
    }

    /// Returns a handle, for as many threads as want one.
    pub fn handle(&self) -> WireguardHandle {
        WireguardHandle::new(self.shared.clone())
    }

    /// Makes a device of it, for a stack, with the MTU that the paths to the peers leave now.
    pub fn into_device(self) -> Device {
        let Self { shared, sealers } = self;
        let pair = QueuePair {
            tx: Box::new(Sender::new(shared.clone(), sealers)),
            rx: Box::new(Receiver::new(shared.clone())),
            bulk: None,
            descriptor: Some(shared.socket.descriptor().clone()),
        };
        Device {
            name: "wg".to_owned(),
            capabilities: capabilities(shared.path.mtu(), shared.path.largest()),
            queues: vec![pair],
            steering: None,
            monitor: Some(Box::new(Monitor::new(shared))),
        }
    }
}

/// What a device with this MTU can do, which may become any up to `largest` bytes. The largest
/// super-frame fits one call at each of them: all its datagrams but the first repeat the headers,
/// and all have overhead and padding.
fn capabilities(mtu: u16, largest: u16) -> Capabilities {
    let sealing = OVERHEAD + PADDING - 1;
    let room = MOST_BYTES.saturating_sub(sealing + usize::from(largest));
    let segments = 1 + room / (HEADERS_MAX + sealing);
    Capabilities {
        gso_max_size: largest.into(),
        gso_max_segs: MOST_SEGMENTS.min(segments) as u32,
        gso_udp: true,
        checksum_tx: true,
        checksum_rx: true,
        ..Capabilities::new(Medium::Ip, mtu, Completion::OnWire)
    }
}

/// Gives up the rights of this thread, of which large buffers and marks need one.
#[cfg(test)]
fn give_up_rights() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, none).expect("rights can be given up");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::sealed_len;

    /// Bytes of the datagrams of the largest super-frame with segments of so many bytes.
    fn most_bytes(limits: &Capabilities, segment: usize, headers: usize) -> usize {
        let payload = (limits.gso_max_size as usize - headers)
            .min(limits.gso_max_segs as usize * segment)
            .max(segment);
        let (full, rest) = (payload / segment, payload % segment);
        let last = if rest > 0 { sealed_len(headers + rest) } else { 0 };
        full * sealed_len(headers + segment) + last
    }

    #[test]
    fn a_full_super_frame_can_be_sent_after_the_mtu_has_changed() {
        for most in [576, 1280, 1408, 1420, 9000, 59_000, 59_001, 65_000] {
            let limits = capabilities(most, path::Path::new(most, None).largest());
            assert!(limits.gso_max_size >= most.into(), "a packet of the MTU passes");
            // Packets of TCP are as long as the MTU, and datagrams of any length.
            let tcp = (576..=most).flat_map(|mtu| [40, 52, 72, 100].map(|h| (mtu, h)));
            let udp = (29..=most).flat_map(|len| [28, 48].map(|h| (len.max(h + 1), h)));
            for (len, headers) in tcp.chain(udp) {
                let bytes = most_bytes(&limits, usize::from(len - headers), headers.into());
                assert!(bytes <= MOST_BYTES, "{bytes} with {len} of {most}");
            }
        }
        let limits = capabilities(1420, path::Path::new(1420, None).largest());
        assert!(most_bytes(&limits, 1420 - 52, 52) >= 62_000, "a call is well used");
    }
}
