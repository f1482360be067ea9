//! Names in the sandbox: resolvers of the host, asked by the gateway.

use super::folder::Folder;
use super::namespace::{in_namespace, run};
use super::{SERVER, env, finish, in_network};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Where the sandbox asks.
const DNS: &str = "10.0.2.3:53";
/// A question for the type that nobody knows (65280), with an unusual flag.
const QUESTION: &[u8] = b"\x12\x34\x01\x20\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\
                          \xff\x00\x00\x01";

/// Programs in the sandbox.
pub(super) fn inside(program: &str, place: &str) -> bool {
    match program {
        "ask" => ask_on_command(),
        "ask once" => assert_eq!(ask(), "answer 5"),
        "ask over tcp" => {
            let mut stream = TcpStream::connect(DNS).expect("the resolver takes connections");
            let length = [0, QUESTION.len() as u8];
            stream.write_all(&[&length, QUESTION].concat()).expect("sent");
            let mut answer = vec![0; 2 + QUESTION.len() + 1];
            stream.read_exact(&mut answer).expect("an answer");
            println!("answer {}", answer[2 + QUESTION.len()]);
        }
        "ask services" => {
            for path in place.split(' ') {
                let service = UnixStream::connect(path);
                println!("{path}: {}", if service.is_ok() { "there" } else { "hidden" });
            }
            print!("{}", fs::read_to_string("/etc/nsswitch.conf").expect("a file"));
        }
        _ => return false,
    }
    true
}

/// For each line of the input: asks the resolver, and says which one has answered, by the byte that
/// it puts behind the question.
fn ask_on_command() {
    println!("ready");
    for _ in std::io::stdin().lines() {
        let resolvers = fs::read_to_string("/etc/resolv.conf").expect("a file");
        assert_eq!(resolvers, "nameserver 10.0.2.3\n");
        println!("{}", ask());
    }
}

/// What the resolver of the sandbox says.
fn ask() -> String {
    ask_at(DNS)
}

/// What a resolver says: the byte that it puts behind the question.
pub(super) fn ask_at(resolver: &str) -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(resolver).expect("a route");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    socket.send(QUESTION).expect("sent");
    let mut answer = [0; 100];
    let count = socket.recv(&mut answer).expect("an answer");
    assert_eq!(answer[..2], QUESTION[..2], "the ID is that of the question");
    // A failure repeats the question and has nothing behind it.
    match answer[..count].get(QUESTION.len()) {
        Some(byte) => format!("answer {byte}"),
        None => format!("failure {}", answer[3] & 15),
    }
}

/// A resolver that answers with the question and `mark` behind it, after lies of others. Returns
/// the ports and IDs that it was asked with.
pub(super) fn resolver(address: &str, mark: u8) -> Receiver<(SocketAddr, u16)> {
    let socket = UdpSocket::bind((address, 53)).expect("a port");
    let (tell, told): (Sender<(SocketAddr, u16)>, _) = channel();
    thread::spawn(move || {
        let mut question = [0; 100];
        while let Ok((count, from)) = socket.recv_from(&mut question) {
            let question = &mut question[..count];
            let _ = tell.send((from, u16::from_be_bytes([question[0], question[1]])));
            question[2] |= 0x80;
            let send = |bytes: &[u8]| socket.send_to(bytes, from).expect("sent");
            // Another ID, another question, nonsense.
            let mut lie = [&*question, &[0xff]].concat();
            lie[1] ^= 1;
            send(&lie);
            lie[1] ^= 1;
            lie[14] ^= 1;
            send(&lie);
            send(b"?");
            send(&[&*question, &[mark]].concat());
        }
    });
    told
}

/// A resolver that answers over TCP with the question and `mark` behind it.
pub(super) fn answer_over_tcp(listener: &TcpListener, mark: u8) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        let mut question = vec![0; 2 + QUESTION.len()];
        stream.read_exact(&mut question).expect("a question");
        question[1] += 1;
        question[4] |= 0x80;
        stream.write_all(&[&question[..], &[mark]].concat()).expect("sent");
    }
}

/// A sandbox on a host whose /etc is a folder of the test.
pub(super) struct Sandbox {
    child: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Sandbox {
    pub(super) fn start(etc: &Folder, options: &str) -> Self {
        let mut child = command(etc, options, "ask")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is there");
        let stdin = child.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text") == "ready"), "the sandbox has ended");
        Self { child, stdin, lines }
    }

    /// The process of the gateway.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn ask(&mut self) -> String {
        self.stdin.write_all(b"go\n").expect("it listens");
        self.lines.next().expect("it has not ended").expect("text")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(etc: &Folder, options: &str, program: &str) -> Command {
    let own = env::current_exe().expect("the test knows its binary");
    let script = format!(
        "mount --bind {} /etc && exec {} gateway run {options} -- {} --exact inside --nocapture",
        etc.path().display(),
        env!("CARGO_BIN_EXE_neap"),
        own.display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).stdin(Stdio::null());
    command.env(super::PROGRAM, program).env(super::TARGET, "");
    command
}

/// Replaces a file as programs do that write resolv.conf.
pub(super) fn replace(etc: &Folder, text: &str) {
    etc.write("resolv.conf.new", text);
    fs::rename(etc.path().join("resolv.conf.new"), etc.path().join("resolv.conf")).expect("moved");
}

#[test]
fn each_question_has_its_own_port_and_id_and_only_its_answer_counts() {
    in_namespace(|| {
        in_network(|| {
            let told = resolver(SERVER, 1);
            let etc = Folder::new("etc");
            replace(&etc, &format!("nameserver {SERVER}\n"));
            let mut sandbox = Sandbox::start(&etc, "");
            for _ in 0..8 {
                assert_eq!(sandbox.ask(), "answer 1");
            }
            let asked: Vec<_> = told.try_iter().collect();
            assert_eq!(asked.len(), 8);
            let differ = |key: fn(&(SocketAddr, u16)) -> u16| {
                let mut keys: Vec<_> = asked.iter().map(key).collect();
                keys.sort_unstable();
                keys.dedup();
                keys.len() > 4
            };
            assert!(differ(|(from, _)| from.port()) && differ(|(_, id)| *id), "{asked:?}");
        });
    });
}

#[test]
fn a_resolver_that_is_silent_or_closed_is_followed_by_the_next() {
    in_namespace(|| {
        in_network(|| {
            let silent = UdpSocket::bind("127.0.0.2:53").expect("a port");
            let told = resolver(SERVER, 7);
            let etc = Folder::new("etc");
            // Nobody has port 53 of the first.
            let text = format!("nameserver 127.0.0.9\nnameserver 127.0.0.2\nnameserver {SERVER}\n");
            replace(&etc, &text);
            let mut sandbox = Sandbox::start(&etc, "");
            for _ in 0..3 {
                assert_eq!(sandbox.ask(), "answer 7");
            }
            assert_eq!(told.try_iter().count(), 3);
            silent.set_nonblocking(true).expect("a socket");
            let mut question = [0; 100];
            for _ in 0..2 {
                silent.recv(&mut question).expect("it was asked");
            }
            assert!(
                silent.recv(&mut question).is_err(),
                "a silent one is behind the others for a while"
            );
            replace(&etc, "nameserver 127.0.0.9\n");
            assert_eq!(sandbox.ask(), "failure 2", "nobody answers");
        });
    });
}

#[test]
fn resolv_conf_is_read_again_and_that_of_the_sandbox_stays() {
    in_namespace(|| {
        in_network(|| {
            let _told = (resolver(SERVER, 1), resolver("127.0.0.1", 2));
            let etc = Folder::new("etc");
            etc.write("passwd", "root:x:0:0::/:/bin/sh\n");
            std::os::unix::fs::symlink("passwd", etc.path().join("link")).expect("a link");
            replace(&etc, &format!("nameserver {SERVER}\n"));
            let mut sandbox = Sandbox::start(&etc, "");
            assert_eq!(sandbox.ask(), "answer 1");
            replace(&etc, "nameserver 127.0.0.1\n");
            assert_eq!(sandbox.ask(), "answer 2");
            fs::remove_file(etc.path().join("resolv.conf")).expect("it is there");
            assert_eq!(sandbox.ask(), "answer 2", "a host without the file asks itself");
            replace(&etc, &format!("nameserver {SERVER}\n"));
            assert_eq!(sandbox.ask(), "answer 1");
            drop(sandbox);
            // What else is in the folder is the host's, also by links, and so is what it looks for.
            replace(&etc, &format!("search example.org\nnameserver {SERVER}\noptions ndots:2\n"));
            let script = format!(
                "mount --bind {} /etc && exec {} gateway run -- cat /etc/passwd /etc/link \
                 /etc/resolv.conf",
                etc.path().display(),
                env!("CARGO_BIN_EXE_neap")
            );
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", &script]).stdin(Stdio::null());
            let (status, stdout, stderr) = finish(command);
            let line = "root:x:0:0::/:/bin/sh\n";
            let resolver = "search example.org\noptions ndots:2\nnameserver 10.0.2.3\n";
            let expected = [line, line, resolver].concat();
            assert!(status == Some(0) && stdout == expected, "{stdout}{stderr}");
        });
    });
}

#[test]
fn services_of_the_host_that_resolve_names_are_not_in_the_sandbox() {
    const SERVICES: [&str; 3] =
        ["nscd/socket", "systemd/resolve/io.systemd.Resolve", "avahi-daemon/socket"];
    in_namespace(|| {
        in_network(|| {
            let (etc, services) = (Folder::new("etc"), Folder::new("run"));
            etc.write(
                "nsswitch.conf",
                "hosts: files resolve [!UNAVAIL=return] dns\npasswd: files\n",
            );
            let own = env::current_exe().expect("the test knows its binary");
            let mut command = Command::new("unshare");
            let script = format!(
                "mount --bind {} /etc && mount --bind {} /run && exec {} gateway run -- {} \
                 --exact inside --nocapture",
                etc.path().display(),
                services.path().display(),
                env!("CARGO_BIN_EXE_neap"),
                own.display()
            );
            let listeners = SERVICES.iter().chain(&["other/socket"]).map(|name| {
                let path = services.path().join(name);
                fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                UnixListener::bind(path).expect("a socket")
            });
            let _listeners: Vec<_> = listeners.collect();
            let places: Vec<_> = SERVICES
                .iter()
                .chain(&["other/socket"])
                .map(|name| format!("/run/{name}"))
                .collect();
            command.args(["-m", "sh", "-c", &script]).stdin(Stdio::null());
            command.env(super::PROGRAM, "ask services").env(super::TARGET, places.join(" "));
            let (status, stdout, stderr) = finish(command);
            let hidden: String =
                places[..3].iter().map(|path| format!("{path}: hidden\n")).collect();
            let expected =
                format!("{hidden}/run/other/socket: there\npasswd: files\nhosts: files dns\n");
            assert!(status == Some(0) && stdout.contains(&expected), "{stdout}{stderr}");
        });
    });
}

#[test]
fn questions_over_tcp_and_to_a_given_resolver_are_passed_on() {
    in_namespace(|| {
        in_network(|| {
            let _told = resolver(SERVER, 3);
            let listener = TcpListener::bind((SERVER, 53)).expect("a port");
            thread::spawn(move || answer_over_tcp(&listener, 4));
            let etc = Folder::new("etc");
            replace(&etc, &format!("nameserver {SERVER}\n"));
            for options in ["", "--dns direct", &format!("--dns {SERVER}")] {
                let (status, stdout, stderr) = finish(command(&etc, options, "ask over tcp"));
                assert!(status == Some(0) && stdout.contains("answer 4"), "{stdout}{stderr}");
                assert_eq!(Sandbox::start(&etc, options).ask(), "answer 3");
            }
        });
    });
}

#[test]
fn a_question_over_tcp_goes_to_the_next_resolver_if_one_is_closed_or_silent() {
    in_namespace(|| {
        in_network(|| {
            // Whoever is at the other end of this link answers nobody.
            run("ip link add silent type veth peer name nobody");
            run("ip address add 198.51.100.1/24 dev silent");
            run("ip link set nobody up");
            run("ip link set silent up");
            run("ip neighbour add 198.51.100.2 lladdr 02:00:00:00:00:01 dev silent");
            let listener = TcpListener::bind((SERVER, 53)).expect("a port");
            thread::spawn(move || answer_over_tcp(&listener, 4));
            let etc = Folder::new("etc");
            for first in ["127.0.0.9", "198.51.100.2", "198.51.100.2\nnameserver 127.0.0.9"] {
                replace(&etc, &format!("nameserver {first}\nnameserver {SERVER}\n"));
                let (status, stdout, stderr) = finish(command(&etc, "", "ask over tcp"));
                assert!(status == Some(0) && stdout.contains("answer 4"), "{stdout}{stderr}");
            }
            replace(&etc, "nameserver 127.0.0.9\nnameserver 127.0.0.8\n");
            let (status, _, stderr) = finish(command(&etc, "", "ask over tcp"));
            assert!(status != Some(0) && stderr.contains("ConnectionRefused"), "{stderr}");
        });
    });
}
