//! What the host asks of a script's network namespace, and rtnetlink's messages about a qdisc.

use core::ffi::CStr;
use std::io;
use thiserror::Error;

/// The device that packetdrill makes for the kernel, and that scripts prepare: here it carries
/// nothing.
pub(crate) const DEVICE: &CStr = c"tun0";

/// Why there is no namespace: what is missing, and the error of the system.
#[derive(Debug, Error)]
#[error("{0}: {1}: run packetdrill as root")]
pub(crate) struct NoNamespace(pub(crate) &'static str, pub(crate) io::Error);

/// The network namespace of a thread.
pub(crate) trait Namespace: core::fmt::Debug + Send {
    /// Moves this thread into a namespace as scripts expect it: the loopback and [`DEVICE`] are up.
    /// The device is there as long as this value.
    fn enter(&mut self) -> Result<(), NoNamespace>;

    /// The MTU of [`DEVICE`], bytes; `None` without the device.
    fn mtu(&self) -> Option<u16>;

    /// The qdisc of [`DEVICE`]; `None` without the device.
    fn qdisc(&self) -> Option<RootQdisc>;
}

/// The root qdisc of a device of this thread's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootQdisc {
    /// The name, as in `tc qdisc`.
    pub(crate) kind: String,
    /// The limit of a FIFO: packets, and of `bfifo` bytes.
    pub(crate) limit: Option<u32>,
}

/// Bytes of the answer about a qdisc that are looked at.
pub(crate) const REPLY: usize = 4096;
/// Bytes of `struct nlmsghdr`, and of `struct tcmsg` behind it.
const HEADERS: usize = 16 + 20;
/// Attributes of a qdisc.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
/// The parent of a root qdisc.
const TC_H_ROOT: u32 = u32::MAX;

/// Asks for the root qdisc of a device: `struct nlmsghdr`, then `struct tcmsg`.
pub(crate) fn get_root_qdisc(index: u32) -> [u8; HEADERS] {
    let mut request = [0; HEADERS];
    request[0..4].copy_from_slice(&(HEADERS as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETQDISC.to_ne_bytes());
    request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_ECHO) as u16).to_ne_bytes());
    request[20..24].copy_from_slice(&index.to_ne_bytes());
    request[28..32].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
    request
}

/// The kind and the limit in an `RTM_NEWQDISC`.
pub(crate) fn parse_qdisc(message: &[u8]) -> Option<RootQdisc> {
    let kind = u16::from_ne_bytes(*message.get(4..6)?.first_chunk()?);
    let mut rest = message.get(HEADERS..).filter(|_| kind == libc::RTM_NEWQDISC)?;
    let (mut kind, mut limit) = (None, None);
    while let Some((head, body)) = rest.split_first_chunk::<4>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]])).checked_sub(4)?;
        let value = body.get(..len)?;
        match u16::from_ne_bytes([head[2], head[3]]) {
            TCA_KIND => kind = name(value),
            // `struct tc_fifo_qopt` is this long; others have more.
            TCA_OPTIONS => limit = value.try_into().ok().map(u32::from_ne_bytes),
            _ => {}
        }
        rest = body.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    let kind = kind?;
    let limit = limit.filter(|_| kind.ends_with("fifo"));
    Some(RootQdisc { kind, limit })
}

/// The text of an attribute.
fn name(value: &[u8]) -> Option<String> {
    Some(CStr::from_bytes_until_nul(value).ok()?.to_str().ok()?.to_owned())
}
