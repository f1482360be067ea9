//! A network namespace per test, and packets built by hand.

use bytes::Bytes;
use neap_stack::device::{Received, RxQueue};
use neap_stack::frame::{Frame, Gso, GsoKind, Headers, PartialChecksum};
use neap_tcp::segment::Payload;
use neap_tcp::time::Instant;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant as Clock};

/// The longest that anything may take here: far above what it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `test` in a thread with a network namespace of its own, which ends with the thread. Where
/// that is not possible it says `SKIP: reason` on stderr.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(|| {
        // SAFETY: a network namespace is the thread's own affair; no file or memory is unshared.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } == -1 {
            return Some(format!("no network namespace: {}", std::io::Error::last_os_error()));
        }
        for program in ["ip", "tc"] {
            if Command::new(program).arg("-V").output().is_err() {
                return Some(format!("the program {program} (iproute2) is missing"));
            }
        }
        // Router solicitations and the like would come between.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/autoconf", "0");
        test();
        None
    })
    .join();
    match outcome {
        Ok(None) => {}
        Ok(Some(reason)) => skip(&reason),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// Runs a test of this program again in a process of its own, with a variable that tells it so. It
/// must pass. Why it skips is said here too.
pub(crate) fn run_again(name: &str, variable: &str) {
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    let output = again.args([name, "--exact", "--nocapture"]).env(variable, "1").output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !output.stdout.is_empty(), "{said}");
    said.lines().filter_map(|line| line.strip_prefix("SKIP: ")).for_each(skip);
}

/// Runs a command line; it must succeed.
pub(crate) fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().expect("a program")).args(words).output().expect(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Adds 16-bit words to a sum in one's complement.
pub(crate) fn sum(mut total: u32, bytes: &[u8]) -> u32 {
    for pair in bytes.chunks(2) {
        total += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total
}

pub(crate) fn frame(headers: &[u8], payload: Payload) -> Frame {
    let mut room = Headers::default();
    room.prepend(headers.len()).copy_from_slice(headers);
    Frame::new(room, payload)
}

pub(crate) fn ipv4(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, len: usize) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(20 + len as u16).to_be_bytes());
    header[6] = 0x40;
    header[8] = 64;
    header[9] = protocol;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let checksum = !(sum(0, &header) as u16);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

pub(crate) fn pseudo_header(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, len: usize) -> u32 {
    let addresses = sum(sum(0, &from.octets()), &to.octets());
    sum(addresses, &[0, protocol, (len >> 8) as u8, len as u8])
}

/// One TCP segment or super-segment, its checksum left to the device.
pub(crate) struct Tcp {
    pub(crate) from: (Ipv4Addr, u16),
    pub(crate) to: (Ipv4Addr, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
}

impl Tcp {
    pub(crate) fn frame(&self, options: &[u8], payload: Payload, mss: u16) -> Frame {
        let header_len = 20 + options.len();
        let len = header_len + payload.len() as usize;
        let mut tcp = vec![0; 20];
        tcp[0..2].copy_from_slice(&self.from.1.to_be_bytes());
        tcp[2..4].copy_from_slice(&self.to.1.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        tcp[12] = (header_len as u8 / 4) << 4;
        tcp[13] = self.flags;
        tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        let partial = pseudo_header(6, self.from.0, self.to.0, len) as u16;
        tcp[16..18].copy_from_slice(&partial.to_be_bytes());
        tcp.extend_from_slice(options);
        let headers = [&ipv4(6, self.from.0, self.to.0, len)[..], &tcp].concat();
        let is_super = payload.len() > u32::from(mss);
        let mut frame = frame(&headers, payload);
        frame.gso = is_super.then_some(Gso { size: mss, kind: GsoKind::Tcp4 });
        frame.checksum = Some(PartialChecksum { start: 20, offset: 16 });
        frame
    }
}

/// Puts an Ethernet header in front.
pub(crate) fn ethernet(mut frame: Frame, to: [u8; 6], from: [u8; 6]) -> Frame {
    let header = frame.headers.prepend(14);
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    header[12..].copy_from_slice(&[8, 0]);
    frame.link_len = 14;
    frame.checksum = frame.checksum.map(|c| PartialChecksum { start: c.start + 14, ..c });
    frame
}

/// `len` bytes that differ from place to place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// The bytes in chunks of this size.
pub(crate) fn chunks(bytes: &[u8], size: usize) -> Payload {
    let mut payload = Payload::new();
    for chunk in bytes.chunks(size) {
        payload.push(Bytes::copy_from_slice(chunk));
    }
    payload
}

/// Waits for a packet that `wanted` accepts.
pub(crate) fn receive(rx: &mut dyn RxQueue, wanted: impl Fn(&Received) -> bool) -> Received {
    let start = Clock::now();
    while start.elapsed() < PATIENCE {
        match rx.receive(Instant::ZERO) {
            Some(packet) if wanted(&packet) => return packet,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("the packet did not come");
}
