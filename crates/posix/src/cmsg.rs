//! Control messages of datagrams (cmsg(3), ip(7), ipv6(7)): what the packet of a received one said
//! (`ip_cmsg_recv_offset`, `ip6_datagram_recv_ctl`), and what that of a sent one is to say
//! (`ip_cmsg_send`, `ip6_datagram_send_ctl`).

use crate::abi::*;
use crate::errno::Errno;
use crate::sockaddr::{self, Domain};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use neap_stack::interface::InterfaceId;
use neap_stack::socket::mapped;
use neap_stack::socket::udp::{ReceivedDatagram, SendDatagram};

/// The index of the loopback.
const LOOPBACK: u32 = 1;

bitflags::bitflags! {
    /// Control messages that a socket asks for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Asked: u16 {
        const PKTINFO = 1;
        const TTL = 1 << 1;
        const TOS = 1 << 2;
        const ORIGDSTADDR = 1 << 3;
        const V6_PKTINFO = 1 << 4;
        const V6_HOPLIMIT = 1 << 5;
        const V6_TCLASS = 1 << 6;
        const V6_ORIGDSTADDR = 1 << 7;
        const RXQ_OVFL = 1 << 8;
    }
}

impl Asked {
    /// What an option asks for.
    pub(crate) fn by(level: i32, name: i32) -> Option<Self> {
        Some(match (level, name) {
            (SOL_IP, IP_PKTINFO) => Self::PKTINFO,
            (SOL_IP, IP_RECVTTL) => Self::TTL,
            (SOL_IP, IP_RECVTOS) => Self::TOS,
            (SOL_IP, IP_RECVORIGDSTADDR) => Self::ORIGDSTADDR,
            (SOL_IPV6, IPV6_RECVPKTINFO) => Self::V6_PKTINFO,
            (SOL_IPV6, IPV6_RECVHOPLIMIT) => Self::V6_HOPLIMIT,
            (SOL_IPV6, IPV6_RECVTCLASS) => Self::V6_TCLASS,
            (SOL_IPV6, IPV6_RECVORIGDSTADDR) => Self::V6_ORIGDSTADDR,
            (SOL_SOCKET, SO_RXQ_OVFL) => Self::RXQ_OVFL,
            _ => return None,
        })
    }
}

/// The buffer for control messages of one call.
#[derive(Debug)]
pub(crate) struct Control<'a> {
    room: &'a mut [u8],
    used: usize,
    /// A message did not fit (`MSG_CTRUNC`).
    is_cut: bool,
}

impl<'a> Control<'a> {
    pub(crate) fn new(room: &'a mut [u8]) -> Self {
        Self { room, used: 0, is_cut: false }
    }

    /// Writes one message, as much as fits (`put_cmsg`).
    pub(crate) fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let (_, room) = self.room.split_at_mut(self.used);
        let whole = CMSG_HEADER_LEN + data.len();
        let len = whole.min(room.len());
        if len < CMSG_HEADER_LEN {
            self.is_cut = true;
            return;
        }
        room[..8].copy_from_slice(&len.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[16..len].copy_from_slice(&data[..len - CMSG_HEADER_LEN]);
        self.used += whole.next_multiple_of(8).min(room.len());
        self.is_cut |= len < whole;
    }

    /// Bytes that were written, and the flag of a message that did not fit.
    pub(crate) fn finish(self) -> (usize, i32) {
        (self.used, if self.is_cut { MSG_CTRUNC } else { 0 })
    }

    /// Writes what a socket asks for of a datagram. `spec_dst` is the own address that an answer
    /// comes from.
    pub(crate) fn put_datagram(
        &mut self,
        domain: Domain,
        asked: Asked,
        datagram: &ReceivedDatagram,
        spec_dst: IpAddr,
    ) {
        let &ReceivedDatagram { to, hop_limit, tos, interface, .. } = datagram;
        let index = interface.map_or(LOOPBACK, InterfaceId::index);
        if asked.contains(Asked::RXQ_OVFL) && datagram.drops > 0 {
            self.put(SOL_SOCKET, SO_RXQ_OVFL, &datagram.drops.to_ne_bytes());
        }
        if domain == Domain::V6 && asked.contains(Asked::V6_PKTINFO) {
            self.put(SOL_IPV6, IPV6_PKTINFO, &pktinfo_v6(mapped::to_v6(to), index));
        }
        match to.ip() {
            IpAddr::V4(ip) => {
                if asked.contains(Asked::PKTINFO) {
                    self.put(SOL_IP, IP_PKTINFO, &pktinfo_v4(index, spec_dst, ip));
                }
                if asked.contains(Asked::TTL) {
                    self.put(SOL_IP, IP_TTL, &i32::from(hop_limit).to_ne_bytes());
                }
                if asked.contains(Asked::TOS) {
                    self.put(SOL_IP, IP_TOS, &[tos]);
                }
                if asked.contains(Asked::ORIGDSTADDR) {
                    self.put(SOL_IP, IP_ORIGDSTADDR, &sockaddr::encode(to));
                }
            }
            IpAddr::V6(_) => {
                if asked.contains(Asked::V6_HOPLIMIT) {
                    self.put(SOL_IPV6, IPV6_HOPLIMIT, &i32::from(hop_limit).to_ne_bytes());
                }
                if asked.contains(Asked::V6_TCLASS) {
                    self.put(SOL_IPV6, IPV6_TCLASS, &i32::from(tos).to_ne_bytes());
                }
                if asked.contains(Asked::V6_ORIGDSTADDR) {
                    self.put(SOL_IPV6, IPV6_ORIGDSTADDR, &sockaddr::encode(to));
                }
            }
        }
    }

    /// Writes the address that the packet of an error was sent from, where a socket asks for it.
    pub(crate) fn put_source(&mut self, domain: Domain, asked: Asked, source: SocketAddr) {
        if domain == Domain::V6 && asked.contains(Asked::V6_PKTINFO) {
            self.put(SOL_IPV6, IPV6_PKTINFO, &pktinfo_v6(mapped::to_v6(source), 0));
        }
        if let (IpAddr::V4(ip), true) = (source.ip(), asked.contains(Asked::PKTINFO)) {
            self.put(SOL_IP, IP_PKTINFO, &pktinfo_v4(0, source.ip(), ip));
        }
    }
}

/// `struct in_pktinfo`
fn pktinfo_v4(index: u32, spec_dst: IpAddr, address: Ipv4Addr) -> [u8; PKTINFO_LEN_V4] {
    let mut bytes = [0; PKTINFO_LEN_V4];
    bytes[..4].copy_from_slice(&index.to_ne_bytes());
    if let IpAddr::V4(spec_dst) = spec_dst {
        bytes[4..8].copy_from_slice(&spec_dst.octets());
    }
    bytes[8..].copy_from_slice(&address.octets());
    bytes
}

/// `struct in6_pktinfo`
fn pktinfo_v6(address: SocketAddr, index: u32) -> [u8; PKTINFO_LEN_V6] {
    let mut bytes = [0; PKTINFO_LEN_V6];
    if let IpAddr::V6(ip) = address.ip() {
        bytes[..16].copy_from_slice(&ip.octets());
    }
    bytes[16..].copy_from_slice(&index.to_ne_bytes());
    bytes
}

/// The messages of a `msg_control`: level, kind and data of each.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<(i32, i32, &'a [u8]), Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.0.split_first_chunk::<CMSG_HEADER_LEN>()?;
        let int = |at: usize| header[at..at + 4].try_into().map_or(0, i32::from_ne_bytes);
        let len = header[..8].try_into().map_or(0, usize::from_ne_bytes);
        let Some(data) = self.0.get(CMSG_HEADER_LEN..len) else {
            self.0 = &[];
            return Some(Err(Errno::EINVAL));
        };
        self.0 = self.0.get(len.next_multiple_of(8)..).unwrap_or_default();
        Some(Ok((int(8), int(12), data)))
    }
}

/// An `int` and nothing else.
fn int(data: &[u8]) -> Result<i32, Errno> {
    data.try_into().map(i32::from_ne_bytes).map_err(|_| Errno::EINVAL)
}

fn byte(value: i32) -> Result<u8, Errno> {
    u8::try_from(value).map_err(|_| Errno::EINVAL)
}

/// As [`byte`], where -1 asks for nothing.
fn byte_or_default(value: i32) -> Result<Option<u8>, Errno> {
    if value == -1 { Ok(None) } else { byte(value).map(Some) }
}

/// Takes the way of a datagram from the index of an interface, where 0 asks for none. Whether it is
/// the loopback, which has no name in the stack.
fn take_way(datagram: &mut SendDatagram, index: &[u8]) -> Result<bool, Errno> {
    let index = u32::try_from(int(index)?).map_err(|_| Errno::ENODEV)?;
    datagram.interface = InterfaceId::from_index(index);
    Ok(index == LOOPBACK)
}

/// Takes the settings of a datagram, which goes to `remote`, from the control messages of its call.
/// Whether they say that it goes by the loopback.
///
/// # Errors
/// `EINVAL` for a message that is cut off, has a bad value or is unknown at a level that the
/// protocol serves; `ENODEV` for a negative index of an interface.
pub(crate) fn apply(
    datagram: &mut SendDatagram,
    domain: Domain,
    remote: Option<SocketAddr>,
    control: &[u8],
) -> Result<bool, Errno> {
    let mut is_by_loopback = false;
    let is_v4 = remote.map_or(domain == Domain::V4, |remote| remote.is_ipv4());
    for message in Messages(control) {
        let (level, kind, data) = message?;
        match (level, kind) {
            (SOL_SOCKET | SOL_UDP, _) => return Err(Errno::EINVAL),
            (SOL_IPV6, IPV6_PKTINFO) if !is_v4 || domain == Domain::V6 => {
                let info: &[u8; PKTINFO_LEN_V6] = data.first_chunk().ok_or(Errno::EINVAL)?;
                let (ip, index) = info.split_at(16);
                let ip: [u8; 16] = ip.try_into().map_err(|_| Errno::EINVAL)?;
                let ip = Ipv6Addr::from(ip);
                let ip = mapped::to_canonical(SocketAddr::new(ip.into(), 0));
                if ip.is_ipv4() != is_v4 {
                    return Err(Errno::EINVAL);
                }
                datagram.from = Some(ip);
                is_by_loopback = take_way(datagram, index)?;
            }
            (SOL_IP, IP_PKTINFO) if is_v4 => {
                let info: &[u8; PKTINFO_LEN_V4] = data.try_into().map_err(|_| Errno::EINVAL)?;
                let ip = Ipv4Addr::new(info[4], info[5], info[6], info[7]);
                datagram.from = Some(SocketAddr::new(ip.into(), 0));
                is_by_loopback = take_way(datagram, &info[..4])?;
            }
            (SOL_IP, IP_TTL) if is_v4 => {
                let hops = byte(int(data)?)?;
                datagram.hop_limit = Some(hops).filter(|hops| *hops > 0);
                datagram.hop_limit.ok_or(Errno::EINVAL)?;
            }
            (SOL_IP, IP_TOS) if is_v4 => {
                let tos = if let [tos] = data { i32::from(*tos) } else { int(data)? };
                datagram.tos = Some(byte(tos)?);
            }
            (SOL_IPV6, IPV6_HOPLIMIT) if !is_v4 => {
                datagram.hop_limit = byte_or_default(int(data)?)?;
            }
            (SOL_IPV6, IPV6_TCLASS) if !is_v4 => datagram.tos = byte_or_default(int(data)?)?,
            (SOL_IP, _) if is_v4 => return Err(Errno::EINVAL),
            (SOL_IPV6, _) if !is_v4 => return Err(Errno::EINVAL),
            // The messages of other levels are for others.
            _ => {}
        }
    }
    Ok(is_by_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_message_is_cut_to_the_room() {
        let data = [7; 32];
        for (room, used, len, is_cut) in [
            (0, 0, 0, true),
            (15, 0, 0, true),
            (16, 16, 16, true),
            (30, 30, 30, true),
            (48, 48, 48, false),
            (100, 48, 48, false),
        ] {
            let mut control = [0xff; 100];
            let mut messages = Control::new(&mut control[..room]);
            messages.put(SOL_IP, IP_RECVERR, &data);
            let flags = if is_cut { MSG_CTRUNC } else { 0 };
            assert_eq!(messages.finish(), (used, flags), "room {room}");
            if len > 0 {
                assert_eq!(control[..8], (len as u64).to_ne_bytes());
                assert_eq!(control[12..16], IP_RECVERR.to_ne_bytes());
                assert!(control[16..len].iter().all(|byte| *byte == 7));
            }
            assert!(control[used..].iter().all(|byte| *byte == 0xff));
        }
        let mut control = [0; 64];
        let mut messages = Control::new(&mut control);
        messages.put(SOL_IPV6, IPV6_RECVERR, &[1; 44]);
        assert_eq!(messages.finish(), (64, 0));
        assert_eq!(control[..8], 60u64.to_ne_bytes(), "the length without padding");
    }

    #[test]
    fn messages_come_back_from_their_bytes() {
        let mut room = [0; 100];
        let mut messages = Control::new(&mut room);
        messages.put(SOL_IP, IP_TOS, &[3]);
        messages.put(SOL_IP, IP_TTL, &7i32.to_ne_bytes());
        let (used, flags) = messages.finish();
        assert_eq!((used, flags), (48, 0));
        let read: Result<Vec<_>, _> = Messages(&room[..used]).collect();
        let ttl = 7i32.to_ne_bytes();
        assert_eq!(read, Ok(vec![(SOL_IP, IP_TOS, &[3][..]), (SOL_IP, IP_TTL, &ttl[..])]));
        // The padding behind the last one may be missing, the message itself not.
        assert!(Messages(&room[..44]).all(|message| message.is_ok()));
        assert!(Messages(&room[..43]).any(|message| message == Err(Errno::EINVAL)));
        room[..8].copy_from_slice(&15usize.to_ne_bytes());
        let all: Vec<_> = Messages(&room).collect();
        assert_eq!(all, [Err(Errno::EINVAL)], "shorter than its header");
    }
}
