//! Datagrams of the kernel that come while a device is opened.

use neap_stack::device::{QueuePair, Received};
use neap_tcp::time::Instant;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Sends datagrams with the numbers from 0 on to `to` until it is dropped.
pub(crate) struct Flood {
    is_over: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Flood {
    pub(crate) fn begin(to: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        let is_over = Arc::new(AtomicBool::new(false));
        let end = is_over.clone();
        let (tell, told) = mpsc::channel();
        let send = move |number: u32| {
            // Each from a flow of its own, so that they come to all queues.
            let port = 1000 + number as u16 % 60_000;
            // A full queue of the host loses some.
            let _ = socket.send_to(&number.to_be_bytes(), (to, port));
            if number == 0 {
                tell.send(()).expect("it is waited for");
            }
        };
        let sender = std::thread::spawn(move || {
            (0..).take_while(|_| !end.load(Ordering::Relaxed)).for_each(send);
        });
        told.recv().expect("it runs");
        Self { is_over, sender: Some(sender) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.sender.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The numbers of the datagrams to `to` that have arrived.
pub(crate) fn flooded(queues: &mut [QueuePair], to: Ipv4Addr) -> Vec<u32> {
    let packets = queues.iter_mut().flat_map(|queue| {
        core::iter::from_fn(|| queue.rx.receive(Instant::ZERO)).collect::<Vec<_>>()
    });
    let number = |packet: Received| match packet.data.get(42..46)?.first_chunk() {
        Some(number) if packet.data[30..34] == to.octets() => Some(u32::from_be_bytes(*number)),
        _ => None,
    };
    packets.filter_map(number).collect()
}
