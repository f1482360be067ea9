use super::*;
#[test]
fn an_idle_receiver_is_small() {
    assert!(size_of::<Receiver>() <= 400, "{}", size_of::<Receiver>());
}
