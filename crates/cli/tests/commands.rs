//! `./fuzz`, and the parts of the benchmarks.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its owner");
}

/// `./fuzz` in a folder of its own with some of the targets, whose programs call it again.
fn fuzz_beside_another(folder: &Path, names: &[&str]) -> Output {
    for part in ["fuzz-inputs", "bin", "crates/lab/tests", "crates/gateway/tests"] {
        fs::create_dir_all(folder.join(part)).expect("a folder");
    }
    fs::copy(root().join("fuzz"), folder.join("fuzz")).expect("the command");
    for name in names.iter().chain(&["dns"]) {
        let archive = format!("fuzz-inputs/{name}.tar.gz");
        fs::copy(root().join(&archive), folder.join(archive)).expect("kept inputs");
    }
    let target = folder.join("bin/target");
    write_program(&target, "#!/bin/sh\nexec ./fuzz unpack dns\n");
    let built = format!("#!/bin/sh\necho '{{\"executable\":\"{}\"}}'\n", target.display());
    write_program(&folder.join("bin/cargo"), &built);
    let path = std::env::var("PATH").unwrap_or_default();
    let mut fuzz = Command::new("sh");
    fuzz.arg(folder.join("fuzz"))
        .arg("2")
        .args(names)
        .env("PATH", format!("{}:{path}", folder.join("bin").display()));
    fuzz.env("CARGO_TARGET_DIR", folder.join("target")).env_remove("FUZZ_DIR");
    fuzz.output().expect("it runs")
}

#[test]
fn a_fuzz_run_keeps_its_targets_when_another_begins() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-beside-another");
    let _ = fs::remove_dir_all(&folder);
    let names = ["scenarios", "values"];
    let output = fuzz_beside_another(&folder, &names);
    let said = String::from_utf8_lossy(&output.stdout);
    let begun: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("== ")).collect();
    let wanted = names.map(|name| format!("{name}: 1 s"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && begun == wanted, "{said}{errors}");
    assert!(folder.join("crates/gateway/tests/__fuzz__/dns").is_dir(), "the other one worked");
    fs::remove_dir_all(&folder).expect("its owner");
}

#[test]
fn the_parts_of_the_benchmarks_keep_their_promises() {
    let tests = root().join("benches/tests");
    let python = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s"])
        .arg(&tests)
        .output();
    let Ok(output) = python else { return skip("no python3") };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\nRan ") && !said.contains("\nRan 0 "), "{said}");
    said.lines().filter_map(|line| line.split_once("SKIP: ")).for_each(|(_, why)| skip(why));
}
