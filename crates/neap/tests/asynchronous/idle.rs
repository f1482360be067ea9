//! Tasks that wait wake nobody.

use std::io::Write;
use std::thread;

use tokio::io::AsyncReadExt;

use crate::common::{Family, expect_that_nothing_wakes, in_namespace, run};
use crate::on_runtime;

#[test]
fn a_task_that_reads_is_not_woken() {
    in_namespace(|| {
        run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        let stack = Family::V4.stack();
        let (ours, mut theirs) = Family::V4.pair(&stack);
        let reading = thread::spawn(move || {
            on_runtime(1, async {
                let mut ours = neap::tokio::TcpStream::from_blocking(ours).expect("a runtime");
                ours.read_u8().await
            })
        });
        expect_that_nothing_wakes();
        theirs.write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread").expect("data"), b'a');
    });
}
