//! Every script of the project, on neap in virtual time.

use bytes::Bytes;
use neap_script::host::{Host, HostFailure, Reply, SentPacket, SystemCall};
use neap_script::report::Failure;
use neap_script::settings::Settings;
use neap_script::virtual_host::{self, VirtualHost};
use neap_script::{parser, runner};
use neap_tcp::time::Nanos;
use std::fs;
use std::path::{Path, PathBuf};

fn scripts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of scripts") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            scripts(&path, found);
        } else if path.extension().is_some_and(|end| end == "pkt") {
            found.push(path);
        }
    }
}

fn run(text: &str) -> Result<(), Failure> {
    virtual_host::run(&parser::parse(text)?)
}

#[test]
fn all_scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let mut files = Vec::new();
    scripts(&folder, &mut files);
    files.sort();
    assert!(files.len() >= 200, "{} scripts", files.len());
    let mut failures = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).expect("a script");
        if let Err(failure) = run(&text) {
            failures.push(format!("{}:{failure}", file.display()));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

const OPENING: &str = "+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 32792
+0 accept(3, ..., ...) = 4
";

/// What is said about a script that continues `OPENING`.
fn said(rest: &str) -> String {
    run(&format!("{OPENING}{rest}")).expect_err("a failure").to_string()
}

#[test]
fn a_difference_names_its_place_and_what_came_before() {
    let said = said("+0 write(4, ..., 100) = 100\n+0 > . 1:201(200) ack 2 win 5\n");
    assert!(
        said.starts_with("9:1: flags is P., expected .; length is 100, expected 200; ack is 1")
    );
    assert!(said.contains("happened    0.100000  > P. 1:101(100) ack 1 win 64240"), "{said}");
    assert!(said.contains("0.100000  +0 write(4, ..., 100) = 100"), "{said}");
}

#[test]
fn times_are_part_of_what_is_expected() {
    let late = said("+0 write(4, ..., 100) = 100\n+.01 > P. 1:101(100) ack 1\n");
    assert!(late.contains("too early, at    0.100000, not at    0.110000"), "{late}");
    let never = said("+0 > P. 1:101(100) ack 1\n");
    assert!(never.starts_with("8:1: no packet came"), "{never}");
    let any = said("* > P. 1:101(100) ack 1\n");
    assert!(any.starts_with("8:1: no packet came"), "{any}");
    let blocks = said("+0...0.5 read(4, ..., 10) = 10\n+.1 < P. 1:11(10) ack 1 win 100\n");
    assert!(blocks.contains("returned at    0.200000, not    0.600000"), "{blocks}");
    let waits = said("+0 read(4, ..., 10) = 10\n");
    assert!(waits.starts_with("8:1: the call blocks"), "{waits}");
}

#[test]
fn what_nobody_expects_is_a_difference() {
    let unasked = said("+0 write(4, ..., 100) = 100\n");
    assert!(unasked.contains("a packet left that the script does not expect"), "{unasked}");
    let value = said("+0 getsockopt(4, SOL_TCP, TCP_MAXSEG, [999], [4]) = 0\n");
    assert!(value.starts_with("8:1: the value is 1000, expected 999"), "{value}");
    let error = said("+0 listen(4, 1) = 0\n");
    assert!(error.contains("returned -1 EINVAL (Invalid argument), expected 0"), "{error}");
    let info = said("+0 %{ assert tcpi_snd_cwnd == 11 }%\n");
    assert!(info.contains("does not hold: assert tcpi_snd_cwnd == 11"), "{info}");
    assert!(info.contains("tcpi_snd_cwnd = 10"), "{info}");
}

#[test]
fn errors_of_a_script_name_line_and_column() {
    for (text, expected) in [
        ("+0 < S 0:0(0)", "1:6: a segment of the peer needs win"),
        ("+0 < X 0:0(0) win 1", "1:6: expected control bits"),
        ("\n +0 > . 1:5(3) ack 1", "2:11: expected 4, first number and length"),
        ("+0 > P. 1:2(1) ack 1 <mss>", "1:26: expected an integer"),
        ("+0 > P. 1:2(1)", "1:15: ack and the flag . belong together"),
        ("+0 nothing(1) = 0", "1:1: unknown system call nothing"),
        ("+0 socket(1) = 0", "1:1: socket takes 3 arguments"),
        ("+0 listen(3, 1, 5, 7) = 0", "1:1: listen takes 2 arguments"),
        ("+0 fcntl(3) = 0", "1:1: fcntl takes 2 or 3 arguments"),
        ("+0 close() = 0", "1:1: close takes 1 argument"),
        ("+0 close(3) = -1 ENOTHING", "1:15: unknown error ENOTHING"),
        ("--colour=red\n+0 close(3) = 0", "1:1: unknown option --colour"),
        ("`rm -r /`", "1:2: expected sysctl: there is no shell"),
        ("+0 %{ assert tcpi_x == 1 }%", "1:14: unknown name \"tcpi_x\""),
        (
            "`sysctl -q net.ipv4.tcp_nothing=1`\n+0 close(3) = 0",
            "1:2: unknown sysctl net.ipv4.tcp_nothing",
        ),
        ("+1...0.5 close(3) = 0", "a call that ends before it begins"),
        ("", "1:1: a script without events"),
        ("// Nothing\n--mtu=1500\n", "a script without events"),
        ("+0 close(3) = 0\n  /* and so on", "2:3: a comment that does not end"),
        ("/* what\n+0 close(3) = 0", "1:1: a comment that does not end"),
        ("/*/ +0 close(3) = 0", "1:1: a comment that does not end"),
        ("// linux: differ, so\n+0 close(3) = 0", "1:1: expected linux: differs or linux: skip"),
        ("+0 close(3) = 0\n // linux: differs, so", "2:2: no event follows this remark"),
        ("// linux: skip\n+0 close(3) = 0", "1:1: linux: differs and linux: skip need"),
        (
            "# linux: differs, so\n# linux: differs, so\n+0 close(3) = 0",
            "2:1: a script ends at its first difference",
        ),
    ] {
        let said = run(text).expect_err(text).to_string();
        assert!(said.contains(expected), "{text}: {said}");
    }
}

#[test]
fn errors_of_packets_are_found_before_anything_runs() {
    let many = "mss 100,".repeat(11);
    for (text, expected) in [
        (
            format!("+0 < . 1:1(0) ack 1 win 1 <kind 99 {}>", "00".repeat(254)),
            "256 bytes of options",
        ),
        (format!("+0 < S 0:0(0) win 1 <{many}>"), "44 bytes of options, of 40 at most"),
        (format!("+0 > S 0:0(0) <{many}>"), "44 bytes of options"),
        ("+0 < . 1:65501(65500) ack 1 win 1".into(), "65495 bytes at most fit a packet"),
        ("+0 < . 1:65491(65490) ack 1 win 1 <mss 5,nop,nop>".into(), "65487 bytes at most"),
        ("+0 < udp (10)".into(), "1:6: packets are TCP segments or icmp errors, not udp"),
        ("+0 > udp (10)".into(), "1:6: packets are TCP segments or icmp errors, not udp"),
        ("+0 > icmp unreachable port_unreachable [1:11(10)]".into(), "from the peer only"),
    ] {
        let said = parser::parse(&text).expect_err(&text).to_string();
        assert!(said.contains(expected), "{text}: {said}");
    }
    let forty = format!("+0 < S 0:0(0) win 1 <{}>", "mss 100,".repeat(10));
    assert!(parser::parse(&forty).is_ok());
    assert!(parser::parse("+0 < . 1:65496(65495) ack 1 win 1").is_ok());
}

#[test]
fn errors_of_arguments_and_expectations_are_no_less() {
    let address = |rest: &str| format!("bind(3, {{sa_family=AF_INET{rest}}}, ...) = 0");
    let number = "a number or the name of one";
    for (call, expected) in [
        ("getsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=NONSENSE, linger=0}, [8]) = 0", number),
        ("getsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=0, linger=GARBAGE}, [8]) = 0", number),
        ("getsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=0}, [8]) = 0", "onoff and linger"),
        ("getsockopt(3, SOL_SOCKET, SO_LINGER, {off=0, linger=0}, [8]) = 0", "{onoff=..., linger"),
        ("getsockopt(3, SOL_SOCKET, SO_ERROR, [NONSENSE], [4]) = 0", number),
        ("getsockopt(3, SOL_SOCKET, SO_ERROR, [], [4]) = 0", "one value in brackets"),
        ("setsockopt(3, SOL_SOCKET, SO_SNDBUF, [MANY], 4) = 0", number),
        (
            "setsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=1, lingers=0}, 8) = 0",
            "lingers is no field",
        ),
        ("poll([{fd=3, events=POLLOUT, revents=NONSENSE}], 1, 0) = 1", number),
        ("poll([{fd=3, events=POLLOUT, revent=POLLIN}], 1, 0) = 1", "revent is no field here"),
        ("poll([{fd=3, events=0, events=0, revents=0}], 1, 0) = 1", "events comes twice"),
        ("poll([{fd=3, revents=0}], 1, 0) = 1", "expected events"),
        ("poll([{fd=3, events=POLLOUT, revents=POLLOUT}], 77, 0) = 1", "expected 77 of these"),
        ("epoll_wait(3, {events=EPOLLIM, fd=3}, 1, 0) = 1", number),
        ("epoll_wait(3, {events=EPOLLIN, fds=3}, 1, 0) = 1", "fds is no field here"),
        ("epoll_wait(3, ..., 65537, 0) = 1", "65536 events at most"),
        ("epoll_ctl(3, EPOLL_CTL_ADD, 3, {events=EPOLLIN, fd=FOUR}) = 0", number),
        ("ioctl(3, SIOCINQ, [NONE]) = 0", number),
        ("shutdown(3, SHUT_FOO) = 0", number),
        ("read(4, \"abc\", 3) = 3", "expected ..."),
        ("write(4, 7, 3) = 3", "expected ..."),
        ("recv(4, 0, 3, 0) = 3", "expected ..."),
        ("accept(3, 1, ...) = 4", "expected ..."),
        ("writev(4, [{..., 3}, {..., 4}], 3) = 7", "expected 3 of these"),
        ("writev(4, [{\"abc\", 3}], 1) = 3", "expected {..., size}"),
        ("readv(4, [{..., 67108864}, {..., 1}], 2) = 0", "64 MiB at most in all"),
        ("recvmsg(4, {msg_flogs=0, msg_iov(1)=[{..., 1}]}, 0) = 1", "msg_flogs is no field here"),
        ("recvmsg(4, {msg_iov(1)=[{..., 1}], msg_flags=MSG_NONSENSE}, 0) = 1", number),
        ("recvmsg(4, {msg_iov(2)=[{..., 1}]}, 0) = 1", "expected 2 of these"),
        ("recvmsg(4, {msg_name(...)=5, msg_iov(1)=[{..., 1}]}, 0) = 1", "expected ..."),
        (
            "recvmsg(4, {msg_iov(1)=[{..., 1}], msg_control=[{cmsg_level=SOL_SOCKET, \
             cmsg_type=SO_MARK, cmsg_data={}}]}, 0) = 1",
            "IP_RECVERR of SOL_IP",
        ),
        (
            "sendmsg(4, {msg_iov(1)=[{..., 1}], msg_control=[{cmsg_level=SOL_SOCKET, \
             cmsg_type=SO_MARK, cmsg_data={}}]}, 0) = 1",
            "msg_control is no field here",
        ),
        (&address(""), "sin_port"),
        (&address(", sin_port=htons(80)"), "sin_addr"),
        (&address(", sin_port=htons(80000), sin_addr=INADDR_ANY"), "a port"),
        (&address(", sin_port=htons(80), sin_addr=inet_addr(\"::1\")"), "an address of IPv4"),
        (&address(", sin_port=htons(80), sin_addr=\"1.2.3\""), "an address of IPv4"),
        (&address(", sin_prt=htons(80), sin_addr=INADDR_ANY"), "sin_prt is no field here"),
        (
            "bind(3, {sa_family=AF_INET6, sin6_port=80, sin6_addr=\"192.0.2.1\"}, ...) = 0",
            "an address of IPv6",
        ),
        ("bind(3, ..., -1) = 0", "an address of 256 bytes at most"),
        ("connect(3, ..., 257) = 0", "an address of 256 bytes at most"),
    ] {
        let text = format!("+0 socket(..., SOCK_STREAM, 0) = 3\n+0 {call}\n");
        let said = run(&text).expect_err(call).to_string();
        assert!(said.starts_with("2:") && said.contains(expected), "{call}: {said}");
    }
    let many = format!("+0 writev(4, [{}{{..., 1}}], 2049) = 0", "{..., 1}, ".repeat(2048));
    let said = run(&many).expect_err("too many").to_string();
    assert!(said.contains("2048 at most"), "{said}");
}

#[test]
fn a_call_is_made_as_it_is_written() {
    let script = "+0 epoll_create(0) = -1 EINVAL (Invalid argument)
+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., 3) = -1 EINVAL (Invalid argument)
+0 bind(3, {sa_family=AF_INET6, sin6_port=htons(80), sin6_addr=\"::\"}, 28) = -1 EAFNOSUPPORT
+0 connect(3, ..., 15) = -1 EINVAL (Invalid argument)
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS
+0 > S 0:0(0) <...>
+0 connect(3, {sa_family=AF_UNSPEC}, 16) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS
+0 > S 0:0(0) <...>
+0 ioctl(3, FIONBIO, [1]) = 0
";
    if let Err(failure) = run(script) {
        panic!("{failure}");
    }
    // Fails unless the values of a structure are compared.
    let linger = "+0 socket(..., SOCK_STREAM, 0) = 3
+0 setsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=1, linger=5}, 8) = 0
+0 getsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=1, linger=6}, [8]) = 0
";
    let said = run(linger).expect_err("another value").to_string();
    assert!(said.contains("linger is 5, expected 6"), "{said}");
}

#[test]
fn a_remark_names_the_event_where_linux_differs() {
    let at = |text: &str| parser::parse(text).expect(text).differs_on_linux;
    assert_eq!(at("+0 close(3) = 0\n+0 close(4) = 0\n"), None);
    assert_eq!(at("+0 close(3) = 0\n// linux: differs, so\n\n+0 close(4) = 0\n"), Some(4));
    assert_eq!(at("+0 close(3) = 0\n+0 close(4) = 0  # linux: differs, so\n"), Some(2));
}

/// neap where packets seem to leave some microseconds late.
struct Late {
    neap: VirtualHost,
    by: Nanos,
}

impl Host for Late {
    fn now(&self) -> Nanos {
        self.neap.now()
    }

    fn wait(&mut self, until: Nanos) -> Result<(), HostFailure> {
        self.neap.wait(until)
    }

    fn inject(&mut self, packet: Bytes) -> Result<(), HostFailure> {
        self.neap.inject(packet)
    }

    fn take_sent(&mut self) -> Option<SentPacket> {
        self.neap.take_sent().map(|sent| SentPacket { at: sent.at + self.by, ..sent })
    }

    fn call(&mut self, call: SystemCall, will_block: bool) -> Result<Option<Reply>, HostFailure> {
        if matches!(call, SystemCall::Shutdown { .. }) {
            return Err(HostFailure("no more calls".into()));
        }
        self.neap.call(call, will_block)
    }

    fn take_reply(&mut self) -> Option<(Nanos, Reply)> {
        self.neap.take_reply()
    }

    fn set_clock_back(&mut self, _by: Nanos) -> Nanos {
        Nanos::ZERO
    }

    fn slack(&self, _span: Nanos) -> Nanos {
        Nanos::ZERO
    }
}

/// How a script ends on [`Late`].
fn on_a_late_host(rest: &str) -> Failure {
    let text = format!("{OPENING}{rest}");
    let script = parser::parse(&text).expect("a script");
    let settings = Settings::new(&script).expect("settings");
    let neap = VirtualHost::new(&settings).expect("a host");
    let mut host = Late { neap, by: Nanos::from_micros(90) };
    runner::run(&script, &settings, &mut host).expect_err("a failure")
}

#[test]
fn history_goes_forwards_though_the_host_is_late() {
    let said =
        on_a_late_host("+0 write(4, ..., 100) = 100\n+0 > P. 1:101(100) ack 1\n+0 close(9) = 0");
    let said = said.to_string();
    let (_, before) = said.split_once("before:\n").expect("a history");
    let times: Vec<f64> = before
        .lines()
        .map(|line| line.split_whitespace().next().and_then(|time| time.parse().ok()))
        .map(|time| time.expect("a time"))
        .collect();
    assert!(times.len() > 8 && times.is_sorted(), "{said}");
    assert!(before.contains("0.100000  > P. 1:101(100) ack 1"), "at the script's time: {said}");
}

#[test]
fn a_host_that_cannot_go_on_says_where() {
    let failure = on_a_late_host("+0 shutdown(4, SHUT_WR) = 0");
    assert_eq!(failure.place().map(|at| (at.line, at.column)), Some((8, 1)));
    assert_eq!(failure.to_string(), "8:1: the host cannot go on: no more calls");
}

#[test]
fn no_text_makes_the_parser_panic() {
    for text in [OPENING, "+0 sendmsg(4, {msg_iov(1)=[{..., 5}]}, 0) = 5", "--mtu=1500\n/* x"] {
        for cut in 0..text.len() {
            let _ = parser::parse(&text[..cut]);
            let _ = parser::parse(&text[cut..]);
            let _ = run(&text.replacen(&text[cut..=cut], "}", 1));
        }
    }
}
