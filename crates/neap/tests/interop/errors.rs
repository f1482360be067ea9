//! What is missing or wrong is said, with what to do about it.

use std::thread;

use neap::Stack;
use neap::device::{Packet, PacketConfig};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::common::{Family, in_namespace, run, skip};

/// Runs in a thread that has given up all rights.
fn as_nobody<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let nobody = Uid::from_raw(65_534);
            // The effective capabilities go with the user.
            set_thread_res_uid(nobody, nobody, nobody).ok()?;
            Some(f())
        });
        thread.join().expect("no panic")
    })
}

fn refusal(stack: Result<Stack, neap::BuildError>) -> String {
    stack.expect_err("refused").to_string()
}

fn expect_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}

#[test]
fn a_missing_privilege_says_how_to_get_it() {
    in_namespace(|| {
        run("ip link add v0 type veth peer name v1");
        run("ip link set v0 up");
        let answers = as_nobody(|| {
            let tun = Stack::builder().tun("t0", "10.9.0.1/24").address("10.9.0.2/24").build();
            let packet = Packet::open(&PacketConfig::new("v0"));
            (refusal(tun), packet.expect_err("refused").to_string())
        });
        let Some((tun, packet)) = answers else { return skip("no right to become another user") };
        expect_words(&tun, &["CAP_NET_ADMIN", "run as root", "unshare -rn"]);
        expect_words(&packet, &["CAP_NET_RAW", "run as root", "unshare -rn"]);
    });
}

#[test]
fn a_missing_device_is_named() {
    in_namespace(|| {
        let absent = Packet::open(&PacketConfig::new("absent0")).expect_err("no such interface");
        expect_words(&absent.to_string(), &["absent0", "ip link"]);
        run("ip link add v0 type veth peer name v1");
        let down = Packet::open(&PacketConfig::new("v0")).expect_err("down");
        expect_words(&down.to_string(), &["v0 is down", "ip link set v0 up"]);
        let loopback = Packet::open(&PacketConfig::new("lo")).expect_err("no Ethernet");
        expect_words(&loopback.to_string(), &["lo is not an Ethernet interface"]);
        let occupied = Family::V4.stack();
        let busy = Stack::builder().tun("t0", "10.9.0.1/24").address("10.9.0.2/24").build();
        expect_words(&refusal(busy), &["t0 is in use", "another name"]);
        drop(occupied);
        let bad = Stack::builder().tun("a/b", "10.9.0.1/24").address("10.9.0.2/24").build();
        expect_words(&refusal(bad), &["a/b", "cannot name an interface"]);
        let none = Stack::builder().address("10.9.0.2/24").build();
        expect_words(&refusal(none), &["needs a device", "Builder::tun"]);
    });
}

#[test]
fn a_bad_address_shows_a_good_one() {
    in_namespace(|| {
        for address in ["10.9.0.2", "10.9.0.2/33", "10.9.0/24", "fd00::2/129", "224.0.0.1/4", ""] {
            let stack = Stack::builder().tun("t0", "10.9.0.1/24").address(address).build();
            let text = refusal(stack);
            expect_words(&text, &[&format!("{address:?}"), "10.9.0.2/24"]);
        }
        let stack = Stack::builder().tun("t0", "10.9.0.1").address("10.9.0.2/24").build();
        expect_words(&refusal(stack), &["10.9.0.1", "10.9.0.2/24"]);
    });
}

#[test]
fn a_bad_sysctl_is_named_with_what_it_takes() {
    let refused = |name, value| refusal(Stack::builder().sysctl(name, value).build());
    expect_words(&refused("net.ipv4.tcp_wmen", "1"), &["unknown sysctl net.ipv4.tcp_wmen"]);
    expect_words(&refused("net.ipv4.tcp_sack", "yes"), &["net.ipv4.tcp_sack", "yes", "0 or 1"]);
    expect_words(&refused("net.ipv4.tcp_wmem", "4096"), &["net.ipv4.tcp_wmem", "three sizes"]);
    let control = refused("net.ipv4.tcp_congestion_control", "bbrr");
    expect_words(&control, &["bbrr", "congestion control"]);
}
