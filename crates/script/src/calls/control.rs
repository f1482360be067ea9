//! Control messages that a script expects of `recvmsg`: `{cmsg_level=SOL_IP, cmsg_type=IP_RECVERR,
//! cmsg_data={ee_errno=ECONNREFUSED, ee_origin=2, ...}}`.

use super::value::{field, fields, plain_integer, wrong};
use crate::ast::{Value, ValueKind};
use crate::cursor::SyntaxError;
use neap_posix::Errno;
use neap_posix::abi::{
    CMSG_HEADER_LEN as HEADER_LEN, IP_RECVERR, IPV6_RECVERR, SOCK_EXTENDED_ERR_LEN, SOL_IP,
    SOL_IPV6,
};
use neap_posix::sockaddr::{SIZE_V4, SIZE_V6};

/// Fields of `struct sock_extended_err`: name, offset, bytes.
const FIELDS: [(&str, usize, usize); 6] = [
    ("ee_errno", 0, 4),
    ("ee_origin", 4, 1),
    ("ee_type", 5, 1),
    ("ee_code", 6, 1),
    ("ee_info", 8, 4),
    ("ee_data", 12, 4),
];

/// One control message with an error. The offender's address behind it can be any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlMessage {
    level: i64,
    kind: i64,
    /// Values of [`FIELDS`].
    error: [Option<i64>; 6],
}

impl ControlMessage {
    /// Bytes behind the header.
    fn data_len(&self) -> usize {
        SOCK_EXTENDED_ERR_LEN + if self.level == SOL_IP.into() { SIZE_V4 } else { SIZE_V6 }
    }
}

/// A number or the name of a constant or an error.
fn number(value: &Value) -> Option<i64> {
    plain_integer(value).or_else(|| match &value.kind {
        ValueKind::Name(name) => Errno::named(name).map(|errno| errno.0.into()),
        _ => None,
    })
}

/// What a script writes as `msg_control`.
pub(super) fn expected(value: &Value) -> Result<Vec<ControlMessage>, SyntaxError> {
    let ValueKind::List(messages) = &value.kind else {
        return Err(wrong(value, "[{cmsg_level=..., cmsg_type=..., cmsg_data={...}}]"));
    };
    messages.iter().map(one).collect()
}

fn one(value: &Value) -> Result<ControlMessage, SyntaxError> {
    let form = || wrong(value, "{cmsg_level=..., cmsg_type=..., cmsg_data={ee_errno=..., ...}}");
    let parts = fields(value, &["cmsg_level", "cmsg_type", "cmsg_data"])?;
    let number_of = |name| field(parts, &[name]).and_then(number).ok_or_else(form);
    let (level, kind) = (number_of("cmsg_level")?, number_of("cmsg_type")?);
    let known = [(SOL_IP, IP_RECVERR), (SOL_IPV6, IPV6_RECVERR)];
    if !known.contains(&(level as i32, kind as i32)) {
        return Err(wrong(value, "IP_RECVERR of SOL_IP or IPV6_RECVERR of SOL_IPV6"));
    }
    let data = field(parts, &["cmsg_data"]).ok_or_else(form)?;
    let data = fields(data, &FIELDS.map(|(name, ..)| name))?;
    let mut error = [None; 6];
    for (place, (name, ..)) in error.iter_mut().zip(FIELDS) {
        if let Some(value) = field(data, &[name]).filter(|value| value.kind != ValueKind::Any) {
            *place =
                Some(number(value).ok_or_else(|| wrong(value, "a number or the name of one"))?);
        }
    }
    Ok(ControlMessage { level, kind, error })
}

/// Bytes for these messages, which are all that packetdrill gives the call.
pub(super) fn room(messages: &[ControlMessage]) -> usize {
    messages.iter().map(|one| HEADER_LEN + one.data_len().next_multiple_of(8)).sum()
}

/// Little-endian, as this machine's.
fn read(bytes: &[u8], at: usize, len: usize) -> i64 {
    let bytes = bytes.get(at..at + len).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, byte| (value << 8) | i64::from(*byte))
}

/// Compares what came with what is expected. The error says what differs.
pub(super) fn compare(expected: &[ControlMessage], mut control: &[u8]) -> Result<(), String> {
    for message in expected {
        let len = read(control, 0, 8) as usize;
        if control.len() < HEADER_LEN || len < HEADER_LEN || len > control.len() {
            return Err("a control message is missing".into());
        }
        let (level, kind) = (read(control, 8, 4), read(control, 12, 4));
        if (level, kind) != (message.level, message.kind) {
            return Err(format!(
                "a control message has level {level} and type {kind}, expected {} and {}",
                message.level, message.kind
            ));
        }
        let data = &control[HEADER_LEN..len];
        if data.len() != message.data_len() {
            let (is, should) = (data.len(), message.data_len());
            return Err(format!("a control message has {is} bytes, expected {should}"));
        }
        for ((name, at, size), value) in FIELDS.into_iter().zip(message.error) {
            let is = read(data, at, size);
            if let Some(value) = value.filter(|value| *value != is) {
                return Err(format!("{name} is {is}, expected {value}"));
            }
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    match control.len() {
        0 => Ok(()),
        len => Err(format!("{len} bytes of control messages more than expected")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(code: u8) -> Vec<u8> {
        let mut bytes = Vec::from(48u64.to_le_bytes());
        bytes.extend([0, 0, 0, 0, 11, 0, 0, 0]);
        bytes.extend([111, 0, 0, 0, 2, 3, code, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.resize(48, 0);
        bytes
    }

    #[test]
    fn messages_are_compared_field_by_field() {
        let error = [Some(111), Some(2), Some(3), Some(3), None, Some(0)];
        let expected = [ControlMessage { level: 0, kind: 11, error }];
        assert_eq!(room(&expected), 48);
        assert_eq!(compare(&expected, &message(3)), Ok(()));
        assert_eq!(compare(&expected, &message(1)), Err("ee_code is 1, expected 3".into()));
        assert!(compare(&expected, &[]).is_err());
        assert!(compare(&expected, &message(3)[..40]).is_err());
        assert!(compare(&[], &message(3)).is_err(), "more than expected");
        let twice = [message(3), message(3)].concat();
        assert!(compare(&expected, &twice).is_err());
        let other = ControlMessage { level: 41, kind: 25, ..expected[0].clone() };
        assert!(compare(&[other], &message(3)).is_err());
    }
}
