//! Scheduling of the worker threads, read back from the kernel.

use std::fs;
use std::thread;
use std::time::Duration;

use neap::scheduling::{Scheduling, SchedulingError};
use neap::{BuildError, Builder, Stack};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::common::{eventually, in_namespace};

fn builder() -> Builder {
    Stack::builder().tun("n0").host_address("10.9.0.1/24").address("10.9.0.2/24")
}

/// Fields of `/proc/self/task/*/stat` of the worker threads, from the state on.
fn workers() -> Vec<Vec<String>> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads");
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let fields = stats.filter_map(|stat| {
        let (name, fields) = stat.rsplit_once(')')?;
        name.contains("(neap-").then(|| fields.split_whitespace().map(str::to_owned).collect())
    });
    fields.collect()
}

/// Nice values of the workers: field 19 of `proc_pid_stat(5)`, the third is the first here.
fn nice_values() -> Vec<String> {
    workers().into_iter().map(|fields| fields[16].clone()).collect()
}

#[test]
fn a_worker_has_the_nice_value_and_the_application_keeps_its_own() {
    in_namespace(|| {
        let own = || rustix::process::getpriority_process(None).expect("a nice value");
        let before = own();
        // More of it needs no right.
        let nice = before.min(18) as i8 + 1;
        let stack = builder().scheduling(Scheduling::Nice(nice)).build().expect("a stack");
        eventually(nice_values, |values| *values == [nice.to_string()]);
        assert_eq!(own(), before);
        drop(stack);
        let stack = builder().build().expect("a stack");
        // A thread that has ended may be listed for a moment.
        eventually(nice_values, |values| *values == [before.to_string()]);
        drop(stack);
    });
}

#[test]
fn a_missing_right_is_a_typed_error_and_leaves_no_worker() {
    in_namespace(|| {
        // Capabilities are those of a thread, and its threads inherit them.
        let without = thread::spawn(|| {
            let sets = capabilities(None).expect("the sets");
            let effective = sets.effective - CapabilitySet::SYS_NICE;
            let sets = CapabilitySets { effective, ..sets };
            set_capabilities(None, sets).expect("less than before");
            for refused in [Scheduling::Nice(-20), Scheduling::Fifo(1)] {
                let error = builder().scheduling(refused).build().expect_err("no right");
                let BuildError::Scheduling(SchedulingError::Permission { scheduling, .. }) = error
                else {
                    panic!("{error}");
                };
                assert_eq!(scheduling, refused);
            }
        });
        without.join().expect("no panic");
        eventually(nice_values, Vec::is_empty);
        let error = builder().scheduling(Scheduling::Nice(20)).build().expect_err("no such value");
        assert!(error.to_string().contains("-20 to 19"), "{error}");
        let slice = Scheduling::Slice(Duration::from_micros(100));
        match builder().scheduling(slice).build() {
            Ok(stack) => drop(stack),
            Err(error) => assert!(error.to_string().contains("6.12"), "{error}"),
        }
    });
}
