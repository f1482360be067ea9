//! What changes beneath a transfer: addresses, ports, and processes of either side.

use super::eventually;
use super::namespace::{in_namespace, run};
use super::near::{DOORS, Neap, TO_WEB};
use super::peers::Program;
use super::world::{FAR, FAR_INTERFACE, NEAR, World, pattern};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Bytes of a transfer, far more than buffers hold, and those before something changes.
const LEN: usize = 48 << 20;
const BEFORE: usize = 1 << 20;
/// Bytes of an upload.
const UPLOAD: usize = 24 << 20;

/// A download through the tunnel during which `change` happens.
fn download_while(change: impl FnOnce()) {
    let mut stream = TcpStream::connect(("127.0.0.1", TO_WEB)).expect("a port that leads to it");
    write!(stream, "GET /{LEN} HTTP/1.0\r\n\r\n").expect("sent");
    let mut bytes = vec![0; BEFORE];
    stream.read_exact(&mut bytes).expect("the beginning");
    change();
    stream.read_to_end(&mut bytes).expect("the rest");
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    assert!(bytes[at..] == pattern(LEN), "{} bytes of {LEN}, or others", bytes.len() - at);
}

/// The same of an upload.
fn upload_while(change: impl FnOnce()) {
    let mut stream = TcpStream::connect(("127.0.0.1", TO_WEB)).expect("a port that leads to it");
    write!(stream, "PUT / HTTP/1.0\r\nContent-Length: {UPLOAD}\r\n\r\n").expect("sent");
    let bytes = pattern(UPLOAD);
    stream.write_all(&bytes[..BEFORE]).expect("sent");
    change();
    stream.write_all(&bytes[BEFORE..]).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("\r\n\r\nthe pattern"), "{answer}");
}

/// Where neap has its peer.
fn endpoint(neap: &Neap) -> String {
    let pid = neap.pid();
    let text = run(&format!("{} wg show near endpoints --pid {pid}", env!("CARGO_BIN_EXE_neap")));
    text.split_whitespace().nth(1).expect("an endpoint").to_owned()
}

/// Gives the near side another address.
fn move_near(world: &World) {
    run(&format!("ip address del {}/24 dev outside", NEAR[0]));
    run("ip address add 192.0.2.3/24 dev outside");
    eventually("the near side at its new address", || {
        world.peer.endpoint().starts_with("192.0.2.3:").then_some(())
    });
}

fn move_both(program: &Program) {
    let world = World::new("roam", program);
    let neap = Neap::start(&world.folder, &world.file(DOORS));
    download_while(|| move_near(&world));
    download_while(|| {
        world.host.inside(|| {
            run(&format!("ip address del {}/24 dev {FAR_INTERFACE}", FAR[0]));
            run(&format!("ip address add 192.0.2.4/24 dev {FAR_INTERFACE}"));
        });
        world.peer.set("listen-port 51999");
        eventually("the far side at its new address and port", || {
            (endpoint(&neap) == "192.0.2.4:51999").then_some(())
        });
    });
}

#[test]
fn endpoints_change_address_and_port_in_a_transfer_with_wireguard_go() {
    if let Some(program) = Program::wireguard_go() {
        in_namespace(|| move_both(&program));
    }
}

#[test]
fn endpoints_change_address_and_port_in_a_transfer_with_boringtun() {
    if let Some(program) = Program::boringtun() {
        in_namespace(|| move_both(&program));
    }
}

fn restart_peer(program: &Program) {
    let mut world = World::new("restart", program);
    let _neap = Neap::start(&world.folder, &world.file(DOORS));
    download_while(|| world.restart_peer());
    download_while(|| ());
}

#[test]
fn a_transfer_goes_on_after_the_peer_was_restarted_with_wireguard_go() {
    if let Some(program) = Program::wireguard_go() {
        in_namespace(|| restart_peer(&program));
    }
}

#[test]
fn an_upload_goes_on_after_the_near_side_has_moved() {
    if let Some(program) = Program::wireguard_go() {
        in_namespace(|| {
            let world = World::new("up", &program);
            let _neap = Neap::start(&world.folder, &world.file(DOORS));
            upload_while(|| move_near(&world));
        });
    }
}

#[test]
fn an_upload_goes_on_after_the_peer_was_restarted() {
    if let Some(program) = Program::wireguard_go() {
        in_namespace(|| {
            let mut world = World::new("anew", &program);
            let _neap = Neap::start(&world.folder, &world.file(DOORS));
            upload_while(|| world.restart_peer());
        });
    }
}

#[test]
fn a_transfer_goes_on_after_the_peer_was_restarted_with_boringtun() {
    if let Some(program) = Program::boringtun() {
        in_namespace(|| restart_peer(&program));
    }
}

fn kill_neap(program: &Program) {
    let world = World::new("kill", program);
    let file = world.file(DOORS);
    let mut neap = Neap::start(&world.folder, &file);
    download_while(|| ());
    neap.kill();
    let _neap = Neap::start(&world.folder, &file);
    download_while(|| ());
}

#[test]
fn neap_is_killed_and_starts_again_with_wireguard_go() {
    if let Some(program) = Program::wireguard_go() {
        in_namespace(|| kill_neap(&program));
    }
}

#[test]
fn neap_is_killed_and_starts_again_with_boringtun() {
    if let Some(program) = Program::boringtun() {
        in_namespace(|| kill_neap(&program));
    }
}

#[test]
fn the_tunnel_goes_over_ipv6() {
    if let Some(program) = Program::wireguard_go() {
        in_namespace(|| {
            let world = World::new("six", &program);
            let neap = Neap::start(&world.folder, &world.file_to(FAR[1], DOORS));
            download_while(|| ());
            assert_eq!(endpoint(&neap), format!("[{}]:51820", FAR[1]));
        });
    }
}
