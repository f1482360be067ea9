//! What a gateway gives up once it is set up: rights, files, and [system calls](super::calls).
//!
//! Each is given up by the thread that calls and by those that it starts later, so it is called
//! while there is one thread, and refuses otherwise. Programs that were started before keep what
//! they have.

use super::calls;
use super::resolvers::{FILE, Reader};
use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use neap_gateway::{Outbound, ResolversFile};
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Folders of programs that write the [`FILE`] with the resolvers of the host, where it is a link.
const WRITERS: [&str; 3] = ["/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf"];

/// Newest rules of Landlock that are asked for; older kernels apply those that they know.
const LANDLOCK: ABI = ABI::V6;

/// What a gateway needs once it is set up. The default is nothing.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    /// Capabilities that it keeps, if it has them.
    pub(crate) capabilities: CapabilitySet,
    /// Whether it reads the file with the resolvers of the host, and no other of `/etc`.
    pub(crate) resolvers: bool,
    /// Whether it looks names up as programs of the host do, which takes other files of `/etc`.
    pub(crate) names: bool,
    /// Files that it reads again, and folders with such files.
    pub(crate) readable: Vec<PathBuf>,
    /// Folders from which it removes its sockets.
    pub(crate) sockets_in: Vec<PathBuf>,
    /// The process that it passes signals on to.
    pub(crate) signals: Option<Pid>,
}

impl Default for Needs {
    fn default() -> Self {
        Self {
            capabilities: CapabilitySet::empty(),
            resolvers: false,
            names: false,
            readable: Vec::new(),
            sockets_in: Vec::new(),
            signals: None,
        }
    }
}

/// How often it is looked for other threads.
const LOOKS: usize = 1000;

/// Whether there are other threads than this one. One that was joined is still there for a moment,
/// so this waits for as long if there are.
fn has_other_threads() -> bool {
    // Where this cannot be read, it was called before.
    let has = fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() > 1);
    if has {
        std::thread::sleep(Duration::from_millis(1));
    }
    has
}

/// Gives up all that is not needed. What the kernel cannot take away is told, once. Returns what
/// reads the resolvers of the host, if they are needed and this process cannot.
///
/// # Errors
/// One line: capabilities and new privileges cannot be given up, or other threads would keep them.
pub(crate) fn confine(
    needs: &Needs,
    tell: impl Fn(&str),
) -> Result<Option<Arc<dyn ResolversFile>>, String> {
    if (0..LOOKS).all(|_| has_other_threads()) {
        return Err("rights cannot be given up: other threads would keep theirs".to_owned());
    }
    let mut needs = needs.clone();
    let mut reader: Option<Arc<dyn ResolversFile>> = None;
    if needs.resolvers && !needs.names {
        match Reader::start() {
            Ok(started) => reader = Some(Arc::new(started)),
            Err(error) => {
                needs.names = true;
                tell(&format!("files of /etc stay in reach of the gateway: a process: {error}"));
            }
        }
    }
    give_up_rights(&needs)?;
    match give_up_files(&needs) {
        Ok(true) => {}
        Ok(false) => tell("files stay in reach of the gateway, as this kernel has no Landlock"),
        Err(why) => tell(&format!("files stay in reach of the gateway: {why}")),
    }
    if let Err(why) = calls::give_up_calls(needs.signals) {
        tell(&format!("all system calls stay in reach of the gateway: {why}"));
    }
    Ok(reader)
}

/// Gives up capabilities, new privileges by `execve(2)`, and being looked into by others of the
/// same user.
///
/// # Errors
/// One line that says what could not be given up.
fn give_up_rights(needs: &Needs) -> Result<(), String> {
    // It finds the kernel's clock by a file of this process, which is out of reach afterwards.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let failed = |error| format!("rights cannot be given up: {error}");
    set_no_new_privs(true).map_err(failed)?;
    clear_ambient_capability_set().map_err(failed)?;
    for capability in CapabilitySet::all().iter() {
        // Without `CAP_SETPCAP` it stays, and is out of reach without new privileges.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let kept = capabilities(None).map_err(failed)?.permitted & needs.capabilities;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)
}

/// Gives up all files but those that are needed, abstract Unix sockets of others, and signals to
/// others if none are passed on. Whether the kernel does it.
///
/// # Errors
/// What the kernel says of it.
fn give_up_files(needs: &Needs) -> Result<bool, String> {
    restrict(needs).map_err(|error| error.to_string())
}

fn restrict(needs: &Needs) -> Result<bool, RulesetError> {
    let mut scope = BitFlags::from(Scope::AbstractUnixSocket);
    if needs.signals.is_none() {
        scope |= Scope::Signal;
    }
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(LANDLOCK))?.scope(scope)?;
    let of_names = if needs.names { resolver_folders() } else { Vec::new() };
    let readable = of_names
        .iter()
        .chain(&needs.readable)
        .map(|folder| (folder, BitFlags::from(AccessFs::ReadFile)));
    let removable = AccessFs::RemoveFile | AccessFs::ReadDir;
    let removable = needs.sockets_in.iter().map(|folder| (folder, removable));
    // A folder that is not there is not needed.
    let opened = readable.chain(removable).filter_map(|(folder, access)| {
        PathFd::new(folder)
            .ok()
            .map(|folder| Ok::<_, RulesetError>(PathBeneath::new(folder, access)))
    });
    let restricted = ruleset.create()?.add_rules(opened)?.restrict_self()?;
    Ok(restricted.ruleset != RulesetStatus::NotEnforced)
}

/// Where the file with the resolvers may be: its folder, since it is replaced by another file of
/// its name, and those that a link leads to.
fn resolver_folders() -> Vec<PathBuf> {
    let now = Path::new(FILE).canonicalize().ok();
    let folders = now.as_deref().into_iter().chain([Path::new(FILE)]);
    let folders = folders.filter_map(Path::parent).chain(WRITERS.iter().map(Path::new));
    folders.map(Path::to_owned).collect()
}

/// The capability by which flows can leave in this way: for a mark, `CAP_NET_RAW` since Linux 5.17
/// and `CAP_NET_ADMIN` before.
pub(crate) fn capabilities_of(outbound: &Outbound) -> CapabilitySet {
    if outbound.mark.is_none() {
        return CapabilitySet::empty();
    }
    let suffices = || {
        let had = capabilities(None).ok()?;
        let with = |effective| CapabilitySets { effective, ..had };
        set_capabilities(None, with(had.effective & CapabilitySet::NET_RAW)).ok()?;
        let applied = Socket::new(Domain::IPV4, Type::DGRAM, None)
            .and_then(|socket| Outbound { interface: None, ..outbound.clone() }.apply(&socket));
        set_capabilities(None, had).ok()?;
        applied.ok()
    };
    let raw = suffices().is_some();
    if raw { CapabilitySet::NET_RAW } else { CapabilitySet::NET_ADMIN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixListener;

    /// Files and calls belong to threads, so that a test gives up those of one.
    fn in_thread(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(test).join().expect("no panic");
        });
    }

    #[test]
    fn one_thread_alone_gives_up_nothing() {
        in_thread(|| {
            let rights = || {
                let status = fs::read_to_string("/proc/thread-self/status").expect("it runs");
                let is_right = |line: &&str| {
                    ["Cap", "NoNewPrivs", "Seccomp"].iter().any(|key| line.starts_with(key))
                };
                status.lines().filter(is_right).map(str::to_owned).collect::<Vec<_>>()
            };
            let before = rights();
            let refused = confine(&Needs::default(), |_| ()).expect_err("there are two threads");
            assert!(refused.contains("other threads"), "{refused}");
            assert_eq!(rights(), before);
        });
    }

    #[test]
    fn only_what_is_needed_stays_in_reach() {
        let folder = std::env::temp_dir().join(format!("neap-confine-{}", std::process::id()));
        let kept = folder.join("kept");
        fs::create_dir_all(&kept).expect("a folder");
        let [mine, other] = [kept.join("mine.sock"), folder.join("other.sock")];
        for path in [&mine, &other] {
            UnixListener::bind(path).expect("a socket");
        }
        in_thread(|| {
            let needs = Needs { names: true, sockets_in: vec![kept.clone()], ..Needs::default() };
            set_no_new_privs(true).expect("Linux has it");
            if !give_up_files(&needs).expect("this kernel says no") {
                return;
            }
            let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
            assert!(File::open("/proc/self/status").is_err_and(denied));
            assert!(File::open("/etc/hostname").is_ok() && fs::read_dir("/etc").is_err_and(denied));
            assert!(fs::write(kept.join("new"), "").is_err_and(denied));
            assert!(fs::remove_file(&other).is_err_and(denied));
            fs::remove_file(&mine).expect("it is ours");
        });
        fs::remove_dir_all(&folder).expect("it is there");
    }

    #[test]
    fn who_reads_only_the_resolvers_opens_no_file_of_their_folder() {
        in_thread(|| {
            let needs = Needs { resolvers: true, ..Needs::default() };
            set_no_new_privs(true).expect("Linux has it");
            if !give_up_files(&needs).expect("this kernel says no") {
                return;
            }
            for file in ["/etc/passwd", FILE] {
                let error = File::open(file).expect_err(file);
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{file}");
                // Its state tells that it was replaced.
                fs::metadata(file).expect(file);
            }
        });
    }
}
