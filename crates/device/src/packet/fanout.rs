//! Choice of the queue of a fan-out group that a packet comes to: a hash that the kernel and the
//! stack compute alike.
//!
//! The kernel runs a program of classic BPF on each packet, from its IP header on. The answer is
//! the place of the socket that gets the packet (`PACKET_FANOUT_CBPF`, `fanout_demux_bpf`). The
//! hash is the sum of the 32-bit words of addresses and ports, each multiplied by a random number,
//! and then mixed twice: the upper half is folded into the lower one, and the whole is multiplied
//! by a constant of MurmurHash3. The upper half of the result is scaled to the number of sockets. A
//! peer that does not know the random numbers cannot choose its ports so that all its flows come to
//! one queue.
//!
//! The sum alone would not do. The source port is the upper half of its word, so only the lower
//! half of the multiplier counts for it. Where that is small, the sums of neighbouring ports are
//! neighbours, and a range of ports would come to one queue.
//!
//! Ports count for TCP and UDP without fragmentation and, in IPv6, without extension headers. All
//! other packets of IP come to a queue by their addresses, and the rest to the first queue.

use crate::sys;
use core::net::{IpAddr, SocketAddr};
use libc::sock_filter;
use neap_stack::device::Steering;
use rustix::fd::OwnedFd;
use rustix::io::Result;
use std::hash::{BuildHasher, RandomState};

const UNIQUE_ID: i32 = libc::PACKET_FANOUT_FLAG_UNIQUEID as i32;
const BY_PROGRAM: i32 = libc::PACKET_FANOUT_CBPF as i32;
/// The group sees nothing that this host sends itself (Linux 6.2). The option of each socket ends
/// when it joins.
const IGNORE_OUTGOING: i32 = libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING as i32;

/// Words of an IPv6 source address, of a destination address, and the ports.
const WORDS: usize = 9;
/// Where the multiplier of the ports is.
const PORTS: usize = 8;
/// What a sum is multiplied by when it is mixed (`fmix32` of MurmurHash3).
const MIXERS: [u32; 2] = [0x85eb_ca6b, 0xc2b2_ae35];
/// Bits of the sum that are left out, and bits of what is left.
const HALF: u32 = 16;

const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
/// Flag and offset of an IPv4 fragment.
const FRAGMENT: u32 = 0x3fff;

/// The hash of flows, with random multipliers. A look takes a few multiplications.
#[derive(Debug)]
pub(super) struct FlowHash {
    multipliers: [u32; WORDS],
    queues: u32,
}

/// The words of an address; of IPv4 the first one only.
fn words(address: IpAddr) -> ([u32; 4], usize) {
    match address {
        IpAddr::V4(address) => ([address.to_bits(), 0, 0, 0], 1),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            ([96, 64, 32, 0].map(|shift| (bits >> shift) as u32), 4)
        }
    }
}

impl FlowHash {
    /// A hash of its own for a group of so many sockets.
    pub(super) fn new(queues: usize) -> Self {
        let random = RandomState::new();
        // An even multiplier would leave out the uppermost bit of its word.
        let multipliers = core::array::from_fn(|at| random.hash_one(at) as u32 | 1);
        Self { multipliers, queues: queues as u32 }
    }

    /// The answer of the program to a packet with these addresses and ports: the place of a socket.
    fn place(&self, source: SocketAddr, destination: SocketAddr) -> u32 {
        let (from, count) = words(source.ip());
        let (to, _) = words(destination.ip());
        let ports = u32::from(source.port()) << 16 | u32::from(destination.port());
        let addresses = from[..count].iter().chain(&to[..count]);
        let sum = addresses.zip(&self.multipliers).fold(0, |sum: u32, (word, multiplier)| {
            sum.wrapping_add(word.wrapping_mul(*multiplier))
        });
        let sum = sum.wrapping_add(ports.wrapping_mul(self.multipliers[PORTS]));
        let mix = |sum: u32, mixer: u32| (sum ^ (sum >> HALF)).wrapping_mul(mixer);
        let mixed = MIXERS.into_iter().fold(sum, mix);
        ((mixed >> HALF) * self.queues) >> HALF
    }

    /// A program for a socket that is not in its group yet: it receives nothing. Each of them would
    /// receive every packet.
    pub(super) fn nothing() -> [sock_filter; 1] {
        [op(libc::BPF_RET | libc::BPF_K, 0)]
    }

    /// The program. `M[0]` has the sum.
    fn program(&self) -> Vec<sock_filter> {
        let mut program = vec![
            op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0),
            op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 4),
        ];
        let (v4, v6) = (self.v4(), self.v6());
        program.push(jump(libc::BPF_JEQ, 4, 0, v4.len()));
        program.extend(v4);
        program.push(jump(libc::BPF_JEQ, 6, 0, v6.len()));
        program.extend(v6);
        program.push(op(libc::BPF_RET | libc::BPF_K, 0));
        program
    }

    /// The instructions for IPv4. They stand behind the test of the version.
    fn v4(&self) -> Vec<sock_filter> {
        let load_ports = [
            op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0),
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_IND, 0),
        ];
        // A fragment goes to where `sum` takes zero for the ports.
        let mut part = vec![
            op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 6),
            jump(libc::BPF_JSET, FRAGMENT, 5 + load_ports.len(), 0),
            op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 9),
        ];
        part.extend(self.sum(&load_ports, [12, 16].into_iter().zip(self.multipliers)));
        part
    }

    /// The instructions for IPv6, as those for IPv4.
    fn v6(&self) -> Vec<sock_filter> {
        let load_ports = [op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 40)];
        let mut part = vec![op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 6)];
        part.extend(self.sum(&load_ports, (8..40).step_by(4).zip(self.multipliers)));
        part
    }

    /// Adds up the ports, if the protocol in the accumulator has some, and the words of the
    /// addresses, each with its place and multiplier, mixes the sum, and returns the queue.
    fn sum(
        &self,
        load_ports: &[sock_filter],
        addresses: impl Iterator<Item = (u32, u32)>,
    ) -> Vec<sock_filter> {
        let multiply = |by| op(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, by);
        let store = op(libc::BPF_ST, 0);
        let mut part = vec![
            jump(libc::BPF_JEQ, TCP, 2, 0),
            jump(libc::BPF_JEQ, UDP, 1, 0),
            op(libc::BPF_JMP | libc::BPF_JA, load_ports.len() as u32 + 1),
        ];
        part.extend(load_ports);
        part.push(op(libc::BPF_JMP | libc::BPF_JA, 1));
        part.push(op(libc::BPF_LD | libc::BPF_IMM, 0));
        part.extend([multiply(self.multipliers[PORTS]), store]);
        for (place, multiplier) in addresses {
            part.extend([
                op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, place),
                multiply(multiplier),
                op(libc::BPF_LDX | libc::BPF_MEM, 0),
                op(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0),
                store,
            ]);
        }
        let upper_half = op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, HALF);
        for mixer in MIXERS {
            part.extend([
                store,
                upper_half,
                op(libc::BPF_LDX | libc::BPF_MEM, 0),
                op(libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X, 0),
                multiply(mixer),
            ]);
        }
        part.extend([upper_half, multiply(self.queues), upper_half]);
        part.push(op(libc::BPF_RET | libc::BPF_A, 0));
        part
    }

    /// Makes a group of the sockets, which must be bound. A socket gets the queue of its place.
    pub(super) fn join<'a>(&self, sockets: impl IntoIterator<Item = &'a OwnedFd>) -> Result<()> {
        let mut group = None;
        for socket in sockets {
            let value = match group {
                // An id that nobody else has.
                None => (BY_PROGRAM | IGNORE_OUTGOING | UNIQUE_ID) << 16,
                Some(group) => (BY_PROGRAM | IGNORE_OUTGOING) << 16 | group,
            };
            sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &value)?;
            if group.is_none() {
                sys::set_fanout_program(socket, &self.program())?;
                let id = sys::int_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT)?;
                group = Some(id & 0xffff);
            }
        }
        Ok(())
    }
}

impl Steering for FlowHash {
    fn queue_of(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        self.place(remote, local) as usize
    }
}

fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Jumps over `yes` or `no` instructions.
fn jump(test: u32, k: u32, yes: usize, no: usize) -> sock_filter {
    let code = (libc::BPF_JMP | test | libc::BPF_K) as u16;
    sock_filter { code, jt: yes as u8, jf: no as u8, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_spread_over_all_queues() {
        for (local, remote) in [("10.0.0.1:80", "10.0.0.2:1"), ("[fd00::1]:80", "[fd00::2]:1")] {
            let local: SocketAddr = local.parse().expect("an address");
            let mut remote: SocketAddr = remote.parse().expect("an address");
            let hash = FlowHash::new(8);
            let mut counts = [0; 8];
            // Ports of which one bit is always the same, as those that Linux chooses.
            for port in (32_768..60_000).step_by(2) {
                remote.set_port(port);
                counts[hash.queue_of(local, remote)] += 1;
            }
            assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
        }
    }

    #[test]
    fn neighbouring_ports_are_spread_whatever_the_random_numbers_are() {
        let local: SocketAddr = "10.0.0.1:80".parse().expect("an address");
        for step in [1u16, 2, 256] {
            let worst = (0..2000).map(|_| {
                let hash = FlowHash::new(2);
                let queue_of = |n| {
                    let remote = SocketAddr::from(([10, 0, 0, 2], 6000 + n * step));
                    hash.queue_of(local, remote)
                };
                let of_second: usize = (0..200u16).map(queue_of).sum();
                of_second.min(200 - of_second)
            });
            // A hundred on average, with a deviation of 7 for a hash without a pattern.
            assert!(worst.min() >= Some(50), "ports {step} apart");
        }
    }

    #[test]
    fn no_jump_is_too_far() {
        let program = FlowHash::new(2).program();
        for (at, op) in program.iter().enumerate() {
            if op.code & 7 == libc::BPF_JMP as u16 && op.code & 0xf0 != libc::BPF_JA as u16 {
                assert!(at + 1 + usize::from(op.jt.max(op.jf)) < program.len());
            }
        }
        // Jumps are counted in a byte.
        assert!(program.len() < 128);
    }
}
