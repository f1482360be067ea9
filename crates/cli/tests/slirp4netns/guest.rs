//! A namespace, and a program that connects it.

use crate::namespace::{read_all, run};
use serde_json::Value;
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, thread};

/// Names the program of this binary that runs in the namespace, and where its server is.
pub(crate) const PROGRAM: &str = "NEAP_TEST_PROGRAM";
pub(crate) const TARGET: &str = "NEAP_TEST_TARGET";

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
pub(crate) fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// The network outside: the servers are at 192.0.2.1.
pub(crate) fn outside() {
    run("ip link set lo up");
    run("ip link add outside type veth peer name far");
    run("ip address add 192.0.2.1/24 dev outside");
    run("ip link set far up");
    run("ip link set outside up");
}

/// A process that does not outlive its test.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace of a process that does nothing, and the program that connects it.
pub(crate) struct Guest {
    sleeper: Running,
    server: Running,
    /// The other end of the exit descriptor.
    exit: Option<ChildStdin>,
    /// The other end of the ready descriptor.
    ready: ChildStdout,
    folder: Folder,
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Guest {
    /// Starts a program by the name slirp4netns, and waits until it is ready. The word `SOCKET`
    /// among the options is the path of its API socket; with `ETC` it has an /etc of its own, with
    /// the file [`name_resolver`](Self::name_resolver) writes; with `SAID` its standard error is
    /// what [`said`](Self::said) returns; with `FULL` nothing can be written there. With `IGNORE`
    /// it is started with hangups and interrupts ignored, as by `nohup(1)`.
    pub(crate) fn start(program: &str, options: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("neap-slirp4netns-{}-{number}", std::process::id());
        let folder = Folder(env::temp_dir().join(name));
        fs::create_dir(&folder.0).expect("room");
        fs::create_dir(folder.0.join("etc")).expect("room");
        fs::write(folder.0.join("etc/resolv.conf"), "").expect("room");
        // The real one is found where it is, neap is called by a link.
        let path = if program.contains('/') { PathBuf::from(program) } else { which(program) };
        symlink(path, folder.0.join("slirp4netns")).expect("room");
        // It tells that it is in its namespace by a line.
        let mut sleeper = Command::new("unshare");
        sleeper.args(["-n", "sh", "-c", "echo there; exec cat"]);
        let sleeper = sleeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut sleeper = sleeper.expect("unshare runs");
        let mut line = String::new();
        let stdout = sleeper.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        Self::connect(folder, Running(sleeper), options)
    }

    fn connect(folder: Folder, sleeper: Running, options: &[&str]) -> Self {
        // The shell gives its standard streams other numbers, and becomes the program.
        let has_etc = options.contains(&"ETC");
        let mount = if has_etc { "mount --bind \"$ETC\" /etc && " } else { "" };
        let said = if options.contains(&"SAID") {
            " 2>\"$SAID\""
        } else if options.contains(&"FULL") {
            " 2>/dev/full"
        } else {
            ""
        };
        let ignore = if options.contains(&"IGNORE") { "trap '' HUP INT; " } else { "" };
        let script = format!("{mount}{ignore}exec \"$@\" 3>&1 4<&0 </dev/null >&2{said}");
        let socket = folder.0.join("api.sock");
        let words = ["ETC", "SAID", "FULL", "IGNORE"];
        let options = options.iter().filter(|option| !words.contains(option));
        let options = options.map(|&option| match option {
            "SOCKET" => socket.as_os_str(),
            option => option.as_ref(),
        });
        let mut command = Command::new(if has_etc { "unshare" } else { "sh" });
        command
            .args(if has_etc { &["-m", "sh"][..] } else { &[] })
            .env("ETC", folder.0.join("etc"))
            .env("SAID", folder.0.join("said"));
        command.args(["-c", &script, "sh"]).arg(folder.0.join("slirp4netns"));
        command.args(["-r", "3", "-e", "4"]).args(options).arg(sleeper.0.id().to_string());
        command.env("XDG_RUNTIME_DIR", &folder.0);
        command.arg("tap0").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = command.spawn().expect("sh runs");
        let exit = server.stdin.take();
        let mut ready = server.stdout.take().expect("a pipe");
        let server = Running(server);
        let mut byte = [0];
        ready.read_exact(&mut byte).expect("it says when it is ready");
        assert_eq!(&byte, b"1");
        Self { sleeper, server, exit, ready, folder }
    }

    /// Starts the program once more for the same namespace, after it was [killed](Self::kill).
    pub(crate) fn start_again(self, options: &[&str]) -> Self {
        let Self { sleeper, folder, .. } = self;
        Self::connect(folder, sleeper, options)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.0.join("api.sock")
    }

    /// Replaces resolv.conf, as programs do that write it.
    pub(crate) fn name_resolver(&self, address: &str) {
        let etc = self.folder.0.join("etc");
        fs::write(etc.join("new"), format!("nameserver {address}\n")).expect("room");
        fs::rename(etc.join("new"), etc.join("resolv.conf")).expect("it is there");
    }

    /// What `neap` prints of running stacks.
    pub(crate) fn look(&self, words: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        let output = command.args(words).env("XDG_RUNTIME_DIR", &self.folder.0).output();
        let output = output.expect("it runs");
        let [out, err] = [output.stdout, output.stderr].map(|text| read_all(&text[..]));
        assert!(output.status.success(), "{words:?}: {out}{err}");
        out
    }

    /// What the program has written to its standard error so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.folder.0.join("said")).expect("it is there")
    }

    /// Of the process in the namespace.
    pub(crate) fn pid(&self) -> String {
        self.sleeper.0.id().to_string()
    }

    pub(crate) fn server_pid(&self) -> u32 {
        self.server.0.id()
    }

    pub(crate) fn kill(&mut self) {
        self.server.0.kill().expect("it runs");
        self.server.0.wait().expect("it ends");
    }

    /// Closes the exit descriptor. Returns the status and what came after the ready byte.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        // The ready descriptor is closed by itself: its end is seen before.
        let mut rest = String::new();
        self.ready.read_to_string(&mut rest).expect("text");
        drop(self.exit.take());
        (self.server.0.wait().expect("it ends").code(), rest)
    }

    pub(crate) fn wait(mut self) -> Option<i32> {
        self.server.0.wait().expect("it ends").code()
    }

    /// Runs a command line in the namespace, and returns what it printed.
    pub(crate) fn inside(&self, line: &str) -> String {
        run(&format!("nsenter -t {} -n {line}", self.pid()))
    }

    pub(crate) fn ip(&self, words: &str) -> String {
        self.inside(&format!("ip {words}"))
    }

    pub(crate) fn ip_json(&self, words: &str) -> Value {
        serde_json::from_str(&self.ip(&format!("-j {words}"))).expect("JSON")
    }

    /// Waits until `ip` prints a text.
    pub(crate) fn ip_until(&self, words: &str, text: &str) {
        while !self.ip(words).contains(text) {
            thread::yield_now();
        }
    }

    /// Waits until the interface has an address that starts with this text and can be used.
    pub(crate) fn address_until(&self, start: &str) {
        self.ip_until("-6 addr show dev tap0", start);
        while self.ip("-6 addr show dev tap0 tentative").contains(start) {
            thread::yield_now();
        }
    }

    fn program(&self, program: &str, target: &str) -> Command {
        let own = env::current_exe().expect("the test knows its binary");
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid(), "-n"]).arg(own);
        command.args(["--exact", "inside", "--nocapture"]);
        command.env(PROGRAM, program).env(TARGET, target);
        command
    }

    /// Runs a program of this binary in the namespace. It must succeed.
    pub(crate) fn run(&self, program: &str, target: &str) {
        let output = self.program(program, target).output().expect("nsenter runs");
        let [out, err] = [output.stdout, output.stderr].map(|text| read_all(&text[..]));
        assert!(output.status.success() && out.contains("1 passed"), "{program}: {out}{err}");
    }

    /// Starts a program of this binary in the namespace, and waits until it says that it is ready.
    pub(crate) fn spawn(&self, program: &str, target: &str) -> Running {
        let mut child =
            self.program(program, target).stdout(Stdio::piped()).spawn().expect("nsenter runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let child = Running(child);
        let mut line = String::new();
        while !line.ends_with("ready\n") {
            let count = stdout.read_line(&mut line).expect("text");
            assert!(count > 0, "{program} has ended: {line}");
        }
        child
    }
}

/// Where a program is.
fn which(program: &str) -> PathBuf {
    let folders = env::var_os("PATH").expect("a path");
    let mut found = env::split_paths(&folders).map(|folder| folder.join(program));
    found.find(|path| Path::exists(path)).expect("it is installed")
}
