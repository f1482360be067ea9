//! Faults around a stack at work: of its device, its addresses, its peers and its process.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Family, eventually, expect_end, in_namespace, run};
use crate::flow::Flow;
use crate::ground::{DESCRIPTORS, at, is_free, shared_turn};
use crate::memory::Memory;
use crate::victim::{ECHO, SOURCE, Victim};

/// Blocks of the honest flow that show that it goes on.
const SOME: u64 = 20;
/// How long a fault lasts that is over afterwards: longer than the first timeouts.
const FAULT: Duration = Duration::from_millis(500);

/// A victim and honest flows that are at work.
fn at_work(flows: usize) -> (Victim, Vec<Flow>) {
    let victim = Victim::start(Family::V4, DESCRIPTORS);
    let flows: Vec<_> = (0..flows).map(|_| Flow::begin(at(Family::V4, ECHO))).collect();
    flows.iter().for_each(|flow| flow.wait_for(SOME));
    (victim, flows)
}

/// All flows go on, and end well; then the victim is free.
fn recover(mut victim: Victim, flows: Vec<Flow>) {
    flows.iter().for_each(|flow| flow.wait_for(SOME));
    for flow in flows {
        assert_eq!(flow.end(), Ok(()));
    }
    expect_free(&mut victim);
}

fn expect_free(victim: &mut Victim) {
    let mut left = victim.report();
    let victim = std::cell::RefCell::new(victim);
    if !is_free(&left, 0) {
        left = eventually(|| victim.borrow_mut().report(), |left| is_free(left, 0));
    }
    println!("figures: {left:?}");
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, signal).expect("its own child");
}

#[test]
fn the_device_is_deleted() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (mut victim, flows) = at_work(8);
        run("ip link del t0");
        // The victim lives, and has given up what only the device could reach.
        expect_free(&mut victim);
        assert_eq!(victim.order("open 10.9.0.1 9"), "connected=false events=true");
        drop(flows);
    });
}

#[test]
fn the_link_goes_down_and_comes_up() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (victim, flows) = at_work(4);
        for _ in 0..2 {
            run("ip link set t0 down");
            std::thread::sleep(FAULT);
            run("ip link set t0 up");
            flows.iter().for_each(|flow| flow.wait_for(SOME));
        }
        recover(victim, flows);
    });
}

#[test]
fn the_mtu_changes() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (victim, flows) = at_work(4);
        for mtu in [600, 9000, 1280, 1500, 68, 1500] {
            run(&format!("ip link set t0 mtu {mtu}"));
            std::thread::sleep(FAULT / 4);
        }
        recover(victim, flows);
    });
}

#[test]
fn the_address_is_removed_and_added_again() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (mut victim, flows) = at_work(4);
        for _ in 0..2 {
            assert_eq!(victim.order("forget 10.9.0.2"), "done");
            std::thread::sleep(FAULT);
            assert_eq!(victim.order("take 10.9.0.2/24"), "done");
            flows.iter().for_each(|flow| flow.wait_for(SOME));
        }
        recover(victim, flows);
    });
}

#[test]
fn the_address_of_the_peer_is_removed_and_added_again() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (victim, flows) = at_work(4);
        run("ip address del 10.9.0.1/24 dev t0");
        std::thread::sleep(FAULT);
        run("ip address add 10.9.0.1/24 dev t0");
        recover(victim, flows);
    });
}

#[test]
fn the_victim_is_stopped_and_goes_on() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (victim, flows) = at_work(4);
        for _ in 0..2 {
            signal(victim.pid(), Signal::STOP);
            std::thread::sleep(FAULT);
            signal(victim.pid(), Signal::CONT);
            flows.iter().for_each(|flow| flow.wait_for(SOME));
        }
        recover(victim, flows);
    });
}

#[test]
fn the_victim_is_killed() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (mut victim, flows) = at_work(4);
        victim.kill();
        // The device went with it.
        assert!(!run("ip -o link").contains(" t0:"));
        drop(flows);
        // Its place is free for the next one.
        let (victim, flows) = at_work(4);
        recover(victim, flows);
    });
}

/// A process that reads what the victim's source sends, as fast as it can.
fn reader() -> Child {
    let script =
        format!("exec 3<>/dev/tcp/10.9.0.2/{SOURCE} && echo ready && exec cat <&3 >/dev/null");
    let mut process = Command::new("bash")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash runs");
    let mut ready = [0; 6];
    process.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("it connects");
    process
}

#[test]
fn peers_are_stopped_and_killed() {
    let _turn = shared_turn();
    in_namespace(|| {
        let (mut victim, flows) = at_work(2);
        let mut readers: Vec<_> = (0..4).map(|_| reader()).collect();
        readers.iter().for_each(|reader| signal(reader.id(), Signal::STOP));
        // Their windows close; the others do not notice.
        flows.iter().for_each(|flow| flow.wait_for(SOME));
        let memory = Memory::of(victim.pid()).resident;
        assert!(memory < 128 << 20, "four peers that do not read cost {memory} bytes");
        readers.iter().for_each(|reader| signal(reader.id(), Signal::CONT));
        flows.iter().for_each(|flow| flow.wait_for(SOME));
        for reader in &mut readers {
            reader.kill().expect("its own child");
            reader.wait().expect("its own child");
        }
        eventually_connections(&mut victim, 2);
        recover(victim, flows);
    });
}

fn eventually_connections(victim: &mut Victim, connections: u64) {
    let victim = std::cell::RefCell::new(victim);
    eventually(|| victim.borrow_mut().report(), |left| is_free(left, connections));
}

/// Connections need no descriptors; what does says that there are none.
#[test]
fn the_descriptors_are_exhausted() {
    let _turn = shared_turn();
    in_namespace(|| {
        // Standard streams, device, timers, epoll sets and bells need half of them.
        let most = 32;
        let mut victim = Victim::start(Family::V4, most);
        let mut streams: Vec<TcpStream> = (0..100)
            .map(|_| TcpStream::connect((Family::V4.ours(), ECHO)).expect("the victim listens"))
            .collect();
        for stream in &mut streams {
            stream.write_all(b"anybody?").expect("written");
            stream.read_exact(&mut [0; 8]).expect("an echo");
        }
        let listener = std::net::TcpListener::bind((Family::V4.kernel(), 0)).expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let open = format!("open 10.9.0.1 {port}");
        let [have_events, lack_events] =
            ["true", "false"].map(|events| format!("connected=true events={events}"));
        let tries: Vec<_> = (0..most).map(|_| victim.order(&open)).collect();
        let had = tries.iter().take_while(|answer| **answer == have_events).count();
        let lack = &tries[had..];
        println!("figures: {had} descriptors left");
        assert!(had > 0 && !lack.is_empty(), "{tries:?}");
        assert!(lack.iter().all(|answer| *answer == lack_events), "{tries:?}");
        // What is closed leaves its descriptors to the next.
        assert_eq!(victim.order("close"), "done");
        assert_eq!(victim.order(&open), have_events);
        assert_eq!(victim.order("close"), "done");
        drop(listener);
        for mut stream in streams {
            stream.shutdown(Shutdown::Write).expect("shutdown");
            expect_end(&mut stream);
        }
        expect_free(&mut victim);
    });
}

/// The namespace of the peers ends with all that is in it.
#[test]
fn the_namespace_of_the_peer_is_destroyed() {
    let _turn = shared_turn();
    in_namespace(|| {
        let mut victim = Victim::start(Family::V4, DESCRIPTORS);
        let mut there = Command::new("unshare")
            .args(["-n", "sh", "-c", "ip link set lo up && echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        there.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 6]).expect("it is there");
        let pid = there.id();
        run("ip link add v0 type veth peer name v1");
        run(&format!("ip link set v1 netns {pid}"));
        run("ip address add 10.8.0.1/24 dev v0");
        run("ip link set v0 up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a sysctl");
        let inside = |line: &str| run(&format!("nsenter -t {pid} -n {line}"));
        inside("ip address add 10.8.0.2/24 dev v1");
        inside("ip link set v1 up");
        inside("ip route add default via 10.8.0.1");
        let script =
            format!("exec 3<>/dev/tcp/10.9.0.2/{SOURCE}; echo ready; exec cat <&3 >/dev/null");
        let mut peer = Command::new("nsenter")
            .args(["-t", &pid.to_string(), "-n", "bash", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter runs");
        peer.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 6]).expect("it connects");
        let flow = Flow::begin(at(Family::V4, ECHO));
        // Its device goes first, so that no reset tells the victim that the peer has ended.
        inside("ip link del v1");
        for process in [&mut peer, &mut there] {
            process.kill().expect("its own child");
            process.wait().expect("its own child");
        }
        // Routers say that nobody is there; the flow of others goes on, and a source that is
        // acknowledged no more gives up by its user timeout.
        flow.wait_for(SOME);
        assert_eq!(flow.end(), Ok(()));
        expect_free(&mut victim);
    });
}
