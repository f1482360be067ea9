//! Pipes between threads, and `splice` between them and connections.

use super::*;
use crate::common::{Pattern, expect_end, in_namespace};
use neap::posix::Errno;
use std::net::Shutdown;
use std::thread;

#[test]
fn two_threads_pass_bytes_to_and_fro() {
    const ROUNDS: u32 = 3000;
    in_namespace(|| {
        let (_stack, posix) = process();
        let [there_out, there_in] = posix.pipe2(0).expect("descriptors");
        let [back_out, back_in] = posix.pipe2(0).expect("descriptors");
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buf = [0; 4];
                while posix.read(there_out, &mut buf) == Ok(4) {
                    assert_eq!(posix.write(back_in, &buf), Ok(4));
                }
                posix.close(back_in).expect("open");
            });
            let mut buf = [0; 4];
            for round in 0..ROUNDS {
                assert_eq!(posix.write(there_in, &round.to_ne_bytes()), Ok(4));
                assert_eq!(posix.read(back_out, &mut buf), Ok(4));
                assert_eq!(buf, round.to_ne_bytes());
            }
            posix.close(there_in).expect("open");
            assert_eq!(posix.read(back_out, &mut buf), Ok(0), "the end");
        });
    });
}

#[test]
fn a_writer_waits_for_room_and_hears_that_nobody_reads() {
    const LEN: usize = 300_000;
    in_namespace(|| {
        let (_stack, posix) = process();
        let [output, input] = posix.pipe2(0).expect("descriptors");
        let data = Pattern(4).bytes(LEN);
        let (say, hear) = announcement();
        thread::scope(|scope| {
            let (posix, data, say) = (&posix, &data, &say);
            let writer = scope.spawn(move || {
                announce(say);
                posix.write(input, data)
            });
            until_asleep(&hear);
            let (mut got, mut buf) = (0, [0; 7000]);
            while got < LEN {
                let read = posix.read(output, &mut buf).expect("data");
                Pattern(4).check(got as u64, &buf[..read]);
                got += read;
            }
            assert_eq!(writer.join().expect("a thread"), Ok(LEN));
            let writer = scope.spawn(move || {
                announce(say);
                let mut sent = 0;
                loop {
                    match posix.write(input, &[0; 4096]) {
                        Ok(some) => sent += some,
                        Err(error) => break (sent, error),
                    }
                }
            });
            until_asleep(&hear);
            posix.close(output).expect("open");
            assert_eq!(writer.join().expect("a thread"), (65_536, Errno::EPIPE));
        });
    });
}

#[test]
fn threads_splice_a_stream_through_a_pipe() {
    const LEN: u64 = 4 << 20;
    in_namespace(|| {
        let (_stack, posix) = process();
        let (from, mut source) = pair(&posix);
        let (to, mut sink) = pair(&posix);
        let [output, input] = posix.pipe2(0).expect("descriptors");
        thread::scope(|scope| {
            let posix = &posix;
            let relay = move |input: Fd, output: Fd| {
                while posix.splice(input, output, 1 << 16, SPLICE_F_MORE).expect("no error") > 0 {}
                posix.close(output).expect("open");
            };
            scope.spawn(move || relay(from, input));
            scope.spawn(move || relay(output, to));
            scope.spawn(|| {
                Pattern(5).send(&mut source, LEN);
                source.shutdown(Shutdown::Write).expect("shutdown");
            });
            Pattern(5).receive(&mut sink, LEN);
            expect_end(&mut sink);
        });
    });
}
