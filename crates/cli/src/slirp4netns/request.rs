//! Requests of the API socket: JSON to what is asked for.

use neap_gateway::{Publication, PublishedId, Transport};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of a request that is too long.
pub(crate) const MOST_BYTES: usize = 4096;

/// What a client may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Add(Publication),
    List,
    Remove(PublishedId),
}

/// What the bytes of a client are so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Received {
    /// The beginning of a value.
    Part,
    Value(Value),
    /// No value can come of it, and why.
    Nonsense(&'static str),
}

/// Judges what a client has sent so far; `is_all` if there is no more. A zero byte ends it: clients
/// in C may send the end of their string.
pub(crate) fn receive(bytes: &[u8], is_all: bool) -> Received {
    if bytes.len() >= MOST_BYTES {
        return Received::Nonsense("too large message");
    }
    let end = bytes.iter().position(|byte| *byte == 0);
    let (bytes, is_all) = (&bytes[..end.unwrap_or(bytes.len())], is_all || end.is_some());
    match serde_json::from_slice(bytes) {
        Ok(value) => Received::Value(value),
        Err(error) if error.is_eof() && !is_all => Received::Part,
        Err(_) => Received::Nonsense("cannot parse JSON"),
    }
}

impl Request {
    /// Reads a request. Without an address of the guest it is about `guest`; clients on loopback
    /// addresses become `gateway`.
    pub(crate) fn parse(
        value: &Value,
        guest: Ipv4Addr,
        gateway: Ipv4Addr,
    ) -> Result<Self, &'static str> {
        let object = value.as_object().ok_or("json_object() failed")?;
        let execute = object.get("execute").and_then(Value::as_str).ok_or("no execute found")?;
        let arguments = object.get("arguments").unwrap_or(&Value::Null);
        match execute {
            "add_hostfwd" => parse_publication(arguments, guest, gateway).map(Request::Add),
            "list_hostfwd" => Ok(Request::List),
            "remove_hostfwd" => {
                let id = number(&arguments["id"], u32::MAX);
                let id = id.ok_or("remove_hostfwd: bad arguments.id")?;
                Ok(Request::Remove(u64::from(id).into()))
            }
            _ => Err("unknown execute"),
        }
    }
}

fn parse_publication(
    arguments: &Value,
    guest: Ipv4Addr,
    gateway: Ipv4Addr,
) -> Result<Publication, &'static str> {
    let (transport, is_v6) = match arguments["proto"].as_str() {
        Some("tcp" | "tcp4") => (Transport::Tcp, false),
        Some("udp" | "udp4") => (Transport::Udp, false),
        Some("tcp6") => (Transport::Tcp, true),
        Some("udp6") => (Transport::Udp, true),
        _ => return Err("add_hostfwd: bad arguments.proto"),
    };
    let any: IpAddr =
        if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let host = address(&arguments["host_addr"], any)
        .filter(|host| host.is_ipv6() == is_v6)
        .ok_or("add_hostfwd: bad arguments.host_addr")?;
    let host_port = port(&arguments["host_port"]).ok_or("add_hostfwd: bad arguments.host_port")?;
    let guest = address(&arguments["guest_addr"], guest.into())
        .filter(IpAddr::is_ipv4)
        .ok_or("add_hostfwd: bad arguments.guest_addr")?;
    let guest_port =
        port(&arguments["guest_port"]).ok_or("add_hostfwd: bad arguments.guest_port")?;
    Ok(Publication {
        transport,
        port: SocketAddr::new(host, host_port),
        guest: SocketAddr::new(guest, guest_port),
        stand_in: gateway.into(),
    })
}

fn address(value: &Value, default: IpAddr) -> Option<IpAddr> {
    match value {
        Value::Null => Some(default),
        Value::String(text) if text.is_empty() => Some(default),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn port(value: &Value) -> Option<u16> {
    number(value, u16::MAX.into()).and_then(|port| port.try_into().ok())
}

/// A number of at least one. Clients that know floating point only write 80.0.
fn number(value: &Value, most: u32) -> Option<u32> {
    let number = value.as_f64().filter(|number| (1.0..=f64::from(most)).contains(number));
    number.map(|number| number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

    fn parse_text(text: &str) -> Result<Request, &'static str> {
        Request::parse(&serde_json::from_str(text).expect("JSON"), GUEST, GATEWAY)
    }

    #[test]
    fn a_request_to_publish_has_defaults() {
        let request = r#"{"execute": "add_hostfwd", "arguments":
            {"proto": "tcp", "host_addr": "", "host_port": 8080, "guest_port": 80.0}}"#;
        let expected = Publication {
            transport: Transport::Tcp,
            port: "0.0.0.0:8080".parse().expect("an address"),
            guest: "10.0.2.100:80".parse().expect("an address"),
            stand_in: GATEWAY.into(),
        };
        assert_eq!(parse_text(request), Ok(Request::Add(expected)));
        let request = request.replace("tcp", "udp6");
        let expected = Publication {
            transport: Transport::Udp,
            port: "[::]:8080".parse().expect("an address"),
            ..expected
        };
        assert_eq!(parse_text(&request), Ok(Request::Add(expected)));
    }

    #[test]
    fn a_request_may_end_with_a_zero_byte_and_have_a_number_of_floating_point() {
        let text = "{\"execute\": \"remove_hostfwd\", \"arguments\": {\"id\": 1.0}}\0";
        let Received::Value(value) = receive(text.as_bytes(), false) else { panic!("no value") };
        let request = Request::parse(&value, GUEST, GATEWAY);
        assert_eq!(request, Ok(Request::Remove(1.into())));
        let cut = receive(b"{\"execute\": \0", false);
        assert_eq!(cut, Received::Nonsense("cannot parse JSON"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let add = |arguments: &str| {
            let text = format!(r#"{{"execute": "add_hostfwd", "arguments": {{{arguments}}}}}"#);
            parse_text(&text).expect_err(arguments)
        };
        let tcp = r#""proto": "tcp""#;
        assert_eq!(add(r#""proto": "sctp""#), "add_hostfwd: bad arguments.proto");
        assert_eq!(add(""), "add_hostfwd: bad arguments.proto");
        assert_eq!(add(tcp), "add_hostfwd: bad arguments.host_port");
        let port = |number: &str| format!(r#"{tcp}, "host_port": {number}"#);
        for number in ["0", "65536", "-1", "\"80\""] {
            assert_eq!(add(&port(number)), "add_hostfwd: bad arguments.host_port");
        }
        assert_eq!(add(&port("80")), "add_hostfwd: bad arguments.guest_port");
        let host = format!(r#"{tcp}, "host_addr": "::1", "host_port": 80"#);
        assert_eq!(add(&host), "add_hostfwd: bad arguments.host_addr");
        let guest = format!(r#"{}, "guest_addr": 7"#, port("80"));
        assert_eq!(add(&guest), "add_hostfwd: bad arguments.guest_addr");
        assert_eq!(parse_text("[]"), Err("json_object() failed"));
        assert_eq!(parse_text("{}"), Err("no execute found"));
        assert_eq!(parse_text(r#"{"execute": "dance"}"#), Err("unknown execute"));
        let remove = r#"{"execute": "remove_hostfwd", "arguments": {"id": "1"}}"#;
        assert_eq!(parse_text(remove), Err("remove_hostfwd: bad arguments.id"));
    }
}
