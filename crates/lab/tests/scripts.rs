//! Every script of the project, on neap in virtual time.

use neap_lab::script::neap_host::Neap;
use neap_lab::script::report::Failure;
use neap_lab::script::settings::Settings;
use neap_lab::script::{parser, runner};
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
    let script = parser::parse(text)?;
    let settings = Settings::new(&script.options, &script.sysctls)?;
    runner::run(&script, &settings, &mut Neap::new(&settings)?)
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
        ("+0 close(3) = -1 ENOTHING", "1:15: unknown error ENOTHING"),
        ("--colour=red", "1:1: unknown option --colour"),
        ("`rm -r /`", "1:2: expected sysctl: there is no shell"),
        ("`sysctl -q net.ipv4.tcp_nothing=1`", "unknown sysctl net.ipv4.tcp_nothing"),
        ("+0 %{ assert tcpi_x == 1 }%", "1:14: unknown name \"tcpi_x\""),
        ("+1...0.5 close(3) = 0", "a call that ends before it begins"),
    ] {
        let said = run(text).expect_err(text).to_string();
        assert!(said.contains(expected), "{text}: {said}");
    }
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
