//! The queue below the socket of a tunnel, at an interface that takes less than the tunnel has.

use super::namespace::{in_namespace, run};
use super::near::{DOORS, Neap, TO_WEB, output};
use super::peers::{Program, can_run};
use super::world::{World, pattern};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Bytes of the upload, and the most that may wait at the interface.
const LEN: usize = 6 << 20;
const MOST: u64 = 100_000;

/// Bytes that wait at the interface, and packets that it has dropped.
fn queue() -> (u64, u64) {
    let text = run("tc -s -j qdisc show dev outside");
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let own = all.as_array().and_then(|all| all.iter().find(|one| one["kind"] == "tbf"));
    let own = own.unwrap_or_else(|| panic!("no tbf: {text}"));
    let figure = |name: &str| own[name].as_u64().unwrap_or_else(|| panic!("no {name}: {text}"));
    (figure("backlog"), figure("drops"))
}

/// Ends the watch when it is dropped, also where the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_upload_keeps_the_queue_of_the_interface_short() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["tc", "curl"]) {
        return;
    }
    in_namespace(|| {
        let world = World::new("queue", &program);
        // Room for half a second.
        run("tc qdisc add dev outside root tbf rate 20mbit burst 16kb limit 1mb");
        let _neap = Neap::start(&world.folder, &world.file(DOORS));
        let file = world.folder.path().join("upload");
        std::fs::write(&file, pattern(LEN)).expect("room");
        let is_over = AtomicBool::new(false);
        let most = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !is_over.load(Ordering::Relaxed) {
                    most = most.max(queue().0);
                }
                most
            });
            let end = End(&is_over);
            let url = format!("http://127.0.0.1:{TO_WEB}/");
            let answer = output(&format!("curl -sS --max-time 60 -T {} {url}", file.display()));
            assert_eq!(String::from_utf8_lossy(&answer), "the pattern");
            drop(end);
            watch.join().expect("no panic")
        });
        assert!((1..MOST).contains(&most), "{most} bytes");
        assert_eq!(queue().1, 0);
    });
}
