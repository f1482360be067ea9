//! What a tunnel has of its machine: names, descriptors, the service manager, paths with an MTU of
//! their own; and what it has given up of it.

use super::host::{Host, await_links};
use super::namespace::{in_namespace, run, skip};
use super::world::{FAR, Folder, Keys, NEAR, Tunnel, but_small_buffers, small_buffers, veth};
use super::{SERVER, client, confined, echo, echo_at, say};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

/// A user without rights.
const NOBODY: u32 = 65_534;

#[test]
fn a_target_in_the_network_of_the_machine_is_the_machines_to_resolve() {
    in_namespace(|| {
        let folder = Folder::new("host-names");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", &SERVER.replace("localhost", "db.test")));
        let near = folder.write("near.conf", &keys.near("", &client(9001)));
        let hosts = folder.path("hosts");
        fs::write(&hosts, "").expect("written");
        let (far, _echo) =
            far_host.inside(|| (Tunnel::start_with_hosts(&folder, &["-c", &far], &hosts), echo()));
        let _near = Tunnel::start(&folder, &["-c", &near]);
        let connect = || TcpStream::connect("127.0.0.1:9001").expect("a door");
        assert_eq!(connect().read(&mut [0]).unwrap_or(0), 0, "nobody knows the name");
        // Each connection asks anew.
        fs::write(&hosts, "127.0.0.1 db.test\n").expect("written");
        say(&connect(), "by a name of the machine");
        let log = far.end();
        let told = "far.conf:9: [TCPServerTunnel] Target: db.test:8080 has no address yet";
        assert!(log.contains(told) && but_small_buffers(&log).len() == 1, "{log}");
    });
}

#[test]
fn a_target_of_one_link_of_the_machine_keeps_its_zone() {
    in_namespace(|| {
        let folder = Folder::new("zone");
        let far_host = Host::new(true);
        veth(&far_host);
        let keys = Keys::new();
        let server = |zone: &str| SERVER.replace("localhost", &format!("[fe80::7%{zone}]"));
        let far = folder.write("far.conf", &keys.far("", &server("lo")));
        let near = folder.write("near.conf", &keys.near("", &client(9001)));
        let (_far, _echo) = far_host.inside(|| {
            run("ip address add fe80::7/128 dev lo nodad");
            let echo = echo_at("[::]:8080");
            (Tunnel::start(&folder, &["-c", &far]), echo)
        });
        let _near = Tunnel::start(&folder, &["-c", &near]);
        say(&TcpStream::connect("127.0.0.1:9001").expect("a door"), "to one link");
        // No other door leads to a link of the machine, and not every link is there.
        let inside = client(9002).replace("10.9.0.2", "[fe80::7%lo]");
        let inside = folder.write("inside.conf", &keys.near("", &inside));
        let (status, _, err) = folder.finish(&["wireguard", "-n", "-c", &inside]);
        assert_eq!(status, Some(2), "{err}");
        let told = "inside.conf:13: [TCPClientTunnel] Target: expected an address without a zone";
        assert!(err.contains(told), "{err}");
        let absent = keys.near("", &server("nowhere")).replace("51821", "51822");
        let absent = folder.write("absent.conf", &absent);
        let (status, _, err) = folder.finish(&["wireguard", "-c", &absent]);
        assert_eq!(status, Some(1), "{err}");
        assert!(
            err.contains("absent.conf:11: [TCPServerTunnel] Target [fe80::7%nowhere]:8080: "),
            "{err}"
        );
    });
}

#[test]
fn packets_outside_have_the_mark_of_the_file_and_of_the_next_one() {
    in_namespace(|| {
        let folder = Folder::new("mark");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        // Only what has the mark has a way out.
        let let_out = |word: &str, mark: &str| {
            run(&format!("ip rule {word} pref 10 not fwmark {mark} to {FAR} prohibit"));
        };
        let near = |mark: &str| {
            let mark = format!("FwMark = {mark}\n");
            folder.write("near.conf", &keys.near(&mark, &client(9001)))
        };
        let_out("add", "0xca6c");
        let tunnel = Tunnel::start(&folder, &["-c", &near("0xca6c")]);
        let stream = TcpStream::connect("127.0.0.1:9001").expect("a door");
        say(&stream, "with a mark");
        assert_eq!(folder.print(&["wg", "show", "near", "fwmark"]), "0xca6c\n");
        near("48879");
        tunnel.reload();
        let_out("del", "0xca6c");
        let_out("add", "0xbeef");
        say(&stream, "with another one");
        assert_eq!(folder.print(&["wg", "show", "near", "fwmark"]), "0xbeef\n");
        tunnel.end_in_silence();
    });
}

#[test]
fn a_second_file_in_another_folder_is_read_again() {
    in_namespace(|| {
        run("ip link set lo up");
        let [doors, tunnels] = ["doors", "tunnels"].map(Folder::new);
        let keys = Keys::new();
        let second = tunnels.write("wg.conf", &keys.near("", ""));
        let first = |port: u16| format!("WGConfig = {second}\n{}", client(port));
        let file = doors.write("near.conf", &first(9001));
        let tunnel = Tunnel::start(&doors, &["-c", &file]);
        TcpStream::connect("127.0.0.1:9001").expect("a door");
        let keepalive = || doors.print(&["wg", "show", "near", "persistent-keepalive"]);
        assert_eq!(keepalive(), format!("{}\t25\n", keys.far_public()));
        tunnels.write("wg.conf", &keys.near("", "").replace("= 25", "= 20"));
        tunnel.reload();
        assert_eq!(keepalive(), format!("{}\t20\n", keys.far_public()));
        TcpStream::connect("127.0.0.1:9001").expect("the door is as it was");
        // The first one may change as well.
        doors.write("near.conf", &first(9002));
        tunnel.reload();
        TcpStream::connect("127.0.0.1:9002").expect("the new door");
        tunnel.end_in_silence();
    });
}

#[test]
fn a_notify_socket_that_is_of_no_use_is_told_of() {
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("deaf");
        let file = folder.write("near.conf", &Keys::new().near("", &client(9001)));
        let mut command = folder.neap(&["wireguard", "-c", &file]);
        command.env("NOTIFY_SOCKET", "/nowhere/at/all").stderr(Stdio::piped());
        let child = command.spawn().expect("neap runs");
        while TcpStream::connect("127.0.0.1:9001").is_err() {}
        run(&format!("kill {}", child.id()));
        let output = child.wait_with_output().expect("it ends");
        let log = String::from_utf8_lossy(&output.stderr);
        let is_told = log.contains("NOTIFY_SOCKET /nowhere/at/all: ") && log.contains("AF_UNIX");
        assert!(is_told && but_small_buffers(&log).len() == 1, "{log}");
    });
}

#[test]
fn small_buffers_of_the_socket_are_told_of_once_with_what_they_should_be() {
    in_namespace(|| {
        run("ip link set lo up");
        let (folder, keys) = (Folder::new("buffers"), Keys::new());
        let near =
            |port: &str| folder.write("near.conf", &keys.near("", "").replace("51821", port));
        // Without the right to have more than the settings of the machine say, and with it, as far
        // as that is of use here. It is given up before another port gets another socket.
        let mut without = Command::new("setpriv");
        without.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
        without.args([env!("CARGO_BIN_EXE_neap"), "wireguard"]);
        without.env("XDG_RUNTIME_DIR", folder.path("")).stdin(Stdio::null());
        for command in [without, folder.neap(&["wireguard"])] {
            let tunnel = Tunnel::spawn(&folder, command, &["-c", &near("51821")]);
            tunnel.reload();
            near("51822");
            tunnel.reload();
            near("51823");
            tunnel.reload();
            let log = tunnel.end();
            // Where the settings let everybody have large ones, nothing is told.
            let expected = small_buffers();
            assert_eq!(log.lines().count(), usize::from(expected.is_some()), "{log}");
            let is_told = |line: String| log.contains(" WARN ") && log.trim_end().ends_with(&line);
            assert!(expected.is_none_or(is_told), "{log}");
            fs::remove_file(folder.path("near.notify")).expect("it was there");
        }
    });
}

#[test]
fn connections_that_find_no_room_are_told_of_once() {
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("full");
        let file = folder.write("near.conf", &Keys::new().near("", &client(9001)));
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 200; exec \"$0\" wireguard \"$@\""]);
        command.arg(env!("CARGO_BIN_EXE_neap")).env("XDG_RUNTIME_DIR", folder.path(""));
        let tunnel = Tunnel::spawn(&folder, command, &["-c", &file]);
        let connect = |_| TcpStream::connect("127.0.0.1:9001").expect("the port is open");
        let held: Vec<_> = (0..180).map(connect).collect();
        let refused = || {
            let figures = folder.print(&["nstat", "-a", "--name", "near"]);
            figure(&figures, "DoorsFull")
        };
        while refused() < 2 {}
        drop(held);
        let log = tunnel.end();
        assert_eq!(log.matches("a connection was refused").count(), 1, "{log}");
        assert!(
            log.contains("DoorsFull") && log.contains("as many connections as there may be"),
            "{log}"
        );
    });
}

/// A counter in what `nstat` prints; 0 if it is not there.
fn figure(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().map(str::split_whitespace);
    let found = lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()));
    found.flatten().map_or(0, |count| count.parse().expect("a count"))
}

/// A process that ends with the test, also where that fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_routed_into_a_tun_goes_through_a_tunnel_by_the_chosen_congestion_control() {
    in_namespace(|| {
        let folder = Folder::new("tun");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        let near = folder.write("near.conf", &keys.near("DNS = 10.9.0.2\n", ""));
        let upstream = format!("wireguard:{near}");
        let through = ["--upstream", &upstream, "--congestion", "bbr"];
        let tun = ["gateway", "tun", "--tun", "gate0", "--host-address", "10.0.2.100/24"];
        let child = folder.neap(&[&tun[..], &through].concat()).spawn();
        let mut child = Killed(child.expect("neap runs"));
        // Its control socket is there once it takes connections. Before, the stack resets them.
        while folder.finish(&["ss", "--name", "gateway"]).0 != Some(0) {
            assert!(child.0.try_wait().expect("a child").is_none(), "the gateway has ended");
        }
        run("ip route add 10.9.0.0/24 dev gate0");
        let stream = TcpStream::connect("10.9.0.2:80").expect("a way");
        say(&stream, "through both");
        let flows = folder.print(&["ss", "-tni", "--name", "near"]);
        assert!(flows.contains("10.9.0.2:80") && flows.contains(" bbr "), "{flows}");
        run(&format!("kill {}", child.0.id()));
        assert!(child.0.wait().expect("it ends").success());

        let (status, _, err) =
            folder.finish(&["gateway", "run", "--congestion", "bbr", "--", "true"]);
        assert!(status == Some(2) && err.contains("--congestion is for a tunnel"), "{err}");
    });
}

/// Joins this host and another one by two routers, between which packets may have `mtu` bytes: no
/// end knows it from a link of its own. Returns the address of the other host.
fn join_by_routers([first, second]: &[Host; 2], far: &Host, mtu: u16) -> &'static str {
    let far_address = "198.51.100.2";
    run("ip link set lo up");
    run(&format!("ip link add near type veth peer name left netns {}", first.pid()));
    run(&format!("ip address add {NEAR}/24 dev near"));
    run("ip link set near up");
    first.inside(|| {
        let second = second.pid();
        run(&format!("ip link add right mtu {mtu} type veth peer name left netns {second}"));
        run(&format!("ip address add {FAR}/24 dev left"));
        run("ip address add 203.0.113.1/24 dev right");
        run("ip link set left up");
        run("ip link set right up");
        run("sysctl -qw net.ipv4.ip_forward=1");
        run("ip route add default via 203.0.113.2");
    });
    run(&format!("ip route add default via {FAR}"));
    second.inside(|| {
        run(&format!("ip link add right type veth peer name far netns {}", far.pid()));
        run("ip address add 203.0.113.2/24 dev left");
        run("ip address add 198.51.100.1/24 dev right");
        run(&format!("ip link set left mtu {mtu} up"));
        run("ip link set right up");
        run("sysctl -qw net.ipv4.ip_forward=1");
        run("ip route add default via 203.0.113.1");
    });
    far.inside(|| {
        run("ip link set lo up");
        run(&format!("ip address add {far_address}/24 dev far"));
        run("ip link set far up");
        run("ip route add default via 198.51.100.1");
        await_links(&["far"]);
    });
    await_links(&["near"]);
    for router in [first, second] {
        router.inside(|| await_links(&["left", "right"]));
    }
    far_address
}

/// Sends a pattern there and back over a path whose middle takes less than its ends.
/// `interface` are more lines of `[Interface]`. Returns whether super-frames might be cut although
/// the router has told of its path.
fn pass_router(mtu: u16, interface: &str) -> bool {
    let folder = Folder::new(&format!("router-{mtu}-{}", interface.len()));
    let (routers, far_host) = ([(); 2].map(|()| Host::new(false)), Host::new(false));
    let far_address = join_by_routers(&routers, &far_host, mtu);
    let keys = Keys::new();
    let far = folder.write("far.conf", &keys.far(interface, SERVER));
    let near = keys.near(interface, &client(9001)).replace(FAR, far_address);
    let near = folder.write("near.conf", &near);
    let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
    let _near = Tunnel::start(&folder, &["-c", &near]);
    let mut stream = TcpStream::connect("127.0.0.1:9001").expect("a door");
    let bytes: Vec<u8> =
        (0..4u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    // What is made before the router has told leaves at the first time.
    let cut = [(); 2].map(|()| {
        let (sending, sent) = (stream.try_clone().expect("a descriptor"), bytes.clone());
        let sender = thread::spawn(move || (&sending).write_all(&sent).expect("sent"));
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back).expect("echoed");
        sender.join().expect("no panic");
        assert!(back == bytes, "other bytes");
        let figures = folder.print(&["nstat", "-a", "--name", "near"]);
        assert!(figure(&figures, "path_mtu_changes") >= 1, "{figures}");
        assert_eq!(figure(&figures, "black_holes"), 0, "{figures}");
        figure(&figures, "sent_fragmentable")
    });
    cut[1] > cut[0]
}

#[test]
fn a_path_that_takes_less_is_learned_from_its_router() {
    in_namespace(|| assert!(!pass_router(1400, "")));
}

#[test]
fn a_path_that_takes_less_than_ipv6_needs_inside_is_passed_by_fragments() {
    in_namespace(|| assert!(pass_router(1300, "Address = fd09::1\n")));
}

#[test]
fn a_tunnel_without_ipv6_follows_a_path_that_takes_even_less() {
    in_namespace(|| assert!(!pass_router(700, "")));
}

#[test]
fn a_file_that_leads_out_of_its_folder_later_is_out_of_reach() {
    if !confined::has_landlock() {
        return skip("this kernel has no Landlock");
    }
    in_namespace(|| {
        run("ip link set lo up");
        let [folder, elsewhere] = ["leads", "elsewhere"].map(Folder::new);
        let keys = Keys::new();
        let near = folder.write("near.conf", &keys.near("", &client(9001)));
        let tunnel = Tunnel::start(&folder, &["-c", &near]);
        let real = elsewhere.write("real.conf", &keys.near("", &client(9002)));
        let link = folder.path("link");
        symlink(real, &link).expect("a link");
        fs::rename(link, near).expect("it is there");
        tunnel.reload();
        assert!(TcpStream::connect("127.0.0.1:9002").is_err(), "the other file was read");
        TcpStream::connect("127.0.0.1:9001").expect("the door is as it was");
        let log = tunnel.end();
        let is_told = log.contains("nothing has changed: ") && log.contains("cannot be read: ");
        assert!(is_told, "{log}");
    });
}

/// A command of the user without rights.
fn of_nobody(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}")]);
    command.args(["--clear-groups", program]).stdin(Stdio::null());
    command
}

fn nobody_can_run(program: &str) -> bool {
    let version = of_nobody(program).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

#[test]
fn a_user_without_rights_has_a_tunnel_without_the_mark_of_its_file() {
    let neap = env!("CARGO_BIN_EXE_neap");
    if !nobody_can_run(neap) {
        return skip("no other user can run neap");
    }
    in_namespace(|| {
        let folder = Folder::new("unmarked");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let near = folder.write("near.conf", &keys.near("FwMark = 0xca6c\n", &client(9001)));
        chown(&near, Some(NOBODY), Some(NOBODY)).expect("root may");
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        let mut command = of_nobody(neap);
        command.arg("wireguard").env("XDG_RUNTIME_DIR", "/nowhere");
        let tunnel = Tunnel::spawn(&folder, command, &["-c", &near]);
        let stream = TcpStream::connect("127.0.0.1:9001").expect("a door");
        say(&stream, "without a mark");
        tunnel.reload();
        say(&stream, "still without");
        let log = tunnel.end();
        let told: Vec<_> = log.lines().filter(|line| line.contains("FwMark")).collect();
        assert_eq!(told.len(), 1, "{log}");
        let why = "near.conf:4: [Interface] FwMark: fwmark 0xca6c needs CAP_NET_ADMIN: ";
        assert!(told[0].contains(why) && told[0].contains("rules by fwmark"), "{log}");
    });
}

#[test]
fn no_other_process_of_the_user_can_look_into_a_tunnel() {
    let neap = env!("CARGO_BIN_EXE_neap");
    if !nobody_can_run(neap) {
        return skip("no other user can run neap");
    }
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("looks");
        let text = Keys::new().near("", &client(9001));
        let own = folder.path("own");
        fs::create_dir(&own).expect("a folder");
        for path in [folder.write("near.conf", &text).into(), own.clone()] {
            chown(path, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        let looks = |pid: u32| {
            let environ = format!("/proc/{pid}/environ");
            let owner = fs::metadata(&environ).expect("it runs").uid();
            let Output { status, .. } = of_nobody("cat").arg(environ).output().expect("it runs");
            (owner, status.success())
        };
        // Another program of this user can be looked into, once it is there.
        let mut command = of_nobody("cat");
        let mut open =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        writeln!(open.stdin.as_mut().expect("a pipe"), "there").expect("sent");
        let mut output = BufReader::new(open.stdout.take().expect("a pipe"));
        output.read_line(&mut String::new()).expect("a line");
        assert_eq!(looks(open.id()), (NOBODY, true));
        drop(open.stdin.take());
        open.wait().expect("it ends");

        let mut command = of_nobody(neap);
        command.arg("wireguard").env("XDG_RUNTIME_DIR", own);
        let file = folder.path("near.conf");
        let tunnel = Tunnel::spawn(&folder, command, &["-c", file.to_str().expect("text")]);
        assert_eq!(looks(tunnel.pid()), (0, false));
    });
}

/// Another stack of this user, which answers no question that is understood, but for what it is.
fn mute(folder: &Folder, name: &str, knows_itself: bool) {
    let pid = std::process::id();
    let path = folder.path("neap").join(format!("{pid}-{name}.sock"));
    let listener = UnixListener::bind(path).expect("a socket");
    let stack = json!({
        "neap": 1, "pid": pid, "name": name, "program": "mute", "uid": 0, "uptime": 0,
        "addresses": []
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("somebody asks");
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).expect("a request");
            let is_known = knows_itself && request.contains("\"stack\"");
            let answer = if is_known { format!("{stack}\n{{\"end\":0}}\n") } else { "?\n".into() };
            // Whoever asks may be gone.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}

#[test]
fn an_interface_is_shown_beside_a_stack_that_does_not_answer() {
    in_namespace(|| {
        run("ip link set lo up");
        let (folder, keys) = (Folder::new("mute"), Keys::new());
        let near = folder.write("near.conf", &keys.near("", ""));
        let _tunnel = Tunnel::start(&folder, &["-c", &near]);
        mute(&folder, "mute", true);
        mute(&folder, "deaf", false);
        let key = format!("{}\n", keys.near_public());
        assert_eq!(folder.print(&["wg", "show", "near", "public-key"]), key);
        let silent = |name| format!("process {} ({name}) does not answer: ", std::process::id());
        for (name, printed, told) in [
            ("far", "", "no such interface: there are near; "),
            ("all", &format!("near\t{key}"), ""),
        ] {
            let (status, out, err) = folder.finish(&["wg", "show", name, "public-key"]);
            assert_eq!((status, out.as_str()), (Some(1), printed), "{err}");
            assert!(err.starts_with(&format!("neap wg: {told}process ")), "{err}");
            assert!(err.contains(&silent("mute")) && err.contains(&silent("deaf")), "{err}");
        }
        let (status, out, err) = folder.finish(&["wg", "show", "interfaces"]);
        assert_eq!((status, out.as_str()), (Some(1), "near\n"), "{err}");
    });
}
