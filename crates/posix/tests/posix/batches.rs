//! Many datagrams in one call.

use super::datagrams::{message, pair};
use super::*;

pub(crate) fn receive_many(
    p: &mut Process,
    fd: Fd,
    most: usize,
    flags: i32,
) -> Option<Result<Vec<Vec<u8>>, Errno>> {
    p.settle();
    let mut buffers = vec![[0; 100]; most];
    let mut messages: Vec<_> =
        buffers.iter_mut().map(|buf| Incoming { buf, ..Incoming::default() }).collect();
    let count = p.block(|posix, now, call| posix.recv_mmsg(now, call, fd, &mut messages, flags))?;
    let lens: Vec<_> = messages.iter().map_while(|one| Some(one.received?.len)).collect();
    let taken = buffers.iter().zip(lens).map(|(buf, len)| buf[..len].to_vec()).collect::<Vec<_>>();
    Some(count.inspect(|count| assert_eq!(*count, taken.len())).map(|_| taken))
}

#[test]
fn datagrams_alike_of_one_call_leave_as_one_frame() {
    let mut p = Process::new();
    let fd = p.udp();
    let to = address("192.0.2.9:7");
    let one = || Outgoing { data: &[7; 100], to: Some(&to), ..Outgoing::default() };
    let mut messages: Vec<_> = (0..10).map(|_| one()).collect();
    let send = |p: &mut Process, messages: &mut [Outgoing<'_>]| {
        p.once(|posix, now, call| posix.send_mmsg(now, call, fd, messages, MSG_DONTWAIT))
    };
    assert_eq!(send(&mut p, &mut messages), Ok(10));
    assert!(messages.iter().all(|message| message.sent == 100));
    let frames: Vec<_> = p.wire.ends().sent.iter().map(Bytes::len).collect();
    assert_eq!(frames, [28 + 1000]);
    // What is wrong with a later one ends the call, and is told where it is the first.
    let bad = message(SOL_IP, IP_TTL, &int(0));
    let mut messages = [one(), Outgoing { control: &bad, ..one() }, one()];
    assert_eq!(send(&mut p, &mut messages), Ok(1));
    assert_eq!(messages.each_ref().map(|message| message.sent), [100, 0, 0]);
    assert_eq!(send(&mut p, &mut messages[1..]), Err(Errno::EINVAL));
    assert_eq!(send(&mut p, &mut []), Ok(0));
}

#[test]
fn a_call_with_many_messages_waits_for_room_and_for_all_of_them() {
    let mut p = Process::new();
    let (receiver, sender) = pair(&mut p);
    p.connect(sender, "127.0.0.1:500").expect("nothing is sent");
    p.set(sender, SOL_SOCKET, SO_SNDBUF, &int(5000)).expect("known");
    let data: Vec<_> = (0..30).map(|number| vec![number; 50]).collect();
    let mut messages: Vec<_> =
        data.iter().map(|data| Outgoing { data, ..Outgoing::default() }).collect();
    let at_once =
        p.once(|posix, now, call| posix.send_mmsg(now, call, sender, &mut messages, MSG_DONTWAIT));
    assert!((1..30).contains(&at_once.expect("room for some")), "{at_once:?}");
    assert_eq!(receive_many(&mut p, receiver, 64, MSG_DONTWAIT).expect("an end").map(drop), Ok(()));
    let sent = p.block(|posix, now, call| posix.send_mmsg(now, call, sender, &mut messages, 0));
    assert_eq!(sent, Some(Ok(30)));
    assert_eq!(receive_many(&mut p, receiver, 10, 0), Some(Ok(data[..10].to_vec())));
    let rest = receive_many(&mut p, receiver, 64, MSG_WAITFORONE);
    assert_eq!(rest, Some(Ok(data[10..].to_vec())));
    let none = receive_many(&mut p, receiver, 64, MSG_DONTWAIT);
    assert_eq!(none, Some(Err(Errno::EAGAIN)));
    // Without the flag it waits for as many as there is room for.
    p.send(sender, b"x", 0).expect("room");
    assert_eq!(receive_many(&mut p, receiver, 2, 0), None, "for ever");
    // An error behind a datagram is for the next call.
    p.send(sender, b"y", 0).expect("room");
    p.settle();
    p.close(receiver);
    p.send(sender, b"z", 0).expect("room");
    p.settle();
    let refused =
        p.once(|posix, now, call| posix.send_mmsg(now, call, sender, &mut messages, MSG_DONTWAIT));
    assert_eq!(refused, Err(Errno::ECONNREFUSED));
}

#[test]
fn an_error_behind_messages_that_were_taken_is_for_the_next_call() {
    let mut p = Process::new();
    let (receiver, sender) = pair(&mut p);
    p.connect(sender, "127.0.0.1:500").expect("nothing is sent");
    for data in [b"a", b"b"] {
        p.send(sender, data, 0).expect("room");
    }
    p.settle();
    // Nobody has this port.
    p.connect(receiver, "127.0.0.1:501").expect("nothing is sent");
    let mut buffers = [[0; 10]; 3];
    let mut messages = buffers.each_mut().map(|buf| Incoming { buf, ..Incoming::default() });
    let mut tries = 0;
    let received = p.block(|posix, now, call| {
        tries += 1;
        let outcome = posix.recv_mmsg(now, call, receiver, &mut messages, 0);
        if tries == 1 {
            posix.send(now, &mut Call::new(), receiver, b"refused", 0).expect("room");
        }
        outcome
    });
    assert_eq!((received, tries), (Some(Ok(2)), 2));
    assert_eq!(receive_many(&mut p, receiver, 3, 0), Some(Err(Errno::ECONNREFUSED)));
}

#[test]
fn a_stream_takes_and_brings_one_of_many_messages() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let mut messages = [b"abc", b"def"].map(|data| Outgoing { data, ..Outgoing::default() });
    let sent = p.block(|posix, now, call| posix.send_mmsg(now, call, client, &mut messages, 0));
    assert_eq!((sent, messages[0].sent), (Some(Ok(1)), 3));
    let got = receive_many(&mut p, server, 2, MSG_WAITFORONE);
    assert_eq!(got, Some(Ok(vec![b"abc".to_vec()])));
}

#[test]
fn what_an_earlier_call_received_is_no_message_of_the_next() {
    let mut p = Process::new();
    let (receiver, sender) = pair(&mut p);
    p.connect(sender, "127.0.0.1:500").expect("nothing is sent");
    let mut buffers = [[0; 10]; 3];
    let mut messages = buffers.each_mut().map(|buf| Incoming { buf, ..Incoming::default() });
    let mut receive = |p: &mut Process, fd, sent: &[&[u8]]| {
        for data in sent {
            p.send(sender, data, 0).expect("room");
        }
        p.settle();
        let count =
            p.once(|posix, now, call| posix.recv_mmsg(now, call, fd, &mut messages, MSG_DONTWAIT));
        (count, messages.each_ref().map(|one| one.received.map(|received| received.len)))
    };
    let all = (Ok(3), [Some(1), Some(2), Some(3)]);
    assert_eq!(receive(&mut p, receiver, &[b"a", b"bb", b"ccc"]), all);
    assert_eq!(receive(&mut p, receiver, &[b"dddd"]), (Ok(1), [Some(4), None, None]));
    assert_eq!(receive(&mut p, receiver, &[b"eeeee"]), (Ok(1), [Some(5), None, None]));
    assert_eq!(receive(&mut p, receiver, &[]), (Err(Errno::EAGAIN), [None; 3]));
    // A call that waits keeps what it has.
    p.send(sender, b"a", 0).expect("room");
    p.settle();
    let mut tries = 0;
    let count = p.block(|posix, now, call| {
        tries += 1;
        let outcome = posix.recv_mmsg(now, call, receiver, &mut messages[..2], 0);
        if tries == 1 {
            posix.send(now, &mut Call::new(), sender, b"bb", 0).expect("room");
        }
        outcome
    });
    let received = messages.map(|one| one.received.map(|received| received.len));
    assert_eq!((count, tries, received), (Some(Ok(2)), 2, [Some(1), Some(2), None]));
}
