//! Sandboxes whose gateway has a tunnel as its upstream.

use super::namespace::in_namespace;
use super::near::output;
use super::peers::{Program, can_run};
use super::world::{BOTH, NAME, NEAR_INSIDE, World, pattern};
use std::fs;

const LEN: usize = 64 << 10;

/// What curl gets in a sandbox with the tunnel of this file. A command becomes the gateway.
pub(super) fn curl(command: &str, file: &str, url: &str) -> Vec<u8> {
    let neap = env!("CARGO_BIN_EXE_neap");
    output(&format!(
        "{command} {neap} gateway run --upstream wireguard:{file} -- curl -sS --fail --max-time 60 {url}"
    ))
}

#[test]
fn names_lead_through_the_tunnel_in_the_families_that_it_has() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["curl"]) {
        return;
    }
    in_namespace(|| {
        let world = World::new("sandbox", &program);
        let both = world.file("");
        let text = fs::read_to_string(&both).expect("it was written");
        let v4 = text.replace(&format!(", {}/128", NEAR_INSIDE[1]), "");
        assert_ne!(v4, text);
        let v4 = world.folder.write("v4.conf", &v4);
        for (file, name) in [(&both, NAME), (&both, BOTH), (&v4, NAME), (&v4, BOTH)] {
            let page = curl("", file, &format!("http://{name}/{LEN}"));
            assert!(page == pattern(LEN), "{file} {name}: {} bytes of {LEN}", page.len());
        }
    });
}
