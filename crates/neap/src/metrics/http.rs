//! The few words of HTTP/1.1 that a scraper needs (RFC 9112).

/// Headers that a request may have.
const MOST_HEADERS: usize = 64;

/// The text format, with its version.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Text for people.
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// What a peer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A page, with GET or with HEAD.
    Page { path: String, with_body: bool },
    /// Another method.
    OtherMethod,
    /// What no client of HTTP says.
    Nonsense,
}

/// The request, if it is whole.
pub(super) fn asked(received: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(received) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(Asked::Nonsense),
    }
    let path = path(request.path.unwrap_or_default());
    Some(match request.method {
        Some(method @ ("GET" | "HEAD")) => {
            Asked::Page { path: path.to_owned(), with_body: method == "GET" }
        }
        _ => Asked::OtherMethod,
    })
}

/// The path of what is asked for, which a client may write with scheme and authority (RFC 9112
/// section 3.2.2).
fn path(target: &str) -> &str {
    let target = target.split_once('?').map_or(target, |(target, _)| target);
    let is_http =
        |scheme: &str| ["http", "https"].iter().any(|own| own.eq_ignore_ascii_case(scheme));
    match target.split_once("://") {
        Some((scheme, rest)) if is_http(scheme) => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => target,
    }
}

/// The response with these metrics.
pub(super) fn ok(text: &str, with_body: bool) -> Vec<u8> {
    response("200 OK", OPEN_METRICS, text, with_body)
}

/// A response with a page of text.
pub(super) fn page(status: u16, text: &str, with_body: bool) -> Vec<u8> {
    let status = match status {
        200 => "200 OK".to_owned(),
        503 => "503 Service Unavailable".to_owned(),
        other => format!("{other} Other"),
    };
    response(&status, PLAIN_TEXT, text, with_body)
}

/// A response that says why there is no page.
pub(super) fn refuse(status: &str, why: &str, with_body: bool) -> Vec<u8> {
    response(status, PLAIN_TEXT, &format!("{why}\n"), with_body)
}

fn response(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let length = body.len();
    let body = if with_body { body } else { "" };
    // 405 has to say which methods there are.
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Allow: GET, HEAD\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let ask = |text: &str| asked(text.as_bytes());
        let page = |path: &str, with_body| Some(Asked::Page { path: path.to_owned(), with_body });
        assert_eq!(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), page("/metrics", true));
        assert_eq!(ask("GET /metrics?a=b HTTP/1.0\r\n\r\n"), page("/metrics", true));
        assert_eq!(ask("HEAD /metrics HTTP/1.1\r\n\r\n"), page("/metrics", false));
        assert_eq!(ask("GET / HTTP/1.1\r\n\r\n"), page("/", true));
        for (target, path) in [
            ("http://x/metrics", "/metrics"),
            ("HTTP://[::1]:9100/metrics?a=/b", "/metrics"),
            ("http://x", "/"),
            ("http://x?a=/b", "/"),
            ("/a://b", "/a://b"),
            ("ftp://x/metrics", "ftp://x/metrics"),
        ] {
            assert_eq!(ask(&format!("GET {target} HTTP/1.1\r\n\r\n")), page(path, true));
        }
        assert_eq!(ask("PUT /metrics HTTP/1.1\r\n\r\n"), Some(Asked::OtherMethod));
        assert_eq!(ask("\u{1}\u{2}\r\n\r\n"), Some(Asked::Nonsense));
    }
}
