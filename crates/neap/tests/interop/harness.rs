//! How the tests themselves end.

use std::panic::catch_unwind;
use std::process::Command;

use crate::common::in_namespace;

/// Programs that were started keep the output of a test open, also those whose parent has ended.
#[test]
fn a_test_that_fails_while_its_programs_run_is_reported_at_once() {
    let failure = catch_unwind(|| {
        in_namespace(|| {
            let script = "sleep 1000 & sleep 1000 <&- & exit";
            let shell = Command::new("sh").args(["-c", script]).status().expect("sh runs");
            assert!(shell.success());
            panic!("this is to fail");
        });
    });
    // Where there is no namespace nothing has failed.
    let Err(failure) = failure else { return };
    let text = failure.downcast_ref::<String>().expect("a text");
    assert!(text.contains("is_reported_at_once failed: exit status: 101\n"), "{text}");
    assert!(text.contains("this is to fail"), "{text}");
}
