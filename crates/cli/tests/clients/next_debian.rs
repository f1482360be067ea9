//! The next Debian release, unpacked into a folder beside the build.
//!
//! It is made once, by debootstrap from the mirror of this machine's apt, and is some 470 MB large.

use super::namespace::skip;
use super::scripts::can_run;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RELEASE: &str = "trixie";
/// What clients need besides a minimal system.
const PACKAGES: &str = "busybox-static,iproute2,passt,podman,rootlesskit,runc,uidmap,wget";

/// The folder, if it is there.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name());
    folder.is_dir().then_some(folder)
}

/// Another list of packages is another folder.
fn name() -> String {
    format!("{RELEASE}-{}", PACKAGES.replace(',', "-"))
}

/// Whether it is there; it is made if it can be. The test must not be in a namespace yet, as those
/// have no network. It skips if there is none.
pub(crate) fn is_there() -> bool {
    if !can_run(&["debootstrap", "apt-get"]) {
        return false;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let made = fs::create_dir_all(path).map_err(|error| error.to_string());
    let lock = made.and_then(|()| {
        File::create(path.join("next-debian.lock")).map_err(|error| error.to_string())
    });
    // One test makes it, the others wait.
    let made = lock.and_then(|lock| {
        lock.lock().map_err(|error| error.to_string())?;
        if folder().is_some() { Ok(()) } else { make() }
    });
    if let Err(error) = &made {
        skip(&format!("the next Debian release cannot be unpacked: {error}"));
    }
    made.is_ok()
}

/// Unpacks it, under another name until it is whole.
fn make() -> Result<(), String> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let partial = path.join("next-debian.partial");
    // What an earlier attempt has left.
    let _ = fs::remove_dir_all(&partial);
    let mirror = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    let mirror = mirror.lines().next().ok_or("apt has no mirror")?.to_owned();
    // What debootstrap mounts is gone with it, also if it is killed.
    let mut debootstrap = Command::new("unshare");
    debootstrap.args(["-m", "debootstrap", "--variant=minbase"]);
    debootstrap.args([&format!("--include={PACKAGES}"), RELEASE]);
    output(debootstrap.arg(&partial).arg(mirror))?;
    let archives = partial.join("var/cache/apt/archives");
    let _ = fs::remove_dir_all(archives);
    fs::rename(&partial, path.join(name())).map_err(|error| error.to_string())
}

/// What a command prints. If it fails, the last line of that is the error.
fn output(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } = command.output().map_err(|error| error.to_string())?;
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if status.success() {
        return Ok(stdout);
    }
    let last = stderr.lines().chain(stdout.lines()).last().unwrap_or_default();
    Err(format!("{status}, {last}"))
}
