//! The scripts of the project on this machine's Linux.

use std::path::Path;
use std::process::Command;

/// Scripts whose outcome hangs on no timer, so that a busy machine passes them.
const FOLDERS: [&str; 5] = ["errors", "options", "epoll", "receiving", "resets"];

#[test]
fn scripts_pass_on_the_kernel() {
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIP: scripts on the kernel need root");
        return;
    }
    if !Path::new("/dev/net/tun").exists() {
        eprintln!("SKIP: scripts on the kernel need /dev/net/tun");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let output = Command::new(env!("CARGO_BIN_EXE_neap"))
        .args(["lab", "script", "--kernel", "--quiet"])
        .args(FOLDERS.map(|topic| folder.join(topic)))
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
