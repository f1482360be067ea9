//! The end of a network with a tunnel: what the tunnel has taken arrives.

use super::eventually;
use super::host::Host;
use super::namespace::{in_namespace, run};
use super::peers::{Program, can_run};
use super::running::Running;
use super::world::{FAR_INSIDE, World, pattern};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

/// Less than the stack of a tunnel takes at once.
const LEN: usize = 500_000;
const PORT: u16 = 9000;

/// A world whose tunnel needs seconds for what is sent, and a server that reads one stream.
fn world(name: &str, program: &Program) -> (World, JoinHandle<std::io::Result<Vec<u8>>>) {
    let world = World::new(name, program);
    run("tc qdisc add dev outside root tbf rate 2mbit burst 16kb limit 2mb");
    let listener =
        world.host.inside(|| TcpListener::bind((FAR_INSIDE[0], PORT)).expect("the address"));
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map(|_| all)
    });
    (world, server)
}

/// The server has all, and the end behind it.
fn has_arrived(server: JoinHandle<std::io::Result<Vec<u8>>>) {
    let all = server.join().expect("no panic").expect("the end of the stream");
    assert!(all == pattern(LEN), "{} bytes of {LEN}, or others", all.len());
}

#[test]
fn what_a_command_of_pasta_has_sent_arrives_behind_its_end() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["tc", "bash"]) {
        return;
    }
    in_namespace(|| {
        let (world, server) = world("pasta-rest", &program);
        let file = world.file("");
        let upload = world.folder.path().join("upload");
        fs::write(&upload, pattern(LEN)).expect("room");
        let send = format!("cat {} > /dev/tcp/{}/{PORT}", upload.display(), FAR_INSIDE[0]);
        let script = world.folder.write("send", &send);
        run(&format!(
            "{neap} pasta --config-net -q --runas 0 --upstream wireguard:{file} -- bash {script}",
            neap = env!("CARGO_BIN_EXE_neap"),
        ));
        has_arrived(server);
    });
}

/// A guest of slirp4netns has sent all and is done, and the network ends.
fn arrives(program: &Program, by_signal: bool) {
    let (world, server) = world("slirp-rest", program);
    let (guest, file) = (Host::new(true), world.file(""));
    let (folder, neap) = (world.folder.path().display(), env!("CARGO_BIN_EXE_neap"));
    run(&format!("mkfifo {folder}/exit"));
    let script = format!(
        "exec env XDG_RUNTIME_DIR={folder} {neap} slirp4netns -c -r 3 -e 4 \
         --upstream wireguard:{file} {guest} tap0 3>{folder}/ready 4<{folder}/exit",
        guest = guest.pid(),
    );
    let slirp = Running::start(&world.folder, &["sh", "-c", &script]);
    // It begins once both ends are open.
    let exit = fs::File::options().write(true).open(format!("{folder}/exit")).expect("a pipe");
    eventually("a network that is ready", || {
        assert!(slirp.is_running(), "{}", slirp.log());
        fs::read(format!("{folder}/ready")).ok().filter(|told| told == b"1")
    });
    let connect = || TcpStream::connect((FAR_INSIDE[0], PORT)).expect("the server accepts");
    let mut client = guest.inside(connect);
    client.write_all(&pattern(LEN)).expect("sent");
    drop(client);
    eventually("the end in the tunnel", || {
        let listed = run(&format!("env XDG_RUNTIME_DIR={folder} {neap} ss --name near -tan"));
        listed.contains("FIN-WAIT").then_some(())
    });
    if by_signal {
        run(&format!("kill {}", slirp.pid()));
    } else {
        drop(exit);
    }
    has_arrived(server);
    eventually("the end", || (!slirp.is_running()).then_some(()));
}

#[test]
fn what_a_guest_of_slirp4netns_has_sent_arrives_behind_a_signal() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["tc"]) {
        return;
    }
    in_namespace(|| arrives(&program, true));
}

#[test]
fn what_a_guest_of_slirp4netns_has_sent_arrives_behind_the_end_of_the_exit_descriptor() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["tc"]) {
        return;
    }
    in_namespace(|| arrives(&program, false));
}
