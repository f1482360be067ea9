//! What the shape of the project promises: who knows whom, what may not be where, and the budgets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Most lines of code of a file, blank lines and comments not counted.
const FILE_BUDGET: usize = 800;
/// Most lines of code of a function.
const FUNCTION_BUDGET: usize = 70;
/// Functions that may be longer: file and name.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    // One field of TCP_INFO per line.
    ("crates/tcp/src/info.rs", "info"),
    // The order of the steps of an ACK, as `tcp_ack` has it, in one place.
    ("crates/tcp/src/sender/mod.rs", "on_ack"),
    // One arm per kind of input that a fuzzer's bytes stand for.
    ("crates/stack/tests/fuzz_stack.rs", "apply"),
    // One line per setting that a fuzzer's bytes choose.
    ("crates/tcp/tests/fuzz_connection.rs", "new"),
];

/// Which crates of the workspace each crate may depend on. Every arrow leads towards `neap-tcp`.
const ARROWS: &[(&str, &[&str])] = &[
    ("neap-tcp", &[]),
    ("neap-stack", &["neap-tcp"]),
    // Time, credits and payloads; no more of TCP, see `the_device_knows_no_tcp`.
    ("neap-device", &["neap-stack", "neap-tcp"]),
    ("neap", &["neap-device", "neap-stack", "neap-tcp"]),
    ("neap-lab", &["neap-stack", "neap-tcp"]),
    ("neap-packetdrill", &["neap-stack", "neap-tcp"]),
    ("neap-preload", &["neap"]),
    ("neap-cli", &["neap", "neap-lab"]),
];

/// Crates that may not contain a word of unsafe code.
const SAFE: &[&str] = &["tcp", "stack", "neap", "lab", "cli"];
/// Programs beside the safe crates that may contain unsafe code: an allocator that counts.
const UNSAFE_PROGRAMS: &[&str] = &["crates/stack/examples/cost.rs"];
/// Crates with unsafe code in one module.
const UNSAFE_IN_ONE_MODULE: &[(&str, &str)] = &[("packetdrill", "ffi")];
/// Crates without clocks, threads, environment and system calls.
const PURE: &[&str] = &["tcp", "stack", "lab"];
/// Crates of others that bring what [`PURE`] crates may not have.
const IMPURE_CRATES: &[&str] = &["libc", "mio", "nix", "rustix", "socket2", "tokio"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Files of the project whose name ends so, beneath a folder of the workspace.
fn files(beneath: &str, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(beneath)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("a folder that can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if name != "target" && !name.starts_with(".git") {
                    folders.push(path);
                }
            } else if name.ends_with(end) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The source with comments, strings and characters blanked out; lines stay where they are.
fn code(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let len = literal(&chars, at);
        if len == 0 {
            out.push(chars[at]);
            at += 1;
        }
        for &char in &chars[at..at + len] {
            out.push(if char == '\n' { '\n' } else { ' ' });
        }
        at += len;
    }
    out
}

/// Length of the comment, string or character that begins here; 0 if none does.
fn literal(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    let word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match rest {
        ['/', '/', ..] => rest.iter().position(|&char| char == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => quoted(rest, '"'),
        ['r', '"' | '#', ..] if !word => raw_string(rest, 1),
        ['b', 'r', '"' | '#', ..] if !word => raw_string(rest, 2),
        // A lifetime has no closing quote after one character.
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => quoted(rest, '\''),
        _ => 0,
    }
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            char if char == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw_string(rest: &[char], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|&&char| char == '#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return 0;
    }
    let close = |at: usize| {
        rest[at] == '"' && rest[at + 1..].iter().take_while(|&&char| char == '#').count() >= hashes
    };
    (open + 1..rest.len()).find(|&at| close(at)).map_or(rest.len(), |at| at + 1 + hashes)
}

fn lines_of_code(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// The text from an opening brace to its closing one.
fn block(code: &str) -> &str {
    let mut depth = 0;
    for (at, char) in code.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 1 => return &code[..=at],
            '}' => depth -= 1,
            _ => {}
        }
    }
    code
}

/// Places where a word stands alone.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |char: char| char.is_alphanumeric() || char == '_';
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part)
    })
}

/// Every function that has a body, with its lines of code, signature included.
fn functions(code: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let name: String = code[at + 2..]
            .trim_start()
            .chars()
            .take_while(|char| char.is_alphanumeric() || *char == '_')
            .collect();
        // A pointer type has no name; a declaration in a trait has no body.
        let Some(end) = code[at..].find(['{', ';']) else { continue };
        if name.is_empty() || code[at + end..].starts_with(';') {
            continue;
        }
        let body = block(&code[at + end..]);
        found.push((name, lines_of_code(&code[at..at + end + body.len()])));
    }
    found
}

/// The code without its modules of unit tests.
fn without_tests(code: &str) -> String {
    let mut code = code.to_owned();
    while let Some(at) = ["#[cfg(test", "#[cfg(all(test"].iter().find_map(|cfg| code.find(cfg)) {
        let Some(open) = code[at..].find(['{', ';']) else { break };
        let is_block = code[at + open..].starts_with('{');
        let len = if is_block { block(&code[at + open..]).len() } else { 1 };
        code.replace_range(at..at + open + len, "");
    }
    code
}

/// Sources of a crate that are part of it, not its unit tests.
fn sources(name: &str) -> Vec<(String, String)> {
    let is_test = |path: &PathBuf| {
        path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("tests"))
    };
    files(&format!("crates/{name}/src"), ".rs")
        .into_iter()
        .filter(|path| !is_test(path))
        .map(|path| (shown(&path), without_tests(&code(&read(&path)))))
        .collect()
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Package name to the names of all that it depends on, those of tests included.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
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
            let names = list(&package["dependencies"]);
            (text(&package["name"]), names.iter().map(|of| text(&of["name"])).collect())
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
        for name in names.iter().filter(|name| ours.contains(name)) {
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
        for theirs in IMPURE_CRATES {
            if dependencies[&format!("neap-{name}")].contains(*theirs) {
                complaints.push(format!("neap-{name} may not depend on {theirs}"));
            }
        }
        for (path, code) in sources(name) {
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
    let allowed = ["neap_tcp::time", "neap_tcp::transmit::small_queue", "neap_tcp::segment"];
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
            let is_inside =
                path.ends_with(&format!("/{module}.rs")) || path.contains(&format!("/{module}/"));
            if !is_inside && words(&code, "unsafe").next().is_some() {
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
fn the_reader_of_sources_knows_its_rust() {
    let source = "fn a<'a>(x: &'a str) { // {\n/* { /* { */ */ let _ = ('{', \"}\\\"\", r#\"}\"\"#);\n}\nfn b();\n";
    let code = code(source);
    assert_eq!(functions(&code), [("a".to_owned(), 3)]);
    assert_eq!(code.lines().count(), source.lines().count());
    assert!(!code.contains('"') && code.contains("&'a str"));
    let tests = "mod x;\n#[cfg(test)]\nmod tests { fn t() {} }\nfn y() {}";
    assert_eq!(without_tests(tests), "mod x;\n\nfn y() {}");
}
