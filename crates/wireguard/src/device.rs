//! The UDP socket of an interface as a device of the stack.
//!
//! One queue pair, whose descriptor tells of the socket. A frame, up to 64 KB with GSO, becomes up
//! to 64 sealed datagrams in one buffer, which leave by one `sendmsg` with `UDP_SEGMENT`. One
//! `recvmsg` with `UDP_GRO` brings as many. A frame is complete when the host's driver has freed
//! its datagrams (`credits`), so small queues and byte queue limits see the host's queue and no
//! other.
//!
//! The engine is locked to reserve counters and to take what was opened, once per frame and twice
//! per batch. Sealing, opening and calls of the system happen without its lock.

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
mod transmit;

pub use handle::WireguardHandle;

use crate::config::WireguardConfig;
use crate::error::Error;
use crate::protocol::sealed_len;
use monitor::Monitor;
use neap_stack::device::{Capabilities, Completion, Device, Medium, QueuePair};
use receive::Receiver;
use shared::Shared;
use socket::{MOST_BYTES, MOST_SEGMENTS};
use std::sync::Arc;
use transmit::Sender;

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
            capabilities: capabilities(shared.path.mtu()),
            queues: vec![pair],
            steering: None,
            monitor: Some(Box::new(Monitor::new(shared))),
        }
    }
}

fn capabilities(mtu: u16) -> Capabilities {
    let segments = MOST_SEGMENTS.min(MOST_BYTES / sealed_len(mtu.into()));
    Capabilities {
        gso_max_size: u32::from(u16::MAX),
        gso_max_segs: segments as u32,
        gso_udp: false,
        checksum_tx: true,
        checksum_rx: true,
        ..Capabilities::new(Medium::Ip, mtu, Completion::OnWire)
    }
}
