//! Reads the sources: which files there are, and what of them is code.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Files of the project whose name ends so, beneath a folder of the workspace.
pub(crate) fn files(beneath: &str, end: &str) -> Vec<PathBuf> {
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

pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The source with comments, strings and characters blanked out; lines stay where they are.
pub(crate) fn code(source: &str) -> String {
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

pub(crate) fn lines_of_code(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// The text from an opening brace to its closing one.
pub(crate) fn block(code: &str) -> &str {
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
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |char: char| char.is_alphanumeric() || char == '_';
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part)
    })
}

/// Every function that has a body, with its lines of code, signature included.
pub(crate) fn functions(code: &str) -> Vec<(String, usize)> {
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
pub(crate) fn without_tests(code: &str) -> String {
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
pub(crate) fn sources(name: &str) -> Vec<(String, String)> {
    let is_test = |path: &PathBuf| {
        path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("tests"))
    };
    files(&format!("crates/{name}/src"), ".rs")
        .into_iter()
        .filter(|path| !is_test(path))
        .map(|path| (shown(&path), without_tests(&code(&read(&path)))))
        .collect()
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
