//! The examples of `docs/extending` run, and show what they say.

#[path = "../examples/clock.rs"]
mod clock;
#[path = "../examples/controller.rs"]
mod controller;
#[path = "../examples/device.rs"]
mod device;
#[path = "../examples/qdisc.rs"]
mod qdisc;

use neap::{BuildError, Builder, SocketOption, Stack, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;

/// A stack on a device that nobody is at the other end of.
fn builder() -> Builder {
    let (end, _) = UnixDatagram::pair().expect("sockets");
    let device = device::device("end", end).expect("a device");
    Stack::builder().device(device).address("10.1.0.1/24")
}

#[test]
fn a_running_stack_takes_what_a_user_brings_by_name() {
    let stack = builder()
        .congestion_control("gentle", || Box::new(controller::Gentle))
        .qdisc_kind("short_first", qdisc::short_first)
        .qdisc("short_first")
        .build()
        .expect("a stack");
    let name = "net.ipv4.tcp_congestion_control";
    let available = stack.sysctl("net.ipv4.tcp_available_congestion_control").expect("a name");
    assert_eq!(available, "reno cubic bbr bbr3 gentle");
    let listener = TcpListener::bind(&stack, "127.0.0.1:80").expect("a free port");
    let connect = || TcpStream::connect(&stack, "127.0.0.1:80").expect("somebody listens");
    let first = connect();
    first.set_option(SocketOption::Congestion("gentle".into())).expect("it is there");
    assert_eq!(first.info().congestion, "gentle");
    let second = connect();
    stack.set_sysctl(name, "gentle").expect("it is there");
    assert_eq!(second.info().congestion, "cubic", "it was open before");
    assert_eq!(connect().info().congestion, "gentle");
    assert_eq!(
        stack.set_sysctl(name, "vegas").expect_err("unknown").to_string(),
        format!("{name}: \"vegas\" is not one of reno, cubic, bbr, bbr3, gentle")
    );
    assert_eq!(stack.sysctl(name).as_deref(), Ok("gentle"));
    let end = stack.host().interfaces()[0].id;
    stack.set_qdisc(end, "fq").expect("built in");
    stack.set_qdisc(end, "short_first").expect("registered");
    let unknown = stack.set_qdisc(end, "red").expect_err("unknown").to_string();
    assert!(unknown.contains("there are short_first, pfifo_fast"), "{unknown}");
    drop(listener);
}

#[test]
fn what_a_user_brings_may_not_take_a_name_that_is_there() {
    let built = builder().congestion_control("cubic", || Box::new(controller::Gentle)).build();
    let error = built.expect_err("the name is taken");
    assert!(matches!(error, BuildError::CongestionControl(_)));
    assert_eq!(error.to_string(), "congestion control name \"cubic\" is taken: choose another one");
    let built = builder().qdisc_kind("fq", qdisc::short_first).build();
    let error = built.expect_err("the name is taken").to_string();
    assert_eq!(error, "qdisc: a qdisc \"fq\" is there already: choose another name");
}

#[test]
fn a_controller_of_ones_own_is_chosen_by_name() {
    controller::main().expect("a sound example");
}

#[test]
fn a_qdisc_of_ones_own_is_set_by_name() {
    qdisc::main().expect("a sound example");
}

#[test]
fn a_device_of_ones_own_carries_a_connection() {
    device::main().expect("a sound example");
}

#[test]
fn a_stack_without_threads_goes_by_any_clock() {
    clock::main().expect("a sound example");
}

#[test]
fn each_example_is_shorter_than_a_hundred_lines() {
    let examples = [
        include_str!("../examples/clock.rs"),
        include_str!("../examples/controller.rs"),
        include_str!("../examples/device.rs"),
        include_str!("../examples/qdisc.rs"),
    ];
    for text in examples {
        let lines = text.lines().count();
        assert!(lines < 100, "{lines} lines: {}", text.lines().next().unwrap_or_default());
    }
}
