//! What the shape of the project promises: who knows whom, what may not be where, and the budgets.

mod circles;
mod source;

use serde_json::Value;
use source::{code, files, functions, lines_of_code, read, root, shown, sources, words};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Command;

/// Most lines of code of a file, blank lines and comments not counted.
const FILE_BUDGET: usize = 800;
/// Most columns of a line.
const LINE_WIDTH: usize = 100;
/// Most lines of code of a function.
const FUNCTION_BUDGET: usize = 70;
/// Functions that may be longer: file and name.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    // One setting per line.
    ("crates/tcp/src/config.rs", "default"),
    // One field of TCP_INFO per line.
    ("crates/tcp/src/connection/figures.rs", "info"),
    // The order of the steps of an ACK, as `tcp_ack` has it, in one place.
    ("crates/tcp/src/sender/mod.rs", "on_ack"),
    // One arm per kind of input that a fuzzer's bytes stand for.
    ("crates/stack/tests/fuzz_stack.rs", "apply"),
    // One line per setting that a fuzzer's bytes choose.
    ("crates/tcp/tests/fuzz_connection.rs", "new"),
    // One arm per system call: of a script into that of a host, of a host on neap and on the
    // kernel.
    ("crates/script/src/calls.rs", "prepare"),
    ("crates/script/src/virtual_host.rs", "make_call"),
    ("crates/script/src/kernel/calls.rs", "call"),
];

/// Which crates of the workspace each crate may depend on. Every arrow leads towards `neap-tcp`.
const ARROWS: &[(&str, &[&str])] = &[
    ("neap-tcp", &[]),
    ("neap-stack", &["neap-tcp"]),
    ("neap-posix", &["neap-stack", "neap-tcp"]),
    // Time, credits and payloads; no more of TCP, see `the_device_knows_no_tcp`.
    ("neap-device", &["neap-stack", "neap-tcp"]),
    // The lab is for the examples of extensions.
    ("neap", &["neap-device", "neap-lab", "neap-posix", "neap-stack", "neap-tcp"]),
    ("neap-lab", &["neap-stack", "neap-tcp"]),
    // The device is for the host over Linux, behind a feature.
    ("neap-script", &["neap-device", "neap-posix", "neap-stack", "neap-tcp"]),
    ("neap-packetdrill", &["neap-posix", "neap-script", "neap-stack", "neap-tcp"]),
    ("neap-preload", &["neap"]),
    ("neap-gateway", &["neap"]),
    ("neap-wireguard", &["neap", "neap-device", "neap-lab", "neap-stack", "neap-tcp"]),
    // `neap-stack` is for packets of the attackers in its tests.
    (
        "neap-cli",
        &[
            "neap",
            "neap-gateway",
            "neap-lab",
            "neap-script",
            "neap-stack",
            "neap-tcp",
            "neap-wireguard",
        ],
    ),
];

/// Crates that may not contain a word of unsafe code.
const SAFE: &[&str] = &["tcp", "stack", "posix", "neap", "gateway", "lab", "wireguard", "cli"];
/// Programs beside the safe crates that may contain unsafe code: an allocator that counts.
const UNSAFE_PROGRAMS: &[&str] = &["crates/stack/examples/cost.rs", "crates/stack/tests/memory.rs"];
/// Crates with unsafe code in one module.
const UNSAFE_IN_ONE_MODULE: &[(&str, &str)] = &[("packetdrill", "ffi"), ("script", "ffi")];
/// Crates without clocks, threads, environment and system calls.
const PURE: &[&str] = &["tcp", "stack", "posix", "script", "lab"];
/// Modules of [`PURE`] crates that have all of that; a feature of the same name brings them and the
/// crates that they need.
const IMPURE_MODULES: &[(&str, &str)] = &[("script", "kernel")];
/// Crates that bring what [`PURE`] crates may not have.
const IMPURE_CRATES: &[&str] = &["libc", "mio", "neap-device", "nix", "rustix", "socket2", "tokio"];

/// Circles of files within one folder that are one idea: folder, files, reason.
const ONE_IDEA: &[(&str, &[&str], &str)] = &[(
    "crates/stack/src/net/qdisc",
    &["codel", "config", "fifo", "fq", "fq_codel", "kinds", "report", "shaped", "tbf"],
    "`tc` names every qdisc in one place, and each says its parameters and figures in those words",
)];

/// Names of the folders beneath `crates`.
fn crates() -> Vec<String> {
    let folder = std::fs::read_dir(root().join("crates")).expect("the crates");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("a crate").file_name();
    let mut names: Vec<String> =
        folder.map(name).map(|name| name.to_string_lossy().into()).collect();
    names.sort();
    names
}

/// Whether a source is that of a module of its crate, or of one below it.
fn is_of_module(path: &str, module: &str) -> bool {
    path.ends_with(&format!("/{module}.rs")) || path.contains(&format!("/{module}/"))
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Package name to the names of all that it depends on, those of tests included, each with whether
/// only a feature brings it.
fn dependencies() -> BTreeMap<String, BTreeMap<String, bool>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let text = |value: &Value| value.as_str().expect("a name").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let mut names = BTreeMap::new();
            for one in list(&package["dependencies"]) {
                let is_optional = one["optional"] == true;
                *names.entry(text(&one["name"])).or_insert(is_optional) &= is_optional;
            }
            (text(&package["name"]), names)
        })
        .collect()
}

#[test]
fn every_arrow_leads_towards_tcp() {
    let dependencies = dependencies();
    let ours: BTreeSet<&String> = dependencies.keys().collect();
    let mut complaints = Vec::new();
    for (package, names) in &dependencies {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| name == package) else {
            continue;
        };
        for name in names.keys().filter(|name| ours.contains(name)) {
            if !allowed.contains(&name.as_str()) {
                complaints.push(format!("{package} may not know {name}"));
            }
        }
    }
    assert_none(&complaints);
    for (package, _) in ARROWS.iter().filter(|(name, _)| *name != "neap-preload") {
        assert!(dependencies.contains_key(*package), "no package {package}");
    }
}

#[test]
fn pure_crates_have_no_way_to_the_system() {
    let mut complaints = Vec::new();
    let dependencies = dependencies();
    for name in PURE {
        let module = IMPURE_MODULES.iter().find(|(of, _)| of == name).map(|(_, module)| *module);
        for theirs in IMPURE_CRATES {
            let is_optional = dependencies[&format!("neap-{name}")].get(*theirs);
            if is_optional.is_some_and(|is_optional| module.is_none() || !is_optional) {
                complaints.push(format!("neap-{name} may not depend on {theirs}"));
            }
        }
        for (path, code) in sources(name) {
            if module.is_some_and(|module| is_of_module(&path, module)) {
                continue;
            }
            let banned = ["env", "fs", "io", "os", "process", "thread", "time"];
            for module in banned.map(|module| format!("std::{module}")) {
                // An error type may be converted from, a descriptor may be carried along.
                let is_carried = path.ends_with("stack/src/device.rs") && module == "std::os";
                if !is_carried && words(&code, &module).next().is_some() {
                    complaints.push(format!("{path} uses {module}"));
                }
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn the_device_knows_no_tcp() {
    let allowed = [
        "neap_tcp::time",
        "neap_tcp::transmit::small_queue",
        "neap_tcp::segment",
        // How an error prints.
        "neap_tcp::debug_as_display!",
    ];
    let mut complaints = Vec::new();
    for (path, code) in sources("device") {
        for at in words(&code, "neap_tcp") {
            if !allowed.iter().any(|module| code[at..].starts_with(module)) {
                let line: String = code[at..].lines().take(1).collect();
                complaints.push(format!("{path}: {line}"));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why_it_is_sound() {
    let mut complaints = Vec::new();
    for name in SAFE {
        let root = ["lib.rs", "main.rs"]
            .map(|file| root().join("crates").join(name).join("src").join(file))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("crate {name} has no root"));
        if !code(&read(&root)).contains("#![forbid(unsafe_code)]") {
            complaints.push(format!("{} does not forbid unsafe code", shown(&root)));
        }
    }
    for (name, module) in UNSAFE_IN_ONE_MODULE {
        for (path, code) in sources(name) {
            if !is_of_module(&path, module) && words(&code, "unsafe").next().is_some() {
                complaints.push(format!("{path}: unsafe code outside {module}"));
            }
        }
    }
    for path in files("crates", ".rs") {
        let source = read(&path);
        let code = code(&source);
        let comments: Vec<&str> = source.lines().collect();
        for at in words(&code, "unsafe") {
            let line = code[..at].matches('\n').count();
            let place = format!("{}:{}", shown(&path), line + 1);
            let is_program = UNSAFE_PROGRAMS.contains(&shown(&path).as_str());
            if !is_program && SAFE.iter().any(|name| place.starts_with(&format!("crates/{name}/")))
            {
                complaints.push(format!("{place}: unsafe code in a crate that has none"));
            }
            let reasons = comments[..line].iter().rev().map(|line| line.trim());
            let mut above = reasons.take_while(|line| {
                line.starts_with("//") || line.starts_with("#[") || line.ends_with('=')
            });
            let follows = code[at + "unsafe".len()..].trim_start();
            let needs_reason = follows.starts_with('{') || follows.starts_with("impl");
            if needs_reason && !above.any(|line| line.starts_with("// SAFETY:")) {
                complaints.push(format!("{place}: no SAFETY line"));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn files_and_functions_keep_their_budgets() {
    let mut complaints = Vec::new();
    for path in files("crates", ".rs") {
        let (path, code) = (shown(&path), code(&read(&path)));
        let lines = lines_of_code(&code);
        if lines > FILE_BUDGET {
            complaints.push(format!("{path} has {lines} lines of code"));
        }
        for (name, lines) in functions(&code) {
            let is_named = LONG_FUNCTIONS.contains(&(path.as_str(), name.as_str()));
            if lines > FUNCTION_BUDGET && !is_named {
                complaints.push(format!("{path}: fn {name} has {lines} lines"));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn nothing_is_left_to_do_and_no_path_of_a_machine_is_named() {
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let homes = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];
    let mut complaints = Vec::new();
    for end in [".rs", ".toml", ".md", ".sh", "test", "run"] {
        for path in files("", end) {
            let text = read(&path);
            for (number, line) in text.lines().enumerate() {
                let todo = notes.iter().find(|note| words(line, note).next().is_some());
                let home = homes.iter().find(|home| line.contains(**home));
                if let Some(what) = todo.or(home) {
                    complaints.push(format!("{}:{}: {what}", shown(&path), number + 1));
                }
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn the_folders_of_a_crate_form_no_circle() {
    let mut complaints = Vec::new();
    for crate_name in crates() {
        for circle in circles::of_crate(&crate_name) {
            let is_one_idea = ONE_IDEA.iter().any(|(folder, files, _)| {
                *folder == circle.folder
                    && circle.entries.iter().all(|one| files.contains(&one.as_str()))
            });
            if circle.has_folder || !is_one_idea {
                complaints.push(format!("{circle}"));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn lines_are_no_wider_than_a_screen() {
    let mut complaints = Vec::new();
    for path in files("crates", ".rs") {
        let source = read(&path);
        let blanked = code(&source);
        for (number, (line, code)) in source.lines().zip(blanked.lines()).enumerate() {
            // What a string holds is blank in the code, and counts as one column.
            let is_comment = line.trim_start().starts_with("//");
            let indent = line.len() - line.trim_start().len();
            let words: Vec<&str> = code.split_whitespace().collect();
            let width = if is_comment {
                line.chars().count()
            } else {
                indent + words.join(" ").chars().count()
            };
            if width > LINE_WIDTH {
                complaints.push(format!("{}:{}: {width} columns", shown(&path), number + 1));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn a_connection_takes_no_lock() {
    let mut complaints = Vec::new();
    for (path, code) in sources("tcp") {
        for lock in ["Mutex", "RwLock", "Condvar", "OnceLock", "LazyLock", "parking_lot"] {
            if words(&code, lock).next().is_some() {
                complaints.push(format!("{path} uses {lock}"));
            }
        }
    }
    assert_none(&complaints);
}

/// What separates the words of a page or a source.
fn is_no_part(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

#[test]
fn the_pages_name_files_that_there_are() {
    let sources: Vec<String> = files("crates", ".rs").iter().map(|path| shown(path)).collect();
    let mut complaints = Vec::new();
    for page in files("", ".md") {
        let text = read(&page);
        let paths = text.split(|c| is_no_part(c) && !"/.".contains(c));
        for path in paths.filter(|path| path.ends_with(".rs")) {
            let path = path.trim_start_matches("../");
            let is_named =
                |source: &String| source == path || source.ends_with(&format!("/{path}"));
            if !sources.iter().any(is_named) {
                complaints.push(format!("{}: there is no file {path}", shown(&page)));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn the_pages_name_the_oldest_rust_that_builds_it() {
    let manifest: toml::Value = toml::from_str(&read(&root().join("Cargo.toml"))).expect("TOML");
    let needed = manifest["workspace"]["package"]["rust-version"].as_str().expect("a version");
    // One for who tries it, one for who builds with it, and one for who changes it.
    for (page, most) in [("README.md", 2), ("CONTRIBUTING.md", 1)] {
        let text = read(&root().join(page));
        let named: Vec<&str> = text
            .match_indices(" or newer")
            .filter_map(|(at, _)| text[..at].rsplit_once("Rust "))
            .map(|(_, version)| version)
            .filter(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
            .collect();
        assert_eq!(named, vec![needed; most], "{page}");
    }
}

/// A program in the background needs a moment until its interface or its socket is there.
#[test]
fn commands_of_the_pages_wait_for_what_they_start_in_the_background() {
    let mut complaints = Vec::new();
    for page in files("guide/src", ".md").into_iter().chain([root().join("README.md")]) {
        let text = read(&page);
        for (line, next) in text.lines().zip(text.lines().skip(1)) {
            let waits = next.ends_with(" &") || next.starts_with("sleep ") || next == "```";
            if line.ends_with(" &") && !waits {
                complaints.push(format!("{}: `{line}` without `sleep 1`", shown(&page)));
            }
        }
    }
    assert_none(&complaints);
}

/// Tests that a cell of a table names: `file.rs: `name`, `name`; ...`. Those without a file are in
/// `order.rs`.
fn tests_of_the_order(page: &str) -> Vec<(String, String)> {
    let mut tests = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ") && line.ends_with(" |")) {
        let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        for part in cell.split("; ").filter(|part| part.contains('`')) {
            let (file, names) =
                part.split_once(": ").unwrap_or(("tcp/tests/script/order.rs", part));
            let names = names.split('`').skip(1).step_by(2);
            tests.extend(names.map(|name| (format!("crates/{file}"), name.to_owned())));
        }
    }
    tests
}

#[test]
fn the_page_of_the_order_of_input_names_every_test_of_it_and_its_scripts() {
    let page = read(&root().join("docs/input-order.md"));
    let named = tests_of_the_order(&page);
    let mut complaints = Vec::new();
    for (file, name) in &named {
        if !read(&root().join(file)).contains(&format!("\nfn {name}()"))
            && !read(&root().join(file)).contains(&format!("    fn {name}()"))
        {
            complaints.push(format!("{file} has no test {name}"));
        }
    }
    let order = "crates/tcp/tests/script/order.rs";
    for test in read(&root().join(order)).split("#[test]\nfn ").skip(1) {
        let name = test.split('(').next().unwrap_or_default();
        if !named.iter().any(|(file, own)| file == order && own == name) {
            complaints.push(format!("{name} has no row in docs/input-order.md"));
        }
    }
    let scripts: Vec<&str> = page.split([' ', ';', ',']).filter(|w| w.ends_with(".pkt")).collect();
    for script in &scripts {
        if !root().join(script).is_file() {
            complaints.push(format!("there is no {script}"));
        }
    }
    for script in files("scripts/order", ".pkt").iter().map(|path| shown(path)) {
        if !scripts.contains(&script.as_str()) {
            complaints.push(format!("{script} has no row in docs/input-order.md"));
        }
    }
    assert_none(&complaints);
}

/// Types are the words in backquotes that begin with a capital and have small letters.
#[test]
fn the_page_of_the_architecture_names_types_that_there_are() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let sources: Vec<String> = files("crates", ".rs").iter().map(|path| read(path)).collect();
    // Strings hold the names of counters.
    let known: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split(is_no_part))
        .collect();
    let quoted = page.split('`').skip(1).step_by(2).flat_map(|quoted| quoted.split(is_no_part));
    let types = quoted
        .filter(|word| word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase));
    let unknown = types.filter(|word| !known.contains(word));
    assert_none(&unknown.map(|word| format!("there is no {word}")).collect::<Vec<_>>());
}

/// bolero replays what lies beside a target, and says nothing where there is nothing.
#[test]
fn the_kept_inputs_of_each_fuzz_target_are_replayed() {
    let script = read(&root().join("fuzz"));
    let (_, table) = script.split_once("cat <<END\n").expect("the table of targets");
    let (table, _) = table.split_once("\nEND").expect("its end");
    for line in table.lines() {
        let columns: Vec<&str> = line.split(' ').collect();
        let [name, _, _, _, _, inputs, ..] = columns[..] else { panic!("{line}") };
        let archive = root().join(format!("fuzz-inputs/{name}.tar.gz"));
        assert!(archive.exists(), "{} is missing", shown(&archive));
        if !root().join(inputs).join("corpus").exists() {
            let reason = "are packed; unpack them: ./fuzz unpack";
            writeln!(std::io::stderr(), "SKIP: the inputs of {name} {reason}").expect("stderr");
        }
    }
}

/// The harness swallows what a test that passes prints by macros, and `./test` could not count it.
#[test]
fn who_skips_says_so_where_the_harness_lets_it_through() {
    let mut complaints = Vec::new();
    for path in files("crates", ".rs") {
        let source = read(&path);
        for name in ["print!(", "println!("] {
            for (at, _) in source.match_indices(name) {
                if source[at + name.len()..].trim_start().starts_with("\"SKIP") {
                    let line = source[..at].matches('\n').count() + 1;
                    complaints.push(format!("{}:{line}: use writeln!", shown(&path)));
                }
            }
        }
    }
    assert_none(&complaints);
}
