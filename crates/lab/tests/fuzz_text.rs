//! Every parser of text on arbitrary text: a value or an error, at once.
//!
//! `cargo test` runs it for a few seconds; docs/fuzzing.md tells of more.

use neap_lab::link::Trace;
use neap_lab::scenario::Experiment;
use neap_stack::interface::Address;
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::route::Prefix;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(1);

#[test]
fn scenarios() {
    bolero::check!().with_test_time(TIME).with_max_len(2000).for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let files = |_: &str| Ok("1\n2\n".to_owned());
        let _ = Experiment::parse("fuzz.toml", &text, &files);
    });
}

#[test]
fn values() {
    bolero::check!().with_test_time(TIME).with_max_len(200).for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let _ = Trace::parse(&text);
        if let Ok(address) = text.parse::<Address>() {
            assert!(address.prefix.contains(address.ip));
        }
        // What was understood can be said again, and means the same.
        if let Ok(prefix) = text.parse::<Prefix>() {
            assert_eq!(prefix.to_string().parse::<Prefix>().ok(), Some(prefix));
        }
        let _ = text.parse::<QdiscConfig>();
    });
}
