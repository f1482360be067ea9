//! A process on a running stack: what its calls ask of the one who drives the stack.

use super::address;
use neap_posix::abi::*;
use neap_posix::{Fd, Outgoing, Process};
use neap_stack::stack::{Stack, StackConfig};
use neap_stack::wait::{Condition, Drive, WriteTally};
use neap_tcp::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Drives all shards, and remembers where somebody looked in. Each wait takes a millisecond.
#[derive(Debug)]
struct Driver {
    stack: Arc<Stack>,
    nanos: AtomicU64,
    looks: Mutex<Vec<usize>>,
    written: [WriteTally; 2],
}

impl Driver {
    /// The shards where somebody looked in since the last time.
    fn looks(&self) -> Vec<usize> {
        core::mem::take(&mut *self.looks.lock().expect("nobody panics with it"))
    }
}

impl Drive for Driver {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos.load(SeqCst))
    }

    fn look_in(&self, shard: usize) {
        self.looks.lock().expect("nobody panics with it").push(shard);
    }

    fn written(&self, shard: usize) -> &WriteTally {
        &self.written[shard]
    }

    fn wait(&self, _shard: usize, _deadline: Instant, condition: &mut dyn Condition) -> bool {
        let now = self.now();
        for shard in 0..self.stack.shards() {
            while self.stack.poll(shard, now).0 <= now {}
        }
        self.nanos.fetch_add(1_000_000, SeqCst);
        condition.is_met()
    }
}

#[test]
fn who_sends_much_takes_what_has_arrived_at_the_shard_of_the_socket() {
    let settings = StackConfig { shards: 2, ..StackConfig::default() };
    let stack = Arc::new(Stack::new(settings).expect("default settings"));
    let (nanos, looks) = (AtomicU64::new(1_000_000_000), Mutex::default());
    let written = Default::default();
    let driver = Arc::new(Driver { stack: stack.clone(), nanos, looks, written });
    let process = Process::new(stack, driver.clone(), 3);
    let socket = || process.socket(AF_INET, SOCK_STREAM, 0).expect("a descriptor");
    let (listener, to) = (socket(), address("127.0.0.1:80"));
    process.bind(listener, &to).expect("a free port");
    process.listen(listener, 2).expect("nobody listens");
    // The host gives the connections that it opens to the shards in turn.
    let clients: [Fd; 2] = core::array::from_fn(|_| {
        let client = socket();
        process.connect(client, &to).expect("somebody listens");
        client
    });
    let data = [7; 40_000];
    let send = |fd| {
        driver.looks();
        let sent = process.send_mmsg(fd, &mut [Outgoing { data: &data, ..Outgoing::default() }], 0);
        assert_eq!(sent, Ok(1));
        driver.looks()
    };
    // The second message to a shard completes its 64 KiB.
    assert_eq!(clients.map(send), [vec![], vec![]]);
    assert_eq!(clients.map(send), [vec![0], vec![1]]);
}
