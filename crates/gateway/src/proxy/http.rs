//! The client's part of HTTP CONNECT (RFC 9110 section 9.3.6), without I/O.

use super::Credentials;
use super::error::ProxyError;
use crate::destination::Destination;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use httparse::{EMPTY_HEADER, Response, Status};

/// Most header lines of an answer.
const MOST_LINES: usize = 64;

/// The request for a connection.
pub(super) fn request(to: &Destination, credentials: Option<&Credentials>) -> Bytes {
    let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(Credentials { user, password }) = credentials {
        let encoded = BASE64_STANDARD.encode(format!("{user}:{}", password.as_str()));
        request += &format!("Proxy-Authorization: Basic {encoded}\r\n");
    }
    request += "\r\n";
    request.into()
}

/// Takes the answer from the front of `received`; what is left behind it is data. Whether it was
/// all there.
///
/// # Errors
/// The proxy refuses, or does not speak HTTP.
pub(super) fn take_answer(received: &mut BytesMut) -> Result<bool, ProxyError> {
    loop {
        let mut lines = [EMPTY_HEADER; MOST_LINES];
        let mut response = Response::new(&mut lines);
        let length = match response.parse(received) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => return Ok(false),
            Err(httparse::Error::TooManyHeaders) => return Err(ProxyError::TooLong),
            Err(_) => return Err(ProxyError::Malformed),
        };
        match response.code.ok_or(ProxyError::Malformed)? {
            // Another answer follows.
            100..200 => received.advance(length),
            // A length and a coding are to be ignored.
            200..300 => {
                received.advance(length);
                return Ok(true);
            }
            status => return Err(ProxyError::Status(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn answer(text: &str) -> Result<Option<String>, ProxyError> {
        let mut received = BytesMut::from(text);
        let is_whole = take_answer(&mut received)?;
        Ok(is_whole.then(|| String::from_utf8(received.to_vec()).expect("text")))
    }

    #[test]
    fn requests_name_the_destination() {
        let v6: Destination = "[2001:db8::1]:80".parse::<SocketAddr>().expect("an address").into();
        let expected = "CONNECT [2001:db8::1]:80 HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n";
        assert_eq!(&request(&v6, None)[..], expected.as_bytes());
        let named = Destination { name: Some("example.org".into()), ..v6 };
        let credentials = Credentials::new("Aladdin", "open sesame").expect("usable");
        let text = request(&named, Some(&credentials));
        let text = std::str::from_utf8(&text).expect("text");
        assert!(text.starts_with("CONNECT example.org:80 HTTP/1.1\r\n"), "{text}");
        // The example of RFC 7617 section 2.
        let line = "Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn what_follows_the_answer_is_data() {
        let head = "HTTP/1.1 200 Connection established\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(answer(&format!("{head}SSH-2.0")), Ok(Some("SSH-2.0".to_owned())));
        for length in 0..head.len() {
            assert_eq!(answer(&head[..length]), Ok(None), "{length} bytes");
        }
        let interim = "HTTP/1.1 103 Early Hints\r\n\r\n";
        assert_eq!(answer(&format!("{interim}{head}x")), Ok(Some("x".to_owned())));
    }

    #[test]
    fn refusals_and_strangers_are_told_apart() {
        let refused = "HTTP/1.0 407 Proxy Authentication Required\r\n\r\n";
        assert_eq!(answer(refused), Err(ProxyError::Status(407)));
        assert_eq!(answer("SSH-2.0-OpenSSH_9.2\r\n"), Err(ProxyError::Malformed));
        let lines = "A: b\r\n".repeat(MOST_LINES + 1);
        let long = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        assert_eq!(answer(&long), Err(ProxyError::TooLong));
    }
}
