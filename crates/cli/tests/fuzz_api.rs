//! Requests of the API socket of the slirp4netns face from arbitrary bytes: a request or a reason,
//! at once, and the same whether the bytes come in one piece or in several.
//!
//! `cargo test` runs it for a second; docs/fuzzing.md tells of more.

#[path = "../src/slirp4netns/request.rs"]
mod request;

use request::{MOST_BYTES, Received, Request, receive};
use std::net::Ipv4Addr;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

#[test]
fn api() {
    bolero::check!().with_test_time(TIME).with_max_len(4200).for_each(|bytes: &[u8]| {
        let half = receive(&bytes[..bytes.len() / 2], false);
        let all = receive(bytes, true);
        assert_ne!(all, Received::Part, "there is no more to wait for");
        assert!(bytes.len() < MOST_BYTES || matches!(all, Received::Nonsense(_)));
        if matches!(all, Received::Value(_)) {
            // Spaces and digits may come behind a value.
            assert!(!matches!(half, Received::Nonsense(_)), "{half:?}");
        }
        let Received::Value(value) = all else { return };
        if let Ok(Request::Add(publication)) = Request::parse(&value, GUEST, GATEWAY) {
            assert!(publication.guest.is_ipv4() && publication.guest.port() > 0);
            assert!(publication.port.port() > 0);
        }
    });
}
