//! The folder /etc of a sandbox, in which the gateway is the resolver.
//!
//! A file that is mounted over the host's `resolv.conf` is lost when the host replaces its own: the
//! kernel takes mounts away from a name that is given to another file. So the whole folder is the
//! sandbox's, with links to what the host has in its own.
//!
//! Programs also ask services of the host for names, whose sockets no network namespace keeps from
//! them: those that `nsswitch.conf` names, and nscd, which comes before that. So the sandbox has an
//! `nsswitch.conf` of its own, and the folders of these sockets are empty there.

use super::sandbox;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_move,
};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const FOLDER: &str = "/etc";
/// What names those who are asked for names.
const SWITCH: &str = "nsswitch.conf";
/// Folders with sockets of services that resolve names: nscd, systemd-resolved and Avahi.
const SERVICES: [&str; 5] = [
    "/run/nscd",
    "/run/systemd/resolve",
    "/run/avahi-daemon",
    "/var/run/nscd",
    "/var/run/avahi-daemon",
];
/// What names the resolver.
pub(super) const RESOLVER: &str = "resolv.conf";
/// Most bytes of the host's file that are looked at.
const MOST_OF_RESOLVER: u64 = 64 << 10;
/// Most lines of it that the sandbox gets.
const MOST_LINES: usize = 16;
/// Where the folder is made before it is put in its place. Nothing of it is on a disk.
const SCRATCH: &str = "/tmp";
/// The host's folder in that of the sandbox.
const OF_THE_HOST: &str = ".host";

/// Makes the gateway the resolver of the sandbox, in a mount namespace of its own. Names are looked
/// up in these domains, or without them in those of the host.
///
/// # Errors
/// What the kernel says of mounts.
pub(super) fn use_resolver(search: Option<&str>) -> io::Result<()> {
    // What is mounted here stays here.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // It may be a link to what is hidden next.
    let resolver = resolver_of_sandbox(&of_the_host(RESOLVER), search);
    hide_services(flags)?;
    // One that programs cannot read either is none.
    let switch = fs::read(Path::new(FOLDER).join(SWITCH)).unwrap_or_default();
    let switch = switch_of_sandbox(&String::from_utf8_lossy(&switch));
    mount("tmpfs", SCRATCH, "tmpfs", flags, c"size=1m,mode=755")?;
    let scratch = Path::new(SCRATCH);
    let host = scratch.join(OF_THE_HOST);
    fs::create_dir(&host)?;
    mount_bind_recursive(FOLDER, &host)?;
    for entry in fs::read_dir(FOLDER)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == RESOLVER || name == SWITCH || name == OF_THE_HOST {
            continue;
        }
        // A link leads on from where it is, so that it is copied.
        let target = match fs::read_link(entry.path()) {
            Ok(target) => target,
            Err(_) => Path::new(OF_THE_HOST).join(&name),
        };
        symlink(target, scratch.join(&name))?;
    }
    fs::write(scratch.join(RESOLVER), resolver)?;
    fs::write(scratch.join(SWITCH), switch)?;
    mount_move(SCRATCH, FOLDER)?;
    Ok(())
}

/// The beginning of a file of the host's folder; nothing if it cannot be read.
fn of_the_host(name: &str) -> String {
    let mut bytes = Vec::new();
    let file = File::open(Path::new(FOLDER).join(name));
    let read = file.and_then(|file| file.take(MOST_OF_RESOLVER).read_to_end(&mut bytes));
    read.map_or_else(|_| String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
}

/// The `resolv.conf` of a sandbox, of the host's: it asks the gateway, as the host would ask
/// (`options`), and for what the host would ask for (`search`, `domain`) unless there are other
/// domains.
fn resolver_of_sandbox(of_the_host: &str, search: Option<&str>) -> String {
    let is_kept = |line: &&str| {
        let word = line.split([' ', '\t']).next();
        let is_text = line.chars().all(|sign| sign == '\t' || (' '..='~').contains(&sign));
        let is_search = matches!(word, Some("search" | "domain"));
        is_text && (word == Some("options") || (is_search && search.is_none()))
    };
    let kept = of_the_host.lines().filter(is_kept).take(MOST_LINES);
    let lines = kept.map(|line| format!("{line}\n"));
    let search = search.filter(|domains| !domains.is_empty());
    let search = search.map(|domains| format!("search {domains}\n"));
    lines.chain(search).chain([format!("nameserver {}\n", sandbox::DNS.ip())]).collect()
}

/// Makes the folders of services empty.
fn hide_services(flags: MountFlags) -> io::Result<()> {
    let mut hidden: Vec<PathBuf> = Vec::new();
    // A service that the host does not have has no folder, and some folders have two names.
    for folder in SERVICES.iter().filter_map(|folder| fs::canonicalize(folder).ok()) {
        if folder.is_dir() && !hidden.contains(&folder) {
            mount("tmpfs", &folder, "tmpfs", flags | MountFlags::RDONLY, c"size=4k,mode=755")?;
            hidden.push(folder);
        }
    }
    Ok(())
}

/// The `nsswitch.conf` of a sandbox, of the host's: names of hosts come from files and from the
/// resolver. `myhostname` asks nobody.
fn switch_of_sandbox(of_the_host: &str) -> String {
    let is_end = |sign: char| sign == ':' || sign.is_whitespace();
    let is_of_hosts = |line: &&str| line.trim_start().split(is_end).next() == Some("hosts");
    let has_own_name = |line: &str| {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace().any(|word| word == "myhostname")
    };
    let own_name = of_the_host.lines().filter(is_of_hosts).any(has_own_name);
    let others = of_the_host.lines().filter(|line| !is_of_hosts(line));
    let hosts = if own_name { "hosts: files myhostname dns" } else { "hosts: files dns" };
    others.chain([hosts]).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_asks_the_gateway_as_the_host_asks_its_resolvers() {
        for (host, sandbox) in [
            ("", ""),
            (
                "# mine\nnameserver 192.0.2.1\nsearch corp.example example.org\n\
                 options ndots:5\tedns0\nsortlist 192.0.2.0\nnameserver ::1\n",
                "search corp.example example.org\noptions ndots:5\tedns0\n",
            ),
            ("domain example.org", "domain example.org\n"),
            ("searching x\n search x\nsearch \u{1b}[2J\noptions \u{fffd}\n", ""),
            (&"options x\n".repeat(100), &"options x\n".repeat(MOST_LINES)),
        ] {
            let expected = format!("{sandbox}nameserver 10.0.2.3\n");
            assert_eq!(resolver_of_sandbox(host, None), expected, "{host:?}");
        }
    }

    #[test]
    fn a_sandbox_looks_names_up_in_the_domains_of_its_way_out() {
        let host = "search corp.example\ndomain example.org\noptions ndots:5\n";
        let own = "nameserver 10.0.2.3\n";
        let with = resolver_of_sandbox(host, Some("vpn.example lab.example"));
        assert_eq!(with, format!("options ndots:5\nsearch vpn.example lab.example\n{own}"));
        assert_eq!(resolver_of_sandbox(host, Some("")), format!("options ndots:5\n{own}"));
    }

    #[test]
    fn names_of_hosts_come_from_files_and_the_resolver_alone() {
        for (host, sandbox) in [
            ("", "hosts: files dns\n"),
            (
                "passwd: files systemd\n hosts:\tfiles myhostname resolve [!UNAVAIL=return] dns\n\
                 # hosts: db\nnetworks: files",
                "passwd: files systemd\n# hosts: db\nnetworks: files\nhosts: files myhostname dns\n",
            ),
            ("hosts dns mdns4 # no myhostname\n", "hosts: files dns\n"),
            ("hostsx: a\n", "hostsx: a\nhosts: files dns\n"),
        ] {
            assert_eq!(switch_of_sandbox(host), sandbox, "{host:?}");
        }
    }
}
