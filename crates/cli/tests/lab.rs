//! `neap lab`, `run` and `sweep`, as a user calls them, through pipes and in a terminal.

#[path = "common/terminal.rs"]
mod terminal;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use terminal::{Shows, in_terminal};

const SCENARIO: &str = r#"about = "a transfer over a slow link"
duration = "300ms"
[host.a]
[host.b]
[link.wire]
ends = ["a", "b"]
rate = "10mbit"
delay = "5ms"
[app.file]
kind = "transfer"
from = "a"
to = "b"
bytes = "20k"
[[expect]]
figure = "app.file.finished"
at_least = 1
[sweep]
"link.wire.rate" = ["5mbit", "10mbit"]
"link.wire.loss" = ["0%", "2%"]
"#;

/// A folder of one test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("neap-lab-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder for temporary files");
        fs::write(path.join("slow.toml"), SCENARIO).expect("room on the disk");
        Self(path)
    }

    /// neap in this folder. What it keeps for itself is beside the folder.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.current_dir(&self.0).env("XDG_STATE_HOME", self.state());
        command.env_remove("NO_COLOR").arg("lab").args(arguments);
        command
    }

    fn neap(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("neap runs")
    }

    fn state(&self) -> PathBuf {
        self.0.with_extension("state")
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).expect("the file is there")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = fs::remove_dir_all(self.state());
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_was() {
    let folder = Folder::new("sweep");
    let mut arguments = vec!["sweep", "slow.toml", "--out", "slow.jsonl"];
    if cfg!(feature = "parquet") {
        arguments.extend(["--parquet", "slow.parquet"]);
    }
    let first = folder.neap(&arguments);
    assert!(first.status.success(), "{}{}", text(&first.stdout), text(&first.stderr));
    let table = cfg!(feature = "parquet").then(|| folder.read("slow.parquet"));
    assert!(table.iter().all(|table| table.starts_with(b"PAR1") && table.ends_with(b"PAR1")));
    let lines: Vec<String> = text(&folder.read("slow.jsonl")).lines().map(Into::into).collect();
    assert_eq!(lines.len(), 4);
    // Two are whole, the third was being written; one of another text is not taken, and stays.
    let other = lines[3].replace("\"scenario\":\"", "\"scenario\":\"0");
    let broken = format!("{}\n{other}\n{}\n{}", lines[0], lines[1], &lines[2][..40]);
    fs::write(folder.0.join("slow.jsonl"), broken).expect("room on the disk");
    let second = folder.neap(&arguments);
    assert!(text(&second.stderr).contains("2 of 4 runs are in slow.jsonl"));
    assert_eq!(text(&first.stdout), text(&second.stdout));
    let again: Vec<String> = text(&folder.read("slow.jsonl")).lines().map(Into::into).collect();
    // What was there comes first, as it was.
    assert_eq!(again.len(), 5);
    assert_eq!(again[..3], [lines[0].clone(), other, lines[1].clone()]);
    assert!(table.is_none_or(|table| folder.read("slow.parquet") == table));
}

#[test]
fn a_run_prints_the_same_figures_every_time_and_fails_with_its_expectations() {
    let folder = Folder::new("run");
    let run = |arguments: &[&str]| folder.neap(arguments);
    let (first, second) = (run(&["run", "slow.toml"]), run(&["run", "slow.toml"]));
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert_eq!(first.stdout, second.stdout);
    assert!(text(&first.stdout).contains("hash of the run: "));
    let json = run(&["run", "slow.toml", "--json", "--series"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert!(value["figures"]["app.file.transfer_ms"].as_f64().expect("a number") > 20.0);
    assert_eq!(value["series"]["rows"].as_array().expect("rows").len(), 1000);
    let strict = SCENARIO.replace("at_least = 1", "at_least = 2");
    fs::write(folder.0.join("strict.toml"), strict).expect("room on the disk");
    assert!(!run(&["run", "strict.toml"]).status.success());
}

#[test]
fn a_fault_of_a_file_is_told_with_its_place() {
    let folder = Folder::new("fault");
    let wrong = SCENARIO.replace("delay = \"5ms\"", "delay = 5");
    fs::write(folder.0.join("wrong.toml"), wrong).expect("room on the disk");
    let output = folder.neap(&["run", "wrong.toml"]);
    let error = text(&output.stderr);
    assert!(!output.status.success() && error.contains("wrong.toml:8: delay: "), "{error}");
    let missing = text(&folder.neap(&["run", "nothing"]).stderr);
    assert!(missing.contains("neap lab list"), "{missing}");
}

#[test]
fn a_page_needs_nothing_else_and_changes_no_figure() {
    let folder = Folder::new("page");
    let plain = folder.neap(&["run", "slow.toml"]);
    let page = |name: &str| {
        let output = folder.neap(&["run", "slow.toml", "--html", name]);
        assert_eq!(output.stdout, plain.stdout, "{}", text(&output.stderr));
        text(&folder.read(name))
    };
    let (first, second) = (page("first.html"), page("second.html"));
    assert_eq!(first, second);
    for outside in ["src=", "href=", "url(", "@import", "https:"] {
        assert!(!first.contains(outside), "the page has {outside}");
    }
    for chart in ["Delay below", "Where the bytes of file are", "What held file", "Wake-ups"] {
        assert!(first.contains(chart), "no chart {chart}");
    }
    assert!(first.contains("The flow got") && !first.contains("NaN"));
}

#[test]
fn the_page_of_a_sweep_has_all_runs_also_those_that_were_done() {
    let folder = Folder::new("sweep-page");
    let sweep = |more: &[&str]| {
        let output = folder.neap(&[&["sweep", "slow.toml", "--out", "slow.jsonl"], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let (plain, lines) = (sweep(&[]), folder.read("slow.jsonl"));
    assert_eq!(sweep(&["--html", "page.html"]), plain);
    assert_eq!(folder.read("slow.jsonl"), lines, "no result is there twice");
    let page = text(&folder.read("page.html"));
    for name in ["0%, 5mbit", "0%, 10mbit", "2%, 5mbit", "2%, 10mbit"] {
        assert!(page.contains(&format!("\"name\":\"{name}\"")), "no run {name}");
    }
    assert!(page.contains("app.file.finished"));
}

/// What the capture says of each packet: where it left, and the comment.
fn packets(file: &[u8]) -> Vec<(u32, Option<String>)> {
    use pcap_file::pcapng::PcapNgReader;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;

    let mut reader = PcapNgReader::new(file).expect("a capture");
    let mut packets = Vec::new();
    let mut last = std::time::Duration::ZERO;
    while let Some(block) = reader.next_block() {
        let Some(packet) = block.expect("a sound block").into_enhanced_packet() else { continue };
        assert!(packet.timestamp >= last, "packets are in the order of time");
        last = packet.timestamp;
        assert!(packet.data.len() <= packet.original_len as usize);
        let comment = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Comment(text) => Some(text.to_string()),
            _ => None,
        });
        packets.push((packet.interface_id, comment));
    }
    packets
}

#[test]
fn packets_tell_what_their_flow_looked_like() {
    let folder = Folder::new("packets");
    let plain = folder.neap(&["run", "slow.toml"]);
    let output = folder.neap(&["run", "slow.toml", "--pcapng", "slow.pcapng"]);
    assert_eq!(output.stdout, plain.stdout, "{}", text(&output.stderr));
    let wrote =
        "wrote slow.pcapng: packets of slow.toml; 2 interfaces, one for each end of a link\n";
    assert_eq!(text(&output.stderr), wrote);
    let file = folder.read("slow.pcapng");
    let packets = packets(&file);
    let from = |end: u32| packets.iter().filter(move |(own, _)| *own == end);
    // SYN, 15 segments of 20 kB and the FIN; SYN-ACK and ACKs.
    assert!(from(0).count() >= 15 && from(1).count() >= 8, "{}", packets.len());
    let tells = |words: &str| {
        from(0).any(|(_, comment)| comment.as_ref().is_some_and(|text| text.contains(words)))
    };
    assert!(tells("cwnd 10 segments") && tells("blocked by SmallQueue") && tells("device "));

    let path = folder.0.join("slow.pcapng");
    let Ok(tshark) = Command::new("tshark").args(["-n", "-r"]).arg(path).output() else {
        return writeln!(std::io::stderr(), "SKIP: no tshark").expect("stderr");
    };
    assert!(tshark.status.success(), "{}", text(&tshark.stderr));
    let shown = text(&tshark.stdout);
    assert_eq!(shown.lines().count(), packets.len());
    assert!(shown.contains("[SYN, ACK]") && !shown.contains("Malformed"), "{shown}");
}

#[test]
fn a_comparison_measures_or_says_what_is_missing() {
    let folder = Folder::new("compare");
    let arguments = ["compare", "--seconds", "2", "--mbit", "100", "--json"];
    let output = folder.neap(&arguments);
    let error = text(&output.stderr);
    if output.stdout.is_empty() {
        assert!(!output.status.success() && error.contains("neap lab: "), "{error}");
        return writeln!(std::io::stderr(), "SKIP: {}", error.trim()).expect("stderr");
    }
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let flows = all["flows"].as_array().expect("a list");
    assert_eq!(flows.len(), 2, "{all}");
    for one in flows {
        assert_eq!(one["judged"].as_array().map(Vec::len), Some(5), "{one}");
        // No figure of the real machine is promised here, only that the flow was seen.
        let measured = &one["measured"];
        assert!(measured["goodput_mbit"].as_f64().expect("a number") > 1.0, "{one}");
        assert!(measured["rtt_ms"].as_f64().expect("a number") > 0.0, "{one}");
    }
}

const TWO_LINKS: &str = r#"about = "a transfer over two links"
duration = "300ms"
[host.a]
[host.b]
[router.r]
[link.near]
ends = ["a", "r"]
rate = "10mbit"
[link.far]
ends = ["r", "b"]
rate = "10mbit"
[app.file]
kind = "transfer"
from = "a"
to = "b"
bytes = "20k"
"#;

/// What is in the folder beside the scenario.
fn left(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(&folder.0).expect("the folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "slow.toml");
    names.sort();
    names
}

#[test]
fn packets_of_all_links_are_in_the_file_that_was_named() {
    let folder = Folder::new("links");
    fs::write(folder.0.join("slow.toml"), TWO_LINKS).expect("room on the disk");
    let output = folder.neap(&["run", "slow.toml", "--pcapng", "all.out"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(left(&folder), ["all.out"]);
    let packets = packets(&folder.read("all.out"));
    let ends: std::collections::BTreeSet<u32> = packets.iter().map(|(end, _)| *end).collect();
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn packets_of_links_that_the_file_does_not_have_are_captured() {
    let folder = Folder::new("chosen");
    let output = folder.neap(&[
        "run",
        "slow.toml",
        "--pcapng",
        "all.out",
        "--set",
        "router.r={}",
        "--set",
        "link.wire.ends=[\"a\", \"r\"]",
        "--set",
        "link.last={ ends = [\"r\", \"b\"], rate = \"10mbit\", delay = \"5ms\" }",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let packets = packets(&folder.read("all.out"));
    let ends: std::collections::BTreeSet<u32> = packets.iter().map(|(end, _)| *end).collect();
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn a_path_that_cannot_be_written_is_told_before_anything_runs() {
    let folder = Folder::new("paths");
    fs::create_dir(folder.0.join("dir")).expect("room on the disk");
    let wrong: [(&[&str], &str); 10] = [
        (&["run", "slow.toml", "--html", "no/x.html"], "cannot write no/x.html: No such file"),
        (&["run", "slow.toml", "--pcapng", "no/x"], "cannot write no/x: No such file"),
        (&["run", "slow.toml", "--html", "dir"], "cannot write dir: Is a directory"),
        (&["run", "slow.toml", "--html", "x", "--pcapng", "x"], "cannot write x: two options"),
        (&["--html", "no/x.html"], "cannot write no/x.html: No such file"),
        (&["--pcapng", "no/x"], "cannot write no/x: No such file"),
        (&["sweep", "slow.toml", "--out", "no/x"], "cannot write no/x: No such file"),
        (&["sweep", "slow.toml", "--out", "dir"], "cannot write dir: Is a directory"),
        (&["sweep", "slow.toml", "--html", "no/x"], "cannot write no/x: No such file"),
        (&["swarm", "--seeds", "1", "--save", "slow.toml"], "cannot write slow.toml: "),
    ];
    for (arguments, expected) in wrong {
        let output = folder.neap(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?} has run");
    }
}

#[test]
fn a_full_device_is_an_error_and_nothing_else_is_written() {
    let folder = Folder::new("full");
    fs::write(folder.0.join("slow.toml"), TWO_LINKS).expect("room on the disk");
    let before = fs::read_dir("/dev").expect("/dev").count();
    for option in ["--html", "--pcapng"] {
        let output = folder.neap(&["run", "slow.toml", option, "/dev/full"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option}: {said}");
        assert!(said.contains("cannot write /dev/full: No space left"), "{said}");
    }
    fs::write(folder.0.join("slow.toml"), SCENARIO).expect("room on the disk");
    let output = folder.neap(&["sweep", "slow.toml", "--out", "/dev/full"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot write /dev/full: No space left"), "{said}");
    assert_eq!(fs::read_dir("/dev").expect("/dev").count(), before);
    assert!(left(&folder).is_empty());
}

#[test]
fn the_results_of_a_sweep_go_where_they_shall() {
    let folder = Folder::new("out");
    let output = folder.neap(&["sweep", "slow.toml", "--out", "results.v1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(left(&folder), ["results.v1"]);
    assert_eq!(text(&folder.read("results.v1")).lines().count(), 4);
}

#[test]
fn a_run_that_fails_leaves_an_earlier_page_as_it_was() {
    let folder = Folder::new("earlier");
    fs::write(folder.0.join("page.html"), "earlier").expect("room on the disk");
    fs::write(folder.0.join("wrong.toml"), "about = 1").expect("room on the disk");
    let output = folder.neap(&["run", "wrong.toml", "--html", "page.html"]);
    assert!(!output.status.success());
    assert_eq!(text(&folder.read("page.html")), "earlier");
}

#[test]
fn a_sweep_leaves_nothing_where_one_stands() {
    let folder = Folder::new("nothing");
    let output = folder.neap(&["sweep", "slow.toml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(left(&folder).is_empty(), "{:?}", left(&folder));
    // It says where it keeps what is done, and takes it away in the end.
    let sweeps = folder.state().join("neap/sweeps");
    let said = text(&output.stderr);
    assert!(said.contains(&sweeps.display().to_string()), "{said}");
    assert_eq!(fs::read_dir(&sweeps).expect("the folder").count(), 0);

    // What an interrupted sweep left there is not run again.
    let kept = folder.neap(&["sweep", "slow.toml", "--out", "kept"]);
    assert!(kept.status.success());
    let kept = text(&folder.read("kept"));
    let line: serde_json::Value =
        serde_json::from_str(kept.lines().next().expect("a line")).expect("JSON");
    let name = format!("slow-{}.jsonl", line["scenario"].as_str().expect("a hash"));
    let two: String = kept.split_inclusive('\n').take(2).collect();
    fs::write(sweeps.join(&name), two).expect("room on the disk");
    let again = folder.neap(&["sweep", "slow.toml"]);
    assert!(text(&again.stderr).contains("2 of 4 runs are in "), "{}", text(&again.stderr));
    assert_eq!(again.stdout, output.stdout);
    assert!(!sweeps.join(name).exists());
}

#[test]
fn results_of_another_program_are_not_taken() {
    let folder = Folder::new("build");
    assert!(folder.neap(&["sweep", "slow.toml", "--out", "kept"]).status.success());
    let other = text(&folder.read("kept")).replace("\"build\":\"", "\"build\":\"0.0.1-");
    fs::write(folder.0.join("kept"), other).expect("room on the disk");
    let again = folder.neap(&["sweep", "slow.toml", "--out", "kept"]);
    assert!(!text(&again.stderr).contains("of 4 runs"), "{}", text(&again.stderr));
    // They stay, as does what is no result at all.
    let kept = text(&folder.read("kept"));
    let count = |build: &str| kept.lines().filter(|line| line.contains(build)).count();
    assert_eq!((kept.lines().count(), count("\"build\":\"0.0.1-")), (8, 4));
    fs::write(folder.0.join("notes.txt"), "hello\nand more").expect("room on the disk");
    assert!(folder.neap(&["sweep", "slow.toml", "--out", "notes.txt"]).status.success());
    let notes = text(&folder.read("notes.txt"));
    assert!(notes.starts_with("hello\nand more\n{") && notes.lines().count() == 6, "{notes}");
}

#[test]
#[cfg(feature = "parquet")]
fn results_are_kept_until_all_is_written() {
    let folder = Folder::new("table");
    let output = folder.neap(&["sweep", "slow.toml", "--parquet", "/dev/full"]);
    assert!(!output.status.success());
    let again = folder.neap(&["sweep", "slow.toml"]);
    assert!(text(&again.stderr).contains("4 of 4 runs are in "), "{}", text(&again.stderr));
}

#[test]
fn a_reader_that_leaves_changes_no_exit_status() {
    let folder = Folder::new("unread");
    let strict = SCENARIO.replace("at_least = 1", "at_least = 2");
    fs::write(folder.0.join("strict.toml"), strict).expect("room on the disk");
    let unread = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        folder.command(arguments).stdout(writer).output().expect("neap runs")
    };
    for (arguments, status) in [
        (&["run", "strict.toml"] as &[&str], 1),
        (&["run", "strict.toml", "--json"], 1),
        (&["sweep", "strict.toml", "--out", "kept"], 1),
        (&["run", "slow.toml"], 0),
        (&["run", "slow.toml", "--json"], 0),
        (&["list"], 0),
    ] {
        let output = unread(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert_eq!(said, "", "{arguments:?}");
    }
}

#[test]
fn a_sweep_without_a_place_for_its_results_says_what_to_do() {
    let folder = Folder::new("placeless");
    let mut command = folder.command(&["sweep", "slow.toml"]);
    let output = command.env_remove("XDG_STATE_HOME").env_remove("HOME").output();
    let output = output.expect("neap runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--out FILE"), "{}", text(&output.stderr));
    let mut command = folder.command(&["sweep", "slow.toml"]);
    let output = command.env("XDG_STATE_HOME", folder.0.join("slow.toml")).output();
    let output = output.expect("neap runs");
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{said}");
    assert!(said.contains("cannot write ") && said.contains("--out FILE"), "{said}");
}

const STORY: &str = r#"
[story]
heading = "A slow link"
sentence = "A file takes {before} ms over five megabits and {neap} ms over ten, which is {before/neap} times as fast."
what = "time of the file"
unit = "ms"
figure = "app.file.transfer_ms"
when = { "link.wire.loss" = "0%" }
bar = [
  { label = "5 Mbit/s", role = "before", when = { "link.wire.rate" = "5mbit" } },
  { label = "10 Mbit/s", role = "neap", when = { "link.wire.rate" = "10mbit" } },
]
"#;

/// What the escape sequences of a terminal leave of a text.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| out.push_str(part.split_once('m').expect("a colour ends").1));
    out
}

#[test]
fn a_chart_has_the_width_and_the_colours_of_its_terminal() {
    let folder = Folder::new("terminal");
    fs::write(folder.0.join("slow.toml"), format!("{SCENARIO}{STORY}")).expect("room on the disk");
    let arguments = ["sweep", "slow.toml"];
    let piped = text(&folder.neap(&arguments).stdout);
    assert!(!piped.contains('\u{1b}') && piped.contains("A slow link\n"), "{piped}");
    let chart = |text: &str| {
        let lines = text.lines().skip_while(|line| *line != "A slow link");
        lines.take_while(|line| !line.contains("link.wire")).map(str::to_owned).collect::<Vec<_>>()
    };
    for (columns, widest) in [(40, 60), (60, 60), (80, 80), (120, 110)] {
        let (shown, status) = in_terminal(folder.command(&arguments), columns, Shows::Output);
        assert!(status.success() && shown.contains("\u{1b}[1mA slow link"), "{shown}");
        let lines = chart(&plain(&shown));
        let width = lines.iter().map(|line| line.chars().count()).max();
        assert!(width.is_some_and(|width| widest - 12 < width && width <= widest), "{lines:#?}");
        let bar = |label: &str| {
            let line = lines.iter().find(|line| line.trim_start().starts_with(label));
            line.expect("a bar").chars().filter(|&one| one == '█').count()
        };
        assert!(bar("5 Mbit/s") > bar("10 Mbit/s"), "{lines:#?}");
        let mut command = folder.command(&arguments);
        command.env("NO_COLOR", "1");
        let (shown, _) = in_terminal(command, columns, Shows::Output);
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(chart(&shown), lines);
    }
    assert_eq!(
        chart(&piped),
        chart(&plain(&in_terminal(folder.command(&arguments), 80, Shows::Output).0))
    );
}

#[test]
fn a_bar_on_a_terminal_says_how_much_time_is_left() {
    let folder = Folder::new("progress");
    let (shown, status) = in_terminal(folder.command(&["sweep", "slow.toml"]), 80, Shows::Errors);
    assert!(status.success() && shown.contains("left"), "{shown:?}");
    let piped = text(&folder.neap(&["sweep", "slow.toml"]).stderr);
    assert!(!piped.contains("left") && !piped.contains('\u{1b}'), "{piped}");
}

#[test]
fn the_four_experiments_speak_before_the_first_has_run() {
    use std::io::{BufRead, BufReader};

    let folder = Folder::new("first");
    let mut command = folder.command(&[]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("neap runs");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    let read = BufReader::new(output).read_line(&mut line);
    child.kill().expect("it still runs");
    child.wait().expect("it ends");
    assert!(read.is_ok() && line.contains("Four changes to Linux's TCP"), "{line}");
}

#[test]
fn a_run_of_one_of_several_names_the_others() {
    let folder = Folder::new("several");
    let output = text(&folder.neap(&["run", "slow.toml"]).stdout);
    let second = output.lines().nth(1).expect("a second line");
    assert!(second.contains("neap lab sweep slow.toml shows 4 side by side"), "{output}");
}
