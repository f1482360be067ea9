//! The server's part of an HTTP proxy (RFC 9110, RFC 9112), without I/O: CONNECT, and requests with
//! a whole URI, one for each connection.
//!
//! It adds no `Via`, which RFC 9110 section 7.6.3 wants: that would tell every server of the proxy.
//! Nor does it pass on `Upgrade` (section 7.8), as that is of one connection and the next one may
//! have another server; what speaks another protocol has CONNECT.

use super::body::{Body, Chunks};
use super::config::{Host, Target};
use super::step::{Failure, Fault, Request, Step};
use super::users::Users;
use bytes::{Buf, Bytes, BytesMut};
use httparse::{EMPTY_HEADER, Header, Status};
use std::fmt::Write;

/// Most header lines of a request, and of an answer.
pub(super) const MOST_LINES: usize = 100;
/// Port of `http` URIs.
const HTTP_PORT: u16 = 80;

/// Header lines that are of one connection (RFC 9110 section 7.6.1).
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "upgrade",
];

/// The header line with how many proxies a request may pass.
const MAX_FORWARDS: &str = "max-forwards";

/// A dialogue with a client.
#[derive(Debug, Default)]
pub(super) struct Server {
    is_tunnel: bool,
}

/// Why a request is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    Request(&'static str),
    Unauthorised,
    TooLong,
    NotImplemented(&'static str),
}

impl Server {
    /// Takes the head of a request from the front of `received`.
    pub(super) fn take(&mut self, received: &mut BytesMut, users: &Users) -> Step {
        let mut lines = [EMPTY_HEADER; MOST_LINES];
        let mut request = httparse::Request::new(&mut lines);
        let length = match request.parse(received) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => return Step::Receive,
            Err(httparse::Error::TooManyHeaders) => return refuse(Bad::TooLong),
            Err(_) => return refuse(Bad::Request("this is no HTTP request")),
        };
        let (Some(method), Some(uri), Some(version)) =
            (request.method, request.path, request.version)
        else {
            return refuse(Bad::Request("this is no HTTP request"));
        };
        if !users.is_empty() && !is_allowed(request.headers, users) {
            return refuse(Bad::Unauthorised);
        }
        self.is_tunnel = method == "CONNECT";
        let wanted =
            if self.is_tunnel { tunnel(uri) } else { whole(method, uri, version, request.headers) };
        // What is no body is not for the server. Where it is found to be none later, the connection
        // to the server is reset.
        let wanted = wanted.and_then(|wanted| {
            let counted = { wanted.body }.count(&received[length..]);
            counted.map(|_| wanted).map_err(|_| Bad::Request("the body has no chunks"))
        });
        match wanted {
            Ok(wanted) => {
                received.advance(length);
                Step::Open(wanted)
            }
            Err(why) => refuse(why),
        }
    }

    /// What a client is told whose connection is open. The server answers other requests.
    pub(super) fn opened(&self) -> Bytes {
        if self.is_tunnel {
            Bytes::from_static(b"HTTP/1.1 200 Connection established\r\n\r\n")
        } else {
            Bytes::new()
        }
    }
}

/// Whether a request has the name and password of a user.
fn is_allowed(lines: &[Header<'_>], users: &Users) -> bool {
    let mut values = values_of(lines, "proxy-authorization");
    values.next().is_some_and(|value| users.allow_basic(value))
}

pub(super) fn values_of<'a>(
    lines: &'a [Header<'_>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    lines.iter().filter(move |line| line.name.eq_ignore_ascii_case(name)).map(|line| line.value)
}

fn tunnel(uri: &str) -> Result<Request, Bad> {
    let target = uri.parse().map_err(|_| Bad::Request("CONNECT needs HOST:PORT"))?;
    Ok(Request::plain(target))
}

/// A request with a whole URI: its server, and its head for that.
fn whole(method: &str, uri: &str, version: u8, lines: &[Header<'_>]) -> Result<Request, Bad> {
    const SCHEME: &str = "http://";
    let (scheme, rest) = uri.split_at_checked(SCHEME.len()).unwrap_or((uri, ""));
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Err(if uri.contains("://") {
            Bad::NotImplemented("this proxy does http URIs and CONNECT")
        } else {
            Bad::Request("this is a proxy: it needs a whole URI, or CONNECT")
        });
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = path.split('#').next().unwrap_or_default();
    let target = authority_of(authority).ok_or(Bad::Request("the URI names no server"))?;
    let body = body_of(lines)?;
    if version == 0 && matches!(body, Body::Chunked(_)) {
        return Err(Bad::Request("HTTP/1.0 has no transfer codings"));
    }
    let hops = hops_left(method, lines)?;
    let slash = match path {
        // The server as a whole is meant (RFC 9112 section 3.2.4).
        "" if method == "OPTIONS" => "*",
        _ if path.starts_with('/') => "",
        _ => "/",
    };
    let mut head = String::new();
    // Text takes all that is written.
    let _ = write!(head, "{method} {slash}{path} HTTP/1.{version}\r\nHost: {authority}\r\n");
    let mut head = BytesMut::from(head.as_bytes());
    let also: Vec<_> = values_of(lines, "connection").collect();
    for line in lines {
        let is_here = |name: &&str| line.name.eq_ignore_ascii_case(name);
        // The URI has the server's name.
        let is_replaced = is_here(&"host") || (hops.is_some() && is_here(&MAX_FORWARDS));
        if is_replaced || !is_for_next(line, &also) {
            continue;
        }
        add_line(&mut head, line);
    }
    if let Some(hops) = hops {
        head.extend_from_slice(format!("Max-Forwards: {hops}\r\n").as_bytes());
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(Request { target, head: head.freeze(), body })
}

/// Adds a header line to a head.
pub(super) fn add_line(head: &mut BytesMut, line: &Header<'_>) {
    for part in [line.name.as_bytes(), b": ", line.value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Whether a header line is passed on. `also` are the values of `Connection`, which name lines that
/// are not.
pub(super) fn is_for_next(line: &Header<'_>, also: &[&[u8]]) -> bool {
    let is_here = |name: &&str| line.name.eq_ignore_ascii_case(name);
    let mut names = also.iter().flat_map(|value| value.split(|&byte| byte == b','));
    let is_named = names.any(|name| name.trim_ascii().eq_ignore_ascii_case(line.name.as_bytes()));
    // What says where the body ends stays, whatever the sender wants.
    let is_framing = ["content-length", "transfer-encoding"].iter().any(is_here);
    !HOP_BY_HOP.iter().any(is_here) && (is_framing || !is_named)
}

/// How many proxies a request for tests may pass behind this one (RFC 9110 section 7.6.2); `None`
/// if it does not say.
fn hops_left(method: &str, lines: &[Header<'_>]) -> Result<Option<u64>, Bad> {
    let Some(value) = values_of(lines, MAX_FORWARDS).next() else { return Ok(None) };
    if !["OPTIONS", "TRACE"].contains(&method) {
        return Ok(None);
    }
    let digits = std::str::from_utf8(value).unwrap_or_default().trim();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Bad::Request("Max-Forwards is no number"));
    }
    // More than that is as many as can be.
    let hops: u64 = digits.parse().unwrap_or(u64::MAX);
    let why = Bad::NotImplemented("this proxy answers no request of this method itself");
    hops.checked_sub(1).map(Some).ok_or(why)
}

/// The server of a URI; one with a user is refused (RFC 9110 section 4.2.4).
fn authority_of(authority: &str) -> Option<Target> {
    let is_v6_alone = authority.ends_with(']');
    match authority.rsplit_once(':').filter(|_| !is_v6_alone) {
        Some((host, "")) => Some(Target { host: Host::parse(host)?, port: HTTP_PORT }),
        Some(_) => authority.parse().ok(),
        None => Some(Target { host: Host::parse(authority)?, port: HTTP_PORT }),
    }
}

/// How long the body of a request is (RFC 9112 section 6.3). What servers could read in two ways is
/// refused.
fn body_of(lines: &[Header<'_>]) -> Result<Body, Bad> {
    let mut codings = values_of(lines, "transfer-encoding");
    let mut lengths = values_of(lines, "content-length");
    match (codings.next(), lengths.next()) {
        (None, None) => Ok(Body::Length(0)),
        (Some(coding), None) if codings.next().is_none() => {
            if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                Ok(Body::Chunked(Chunks::FIRST))
            } else {
                Err(Bad::NotImplemented("this transfer coding is not known"))
            }
        }
        (None, Some(length)) if lengths.next().is_none() => {
            let digits = std::str::from_utf8(length).ok().map(str::trim);
            let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = digits.and_then(|text| text.parse().ok());
            length.map(Body::Length).ok_or(Bad::Request("the length of the body is no number"))
        }
        _ => Err(Bad::Request("the length of the body is given twice")),
    }
}

fn refuse(why: Bad) -> Step {
    match why {
        Bad::Request(words) => Step::Refuse(answer("400 Bad Request", "", words), Fault::Malformed),
        Bad::TooLong => Step::Refuse(too_long(), Fault::Malformed),
        Bad::NotImplemented(words) => {
            Step::Refuse(answer("501 Not Implemented", "", words), Fault::Malformed)
        }
        Bad::Unauthorised => {
            let line = "Proxy-Authenticate: Basic realm=\"neap\"\r\n";
            let words = "this proxy needs a user and a password";
            let answer = answer("407 Proxy Authentication Required", line, words);
            Step::Refuse(answer, Fault::Unauthorised)
        }
    }
}

/// The answer to a request whose head is too long.
pub(super) fn too_long() -> Bytes {
    answer("431 Request Header Fields Too Large", "", "the head of the request is too long")
}

/// The answer that a connection could not be opened.
pub(super) fn failed(why: Failure) -> Bytes {
    let status = match why {
        Failure::TimedOut | Failure::NoAnswer => "504 Gateway Timeout",
        Failure::Prohibited => "403 Forbidden",
        Failure::Full => "503 Service Unavailable",
        Failure::Refused | Failure::Network | Failure::Host | Failure::NoName | Failure::Other => {
            "502 Bad Gateway"
        }
    };
    answer(status, "", why.words())
}

fn answer(status: &str, line: &str, words: &str) -> Bytes {
    let length = words.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\n{line}Content-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{words}\n"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a request comes to, and what is left behind its head.
    fn ask(text: &str, users: &Users) -> (Step, String) {
        let mut received = BytesMut::from(text);
        let step = Server::default().take(&mut received, users);
        (step, String::from_utf8(received.to_vec()).expect("text"))
    }

    fn wanted(text: &str) -> (Request, String) {
        match ask(text, &Users::default()) {
            (Step::Open(request), rest) => (request, rest),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn status(text: &str, users: &Users) -> String {
        match ask(text, users).0 {
            Step::Refuse(answer, _) => String::from_utf8_lossy(&answer[9..12]).into_owned(),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn connect_leaves_what_follows_as_data() {
        let head = "CONNECT Example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n";
        let (request, rest) = wanted(&format!("{head}\x16\x03\x01"));
        assert_eq!(request, Request::plain("example.org:443".parse().expect("a target")));
        assert_eq!(rest, "\x16\x03\x01");
        for length in 0..head.len() {
            assert_eq!(ask(&head[..length], &Users::default()).0, Step::Receive);
        }
        let (request, _) = wanted("CONNECT [2001:db8::1]:80 HTTP/1.0\r\n\r\n");
        assert_eq!(request.target.to_string(), "[2001:db8::1]:80");
    }

    #[test]
    fn a_whole_uri_becomes_a_request_for_its_server() {
        let text = "POST http://Example.org:8080/a?b=c#d HTTP/1.1\r\nHost: other\r\n\
                    Proxy-Authorization: Basic x\r\nConnection: keep-alive, X-Mine\r\n\
                    x-mine: 1\r\nUser-Agent: me\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n\
                    Content-Length: 4\r\n\r\ndata";
        let (request, rest) = wanted(text);
        assert_eq!(request.target.to_string(), "example.org:8080");
        assert_eq!(request.body, Body::Length(4));
        assert_eq!(rest, "data");
        let head = "POST /a?b=c HTTP/1.1\r\nHost: Example.org:8080\r\nUser-Agent: me\r\n\
                    Content-Length: 4\r\nConnection: close\r\n\r\n";
        assert_eq!(std::str::from_utf8(&request.head), Ok(head));
        for (uri, target, path) in [
            ("http://example.org", "example.org:80", "/"),
            ("HTTP://example.org?x", "example.org:80", "/?x"),
            ("http://example.org#x", "example.org:80", "/"),
            ("http://[2001:db8::1]/", "[2001:db8::1]:80", "/"),
            ("http://192.0.2.1:/", "192.0.2.1:80", "/"),
        ] {
            let (request, _) = wanted(&format!("GET {uri} HTTP/1.1\r\n\r\n"));
            assert_eq!(request.target.to_string(), target);
            let first = format!("GET {path} HTTP/1.1\r\n");
            assert!(request.head.starts_with(first.as_bytes()), "{:?}", request.head);
        }
        let chunked = "PUT http://a/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\
                       Connection: transfer-encoding\r\n\r\n";
        let (request, _) = wanted(chunked);
        assert_eq!(request.body, Body::Chunked(Chunks::FIRST));
        let line = b"Transfer-Encoding: Chunked\r\n";
        assert!(request.head.windows(line.len()).any(|part| part == line));
    }

    #[test]
    fn requests_for_tests_pass_as_many_proxies_as_they_say() {
        let (request, _) = wanted("OPTIONS http://a HTTP/1.1\r\nMAX-FORWARDS: 3\r\nX: y\r\n\r\n");
        let head = "OPTIONS * HTTP/1.1\r\nHost: a\r\nX: y\r\nMax-Forwards: 2\r\n\
                    Connection: close\r\n\r\n";
        assert_eq!(std::str::from_utf8(&request.head), Ok(head));
        for (line, passed) in [
            ("OPTIONS http://a?x HTTP/1.1\r\n\r\n", "OPTIONS /?x HTTP/1.1\r\nHost: a\r\nC"),
            ("TRACE http://a HTTP/1.1\r\n\r\n", "TRACE / HTTP/1.1\r\n"),
            (
                "GET http://a HTTP/1.1\r\nMax-Forwards: 0\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: a\r\nMax",
            ),
        ] {
            let (request, _) = wanted(line);
            assert!(request.head.starts_with(passed.as_bytes()), "{:?}", request.head);
        }
    }

    #[test]
    fn bad_requests_have_their_status() {
        let nobody = Users::default();
        for (text, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
            ("GET https://a/ HTTP/1.1\r\n\r\n", "501"),
            ("GET http:///x HTTP/1.1\r\n\r\n", "400"),
            ("GET http://me@a/ HTTP/1.1\r\n\r\n", "400"),
            ("CONNECT example.org HTTP/1.1\r\n\r\n", "400"),
            ("\x05\x01\x00", "400"),
            ("PUT http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "400"),
            ("PUT http://a/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n", "400"),
            ("PUT http://a/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "501"),
            ("PUT http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
            (
                "PUT http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nZZ\r\n",
                "400",
            ),
            ("TRACE http://a/ HTTP/1.1\r\nMax-Forwards: 0\r\n\r\n", "501"),
            ("OPTIONS http://a/ HTTP/1.1\r\nMax-Forwards: -1\r\n\r\n", "400"),
            (
                "PUT http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
                "400",
            ),
        ] {
            assert_eq!(status(text, &nobody), expected, "{text:?}");
        }
        let lines = "A: b\r\n".repeat(MOST_LINES + 1);
        assert_eq!(status(&format!("GET http://a/ HTTP/1.1\r\n{lines}\r\n"), &nobody), "431");
    }

    #[test]
    fn a_user_is_asked_for() {
        let mut users = Users::default();
        assert!(users.add("Aladdin", "open sesame"));
        let head = "CONNECT a:1 HTTP/1.1\r\n";
        assert_eq!(status(&format!("{head}\r\n"), &users), "407");
        let line = "Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==";
        assert!(matches!(ask(&format!("{head}{line}\r\n\r\n"), &users).0, Step::Open(_)));
    }
}
