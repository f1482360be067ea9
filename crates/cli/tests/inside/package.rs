//! The files of the Debian package.

use serde_json::Value;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether a folder has a file of this name, in which `*` stands for anything.
fn has_file(folder: &Path, name: &str) -> bool {
    let Some((begin, end)) = name.split_once('*') else { return folder.join(name).is_file() };
    let mut entries = fs::read_dir(folder).expect("a folder");
    entries.any(|entry| {
        let name = entry.expect("an entry").file_name();
        name.to_str().is_some_and(|name| name.starts_with(begin) && name.ends_with(end))
    })
}

/// The package has the program by its other names, each with completions, and they start it.
fn check_names(assets: &[Value], read: &dyn Fn(&str) -> String) {
    let has = |from: &str, to: &str| {
        let is_it = |asset: &Value| asset[0] == *from && asset[1] == *to;
        assert!(assets.iter().any(is_it), "no {from} as {to}");
    };
    for name in ["pasta", "slirp4netns"] {
        let script = format!("debian/{name}");
        has(&script, "usr/lib/neap/");
        for (file, place) in [
            (format!("{name}.bash"), format!("bash-completion/completions/{name}")),
            (format!("_{name}"), format!("zsh/vendor-completions/_{name}")),
            (format!("{name}.fish"), format!("fish/vendor_completions.d/{name}.fish")),
        ] {
            let made = format!("../../target/man/completions/{file}");
            has(&made, &format!("usr/share/{place}"));
        }
        let here = read(&script).replace("/usr/bin/neap", env!("CARGO_BIN_EXE_neap"));
        let command = ["-c", &here, name, "--version"];
        let said = Command::new("sh").args(command).output().expect("sh runs").stdout;
        let said = String::from_utf8(said).expect("text");
        assert!(said.contains(name), "{name}: {said}");
    }
}

/// `cargo deb` finds what is below `target/release` where cargo has built it, and all else from the
/// folder of the manifest on.
#[test]
fn the_files_of_the_debian_package_are_there_or_made_by_the_commands_of_the_guide() {
    let folder = env::temp_dir().join(format!("neap-deb-{}", std::process::id()));
    let manual = ["man", "--folder", folder.to_str().expect("a name")];
    let made = Command::new(env!("CARGO_BIN_EXE_neap")).args(manual).status();
    assert!(made.expect("neap runs").success());
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(crate_folder.join(path)).expect(path);
    let manifest: Value = toml::from_str(&read("Cargo.toml")).expect("TOML");
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().expect("a list");
    let missing: Vec<_> = assets
        .iter()
        .map(|asset| asset[0].as_str().expect("a path"))
        .filter(|&path| match (path, path.strip_prefix("../../target/man/")) {
            ("target/release/neap", _) => false,
            (_, Some(name)) => !has_file(&folder, name),
            (path, None) => !has_file(crate_folder, path),
        })
        .collect();
    fs::remove_dir_all(&folder).expect("the folder is there");
    assert!(assets.len() > 3 && missing.is_empty(), "{missing:?}");
    check_names(assets, &read);
    let guide = read("../../guide/src/inside.md");
    let lines: Vec<_> = guide.lines().collect();
    for command in ["cargo build --release", "target/release/neap man --folder target/man"] {
        assert!(lines.contains(&command), "the guide has no line `{command}`");
    }
}
