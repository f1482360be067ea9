//! The parser of scripts on arbitrary text: a value or an error, at once.
//!
//! `cargo test` runs it for a few seconds; docs/fuzzing.md tells of more.

use neap_script::{parser, settings::Settings};
use std::time::Duration;

const TIME: Duration = Duration::from_secs(1);

#[test]
fn scripts() {
    bolero::check!().with_test_time(TIME).with_max_len(2000).for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(script) = parser::parse(&text) {
            let _ = Settings::new(&script);
        }
    });
}
