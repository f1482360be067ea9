//! Events of a stack in a task.

use std::io::ErrorKind;
use std::time::Duration;

use neap::StackEvent;

use crate::common::{Family, PATIENCE, in_namespace};
use crate::on_runtime;

#[test]
fn a_task_waits_for_events_and_a_wait_that_is_given_up_loses_none() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let interface = stack.host().interfaces()[0].id;
        let address = |text: &str| text.parse::<neap::net::Address>().expect("an address");
        on_runtime(1, async {
            let events = stack.events().expect("descriptors");
            let nothing = tokio::time::timeout(Duration::ZERO, events.recv_async()).await;
            assert!(nothing.is_err(), "{nothing:?}");
            let addresses = ["10.9.0.5/24", "10.9.0.6/24"].map(address);
            let change = async {
                // The other branch waits first.
                tokio::task::yield_now().await;
                for address in addresses {
                    stack.add_address(interface, address).expect("an address");
                }
            };
            let wait = tokio::time::timeout(PATIENCE / 4, events.recv_async());
            let (got, ()) = tokio::join!(wait, change);
            let [first, second] =
                addresses.map(|address| StackEvent::AddressAdded { interface, address });
            assert_eq!(got.expect("in time").expect("an event"), first);
            assert_eq!(events.recv_async().await.expect("it waited"), second);
            drop(stack);
            while let Ok(event) = events.recv_async().await {
                assert_eq!(event, StackEvent::InterfaceRemoved { interface });
            }
            let over = events.recv_async().await.expect_err("the stack is gone");
            assert_eq!(over.kind(), ErrorKind::UnexpectedEof);
        });
    });
}

#[test]
fn several_tasks_wait_for_events_of_one_receiver() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        on_runtime(1, async {
            let events = stack.events().expect("descriptors");
            let wait = || tokio::time::timeout(Duration::from_millis(1), events.recv_async());
            let (one, other) = tokio::join!(wait(), wait());
            for waited in [one, other] {
                // What the kernel tells of the device may come, and an error may not.
                assert!(waited.is_err() || waited.is_ok_and(|event| event.is_ok()));
            }
        });
    });
}
