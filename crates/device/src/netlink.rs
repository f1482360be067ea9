//! The one rtnetlink request that is needed: give an interface an address (rtnetlink(7)).

use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::net::IpAddr;

const NLMSG_ERROR: u16 = 2;
const RTM_NEWADDR: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_ACK | NLM_F_REPLACE | NLM_F_CREATE`: setting the same address twice is no error.
const FLAGS: u16 = 0x1 | 0x4 | 0x100 | 0x400;
/// No duplicate address detection: it would keep the address unusable for a second.
const IFA_F_NODAD: u8 = 0x02;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Adds `address/prefix` to the interface with this index.
pub(crate) fn add_address(index: u32, address: IpAddr, prefix: u8) -> Result<()> {
    // No protocol is protocol 0, NETLINK_ROUTE.
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    send(
        &socket,
        &request(index, address, prefix),
        SendFlags::empty(),
    )?;
    let mut reply = [0u8; 512];
    let (len, _) = recv(&socket, &mut reply, RecvFlags::empty())?;
    acknowledgment(&reply[..len])
}

fn request(index: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let (family, flags) = match address {
        IpAddr::V4(_) => (libc::AF_INET as u8, 0),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, IFA_F_NODAD),
    };
    let mut body = vec![family, prefix, flags, 0];
    body.extend(index.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        let value = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        body.extend((value.len() as u16 + 4).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    }
    let mut message = Vec::new();
    message.extend((body.len() as u32 + 16).to_ne_bytes());
    message.extend(RTM_NEWADDR.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// The `nlmsgerr` that answers: code 0 is success, otherwise a negative errno.
fn acknowledgment(reply: &[u8]) -> Result<()> {
    let kind = reply
        .get(4..6)
        .and_then(|b| b.try_into().ok())
        .map(u16::from_ne_bytes);
    let code = reply
        .get(16..20)
        .and_then(|b| b.try_into().ok())
        .map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(code.saturating_neg())),
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_as_long_as_it_says() {
        for (address, len) in [("10.0.0.1", 16 + 8 + 2 * 8), ("fd00::1", 16 + 8 + 2 * 20)] {
            let message = request(3, address.parse().expect("an address"), 24);
            assert_eq!(message.len(), len);
            assert_eq!(message[..4], (len as u32).to_ne_bytes());
        }
    }

    #[test]
    fn errors_of_the_kernel_come_back() {
        let mut reply = [0u8; 36];
        reply[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert_eq!(acknowledgment(&reply), Ok(()));
        reply[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(acknowledgment(&reply), Err(Errno::PERM));
        assert_eq!(acknowledgment(&reply[..10]), Err(Errno::BADMSG));
    }
}
