//! Several runtimes that use one stack.

use std::fs::File;
use std::io::Write;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};

use neap::Stack;
use neap::tokio::{TcpListener, TcpStream};
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncReadExt;
use tokio::runtime::{Builder, Runtime};

use crate::common::{Family, eventually, in_namespace};
use crate::on_runtime;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Has datagrams come while no task is run: the worker receives them, and takes the task for
/// absent.
fn let_the_task_be_missed(stack: &Stack) {
    let ours = neap::UdpSocket::bind(stack, (Family::V4.ours(), 0)).expect("bind");
    ours.set_nonblocking(true).expect("set");
    let to = ours.local_addr().expect("an address");
    let theirs = UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
    for _ in 0..3 {
        theirs.send_to(b"a", to).expect("sent");
        eventually(|| ours.recv_from(&mut [0]).is_ok(), |has_come| *has_come);
    }
}

/// Opens files until the process has no descriptors left.
fn use_up_descriptors() -> Vec<File> {
    let few = Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, few).expect("a lower limit");
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn a_connection_is_kept_where_no_descriptor_is_left_for_a_task() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (absent, present) = (runtime(), runtime());
        let (_listener, to) = Family::V4.kernel_listener();
        let clients: Vec<_> = (0..3)
            .map(|_| socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket"))
            .collect();
        let bind = TcpListener::bind(&stack, (Family::V4.ours(), 0));
        let ours = absent.block_on(bind).expect("bind");
        let address = ours.local_addr().expect("an address");
        let_the_task_be_missed(&stack);
        let files = use_up_descriptors();
        for _ in 0..3 {
            present.block_on(TcpStream::connect(&stack, to)).expect("connect");
        }
        for client in &clients {
            connect(client, &address).expect("connect");
            present.block_on(ours.accept()).expect("accept");
        }
        drop(files);
        // Where there is no task yet, a socket is refused.
        drop((ours, absent));
        let _files = use_up_descriptors();
        let refused = present.block_on(TcpStream::connect(&stack, to)).expect_err("no descriptors");
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
    });
}

#[test]
fn a_connection_is_kept_where_the_runtime_has_no_io_for_a_task() {
    in_namespace(|| {
        static PANICS: AtomicUsize = AtomicUsize::new(0);
        let stack = Family::V4.stack();
        let absent = runtime();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            hook(info);
        }));
        let present = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (_listener, to) = Family::V4.kernel_listener();
        let bind = TcpListener::bind(&stack, (Family::V4.ours(), 0));
        let ours = absent.block_on(bind).expect("bind");
        let address = ours.local_addr().expect("an address");
        let accepts = || {
            let mut client = std::net::TcpStream::connect(address).expect("connect");
            let mut accepted = present.block_on(ours.accept()).expect("accept").0;
            client.write_all(b"a").expect("write");
            present.block_on(accepted.read_exact(&mut [0])).expect("it is open");
        };
        let_the_task_be_missed(&stack);
        for _ in 0..3 {
            accepts();
            present.block_on(TcpStream::connect(&stack, to)).expect("connect");
        }
        // Where there is no task any more, what is open is kept and a new socket is refused.
        drop(absent);
        (0..3).for_each(|_| accepts());
        let refused = present.block_on(TcpStream::connect(&stack, to)).expect_err("no I/O");
        assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
        // tokio tells by a panic, which is caught: once for the one shard.
        let panics = PANICS.load(Ordering::SeqCst);
        assert!(panics <= 1, "{panics}");
    });
}

#[test]
fn a_task_that_is_absent_is_not_replaced_by_one_of_its_own_runtime() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let count = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
        on_runtime(1, async {
            let bind = || neap::UdpSocket::bind(&stack, (Family::V4.ours(), 0)).expect("bind");
            let make = || neap::tokio::UdpSocket::from_blocking(bind()).expect("a runtime");
            let _first = make();
            let before = count();
            for _ in 0..3 {
                let_the_task_be_missed(&stack);
                make();
            }
            assert_eq!(count(), before);
        });
    });
}
