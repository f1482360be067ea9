//! `poll` and epoll.

use super::datagrams::pair;
use super::*;
use neap_posix::{EpollEvent, PollFd};
use neap_stack::device::{LinkState, LinkStatus};
use neap_stack::wait::Condition;

const READ: u32 = POLLIN | POLLRDNORM;
const WRITE: u32 = POLLOUT | POLLWRNORM;

#[test]
fn poll_tells_each_state_as_linux_does() {
    let mut p = Process::new();
    let fresh = p.tcp();
    assert_eq!(p.ready(fresh), WRITE | POLLHUP);
    let syn_sent = p.tcp();
    p.set_nonblocking(syn_sent);
    assert_eq!(p.connect(syn_sent, "192.0.2.9:1"), Err(Errno::EINPROGRESS));
    assert_eq!(p.ready(syn_sent), 0);
    let (client, server, listener) = p.pair();
    assert_eq!(p.ready(listener), 0);
    assert_eq!(p.ready(client), WRITE);
    p.send(client, b"x", 0).expect("room");
    assert_eq!(p.ready(server), WRITE | READ);
    p.posix.shutdown(p.now, client, SHUT_WR).expect("connected");
    assert_eq!(p.ready(server), WRITE | READ | POLLRDHUP);
    assert_eq!(p.ready(client), WRITE);
    p.posix.shutdown(p.now, server, SHUT_WR).expect("connected");
    assert_eq!(p.ready(server), WRITE | READ | POLLRDHUP | POLLHUP);
    let next = p.tcp();
    p.set_nonblocking(next);
    assert_eq!(p.connect(next, "127.0.0.1:80"), Err(Errno::EINPROGRESS));
    assert_eq!(p.ready(listener), READ);
    assert_eq!(p.ready(99), POLLNVAL);
    let udp = p.udp();
    assert_eq!(p.ready(udp), WRITE | POLLWRBAND);
}

#[test]
fn a_listener_that_nobody_can_reach_any_more_says_so() {
    let mut p = Process::new();
    let listener = p.listen("192.0.2.1:80");
    let set = Set::new(&mut p);
    set.add(&mut p, listener, POLLIN);
    assert_eq!((p.ready(listener), set.wait(&mut p)), (0, vec![]));
    let interface = p.posix.stack().interface_ids()[0];
    let gone = LinkStatus::new(LinkState::Gone);
    p.posix.stack().set_link_status(p.now, interface, gone).expect("it is there");
    assert_eq!(p.ready(listener), READ | POLLERR);
    assert_eq!(set.wait(&mut p), [(listener, POLLIN | POLLERR)]);
    let accepted = p.once(|posix, now, call| posix.accept(now, call, listener, 0));
    assert_eq!(accepted, Err(Errno::ENETDOWN));
    assert_eq!((p.ready(listener), set.wait(&mut p)), (0, vec![]), "told once");
    p.posix.stack().shut_down(p.now);
    assert_eq!(p.ready(listener), READ | POLLERR | POLLHUP);
    assert_eq!(set.wait(&mut p), [(listener, POLLIN | POLLERR | POLLHUP)]);
}

#[test]
fn so_error_tells_the_error_of_a_listener_once() {
    let mut p = Process::new();
    let listener = p.listen("192.0.2.1:80");
    let set = Set::new(&mut p);
    set.add(&mut p, listener, POLLIN);
    assert_eq!(p.get(listener, SOL_SOCKET, SO_ERROR), Ok(0));
    let interface = p.posix.stack().interface_ids()[0];
    let gone = LinkStatus::new(LinkState::Gone);
    p.posix.stack().set_link_status(p.now, interface, gone).expect("it is there");
    assert_eq!(set.wait(&mut p), [(listener, POLLIN | POLLERR)]);
    assert_eq!(p.get(listener, SOL_SOCKET, SO_ERROR), Ok(Errno::ENETDOWN.0));
    assert_eq!((p.ready(listener), set.wait(&mut p)), (0, vec![]));
    assert_eq!(p.get(listener, SOL_SOCKET, SO_ERROR), Ok(0));
}

#[test]
fn a_descriptor_that_is_replaced_leaves_the_sets_that_watched_its_file() {
    let mut p = Process::new();
    let (client, server, listener) = p.pair();
    let set = Set::new(&mut p);
    set.add(&mut p, server, POLLIN);
    p.send(client, b"x", 0).expect("room");
    p.settle();
    assert_eq!(set.wait(&mut p), [(server, POLLIN)]);
    let replace = |p: &mut Process, old, new, flags| {
        p.block(|posix, now, call| posix.dup3(now, call, old, new, flags)).expect("an end")
    };
    assert_eq!(replace(&mut p, listener, server, O_CLOEXEC), Ok(server));
    assert_eq!(p.posix.fcntl(server, F_GETFD, 0), Ok(FD_CLOEXEC));
    assert_eq!(set.wait(&mut p), [], "the file is closed");
    assert_eq!(p.get(server, SOL_SOCKET, SO_ACCEPTCONN), Ok(1));
    assert_eq!(p.recv(client, 1, 0), Err(Errno::ECONNRESET), "with a byte that nobody read");
    // The file stays as long as one of its descriptors.
    p.close(listener);
    set.add(&mut p, server, POLLIN);
    let second = p.tcp();
    p.connect(second, "127.0.0.1:80").expect("somebody listens");
    assert_eq!(set.wait(&mut p), [(server, POLLIN)]);
    // Beyond all that are open.
    assert_eq!(replace(&mut p, second, 40, 0), Ok(40));
    assert_eq!(p.posix.fcntl(40, F_GETFD, 0), Ok(0));
    let lowest = p.tcp();
    assert!(lowest < 40);
    for (old, new, flags, error) in [
        (99, server, 0, Errno::EBADF),
        (server, 2, 0, Errno::EBADF),
        (server, -1, 0, Errno::EBADF),
        (server, 1 << 21, 0, Errno::EBADF),
        (server, server, 0, Errno::EINVAL),
        (server, client, O_NONBLOCK, Errno::EINVAL),
    ] {
        assert_eq!(replace(&mut p, old, new, flags), Err(error), "{old} {new}");
    }
}

#[test]
fn a_wait_that_is_over_leaves_no_waker_behind() {
    struct Nobody;
    impl std::task::Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }
    let mut p = Process::new();
    let (client, server, listener) = p.pair();
    let [pipe, _writer] = p.posix.pipe2(0).expect("descriptors");
    let set = Set::new(&mut p);
    set.add(&mut p, server, POLLIN);
    let files = [client, server, listener, pipe, set.fd];
    let mut fds = files.map(|fd| PollFd { fd, events: POLLIN as i16, revents: 0 });
    let mut call = Call::new();
    let wait = p.posix.poll(p.now, &mut call, &mut fds, 1);
    assert!(matches!(wait, Ok(Outcome::Wait(_))));
    let held = Arc::new(Nobody);
    let waker = held.clone().into();
    assert!(call.arm(&waker, false));
    assert!(Arc::strong_count(&held) >= 2 + files.len());
    call.disarm(&waker);
    assert_eq!(Arc::strong_count(&held), 2, "the waker and this one");
}

#[test]
fn poll_waits_for_its_time() {
    let mut p = Process::new();
    let (_, server, _) = p.pair();
    let mut fds = [
        PollFd { fd: -1, events: POLLIN as i16, revents: 7 },
        PollFd { fd: server, events: POLLIN as i16, revents: 7 },
    ];
    let begin = p.now;
    let found = p.block(|posix, now, call| posix.poll(now, call, &mut fds, 250));
    assert_eq!(found, Some(Ok(0)));
    assert_eq!(p.now.since(begin), Nanos::from_millis(250));
    assert_eq!(fds.map(|one| one.revents), [0, 0]);
    let wait = p.posix.poll(p.now, &mut Call::new(), &mut fds, -1).expect("open");
    assert_eq!(wait, Outcome::Wait(Instant::FAR_FUTURE));
}

struct Set {
    fd: Fd,
}

impl Set {
    fn new(p: &mut Process) -> Self {
        Self { fd: p.posix.epoll_create(1).expect("a descriptor") }
    }

    fn control(&self, p: &mut Process, operation: i32, fd: Fd, events: u32) -> Result<(), Errno> {
        let event = EpollEvent { events, data: fd as u64 };
        p.posix.epoll_ctl(self.fd, operation, fd, event)
    }

    fn add(&self, p: &mut Process, fd: Fd, events: u32) {
        self.control(p, EPOLL_CTL_ADD, fd, events).expect("a new one");
    }

    fn wait(&self, p: &mut Process) -> Vec<(Fd, u32)> {
        p.settle();
        let found = p.once(|posix, now, call| posix.epoll_wait(now, call, self.fd, 10, 0));
        let found = found.expect("a set");
        found.iter().map(|event| (event.data as Fd, event.events)).collect()
    }
}

#[test]
fn control_refuses_what_makes_no_sense() {
    let mut p = Process::new();
    let set = Set::new(&mut p);
    let (a, b) = (p.tcp(), p.tcp());
    assert_eq!(p.posix.epoll_create(0), Err(Errno::EINVAL));
    assert_eq!(p.posix.epoll_create1(1), Err(Errno::EINVAL));
    set.add(&mut p, a, POLLIN);
    assert_eq!(set.control(&mut p, EPOLL_CTL_ADD, a, POLLIN), Err(Errno::EEXIST));
    assert_eq!(set.control(&mut p, EPOLL_CTL_MOD, b, POLLIN), Err(Errno::ENOENT));
    assert_eq!(set.control(&mut p, EPOLL_CTL_DEL, b, POLLIN), Err(Errno::ENOENT));
    assert_eq!(set.control(&mut p, EPOLL_CTL_ADD, 99, POLLIN), Err(Errno::EBADF));
    assert_eq!(set.control(&mut p, EPOLL_CTL_ADD, set.fd, POLLIN), Err(Errno::EINVAL));
    assert_eq!(set.control(&mut p, 9, b, POLLIN), Err(Errno::EINVAL));
    let event = EpollEvent::default();
    assert_eq!(p.posix.epoll_ctl(a, EPOLL_CTL_ADD, b, event), Err(Errno::EINVAL));
    let mut wait = |fd, most| p.once(|posix, now, call| posix.epoll_wait(now, call, fd, most, 0));
    assert_eq!(wait(set.fd, 0), Err(Errno::EINVAL));
    assert_eq!(wait(set.fd, -1), Err(Errno::EINVAL));
    assert_eq!(wait(a, 1), Err(Errno::EINVAL));
    assert_eq!(wait(99, 1), Err(Errno::EBADF));
    set.control(&mut p, EPOLL_CTL_DEL, a, 0).expect("there");
    set.add(&mut p, a, 0);
    assert_eq!(set.wait(&mut p), [(a, POLLHUP)], "unasked");
}

#[test]
fn a_level_is_told_as_long_as_it_is_there() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let set = Set::new(&mut p);
    set.add(&mut p, server, POLLIN);
    assert_eq!(set.wait(&mut p), []);
    p.send(client, b"ab", 0).expect("room");
    assert_eq!(set.wait(&mut p), [(server, POLLIN)]);
    assert_eq!(set.wait(&mut p), [(server, POLLIN)]);
    p.recv(server, 10, 0).expect("data");
    assert_eq!(set.wait(&mut p), []);
    p.send(client, b"ab", 0).expect("room");
    assert_eq!(set.wait(&mut p), [(server, POLLIN)]);
}

#[test]
fn an_edge_is_told_once_and_again_when_more_comes() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let set = Set::new(&mut p);
    set.add(&mut p, server, POLLIN | POLLOUT | EPOLLET);
    assert_eq!(set.wait(&mut p), [(server, POLLOUT)], "there when it was added");
    assert_eq!(set.wait(&mut p), []);
    p.send(client, b"ab", 0).expect("room");
    assert_eq!(set.wait(&mut p), [(server, POLLIN | POLLOUT)], "all that is there is told");
    assert_eq!(set.wait(&mut p), []);
    p.send(client, b"cd", 0).expect("room");
    assert_eq!(set.wait(&mut p), [(server, POLLIN | POLLOUT)]);
    p.recv(server, 1, 0).expect("data");
    assert_eq!(set.wait(&mut p), [], "to read is no edge");
    set.control(&mut p, EPOLL_CTL_MOD, server, POLLIN | EPOLLET).expect("there");
    assert_eq!(set.wait(&mut p), [(server, POLLIN)], "to ask again is one");
}

#[test]
fn an_edge_of_room_comes_back_after_every_refused_write() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let set = Set::new(&mut p);
    set.add(&mut p, client, POLLOUT | EPOLLET);
    assert_eq!(set.wait(&mut p), [(client, POLLOUT)]);
    for _ in 0..3 {
        loop {
            while p.send(client, &[0; 100_000], 0).is_ok() {}
            if set.wait(&mut p).is_empty() {
                break;
            }
        }
        loop {
            while p.recv(server, 1 << 20, 0).is_ok() {}
            p.pass(Nanos::from_millis(300));
            if p.posix.ioctl(p.now, server, FIONREAD, 0) == Ok(0) {
                break;
            }
        }
        assert_eq!(set.wait(&mut p), [(client, POLLOUT)]);
    }
}

#[test]
fn room_of_a_band_alone_ends_a_wait() {
    let mut p = Process::new();
    let (_receiver, fd) = pair(&mut p);
    p.connect(fd, "127.0.0.1:500").expect("nothing is sent");
    p.set(fd, SOL_SOCKET, SO_SNDBUF, &int(5000)).expect("known");
    let set = Set::new(&mut p);
    while p.send(fd, &[0; 1000], 0).is_ok() {}
    set.add(&mut p, fd, EPOLLWRBAND);
    let found = p.once(|posix, now, call| posix.epoll_wait(now, call, set.fd, 1, 0));
    assert_eq!(found, Ok(vec![]), "it is full");
    let mut fds = [PollFd { fd, events: POLLWRBAND as i16, revents: 0 }];
    let mut call = Call::new();
    let waits = p.posix.poll(p.now, &mut call, &mut fds, -1);
    assert_eq!((waits, call.is_met()), (Ok(Outcome::Wait(Instant::FAR_FUTURE)), false));
    p.settle();
    assert!(call.is_met());
    assert_eq!(set.wait(&mut p), [(fd, EPOLLWRBAND)]);
}

#[test]
fn a_one_shot_is_told_once_until_it_is_asked_again() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let set = Set::new(&mut p);
    set.add(&mut p, server, POLLIN | EPOLLONESHOT);
    p.send(client, b"ab", 0).expect("room");
    assert_eq!(set.wait(&mut p), [(server, POLLIN)]);
    p.send(client, b"cd", 0).expect("room");
    assert_eq!(set.wait(&mut p), []);
    set.control(&mut p, EPOLL_CTL_MOD, server, POLLIN | EPOLLONESHOT).expect("there");
    assert_eq!(set.wait(&mut p), [(server, POLLIN)]);
}

#[test]
fn a_set_follows_a_socket_through_connect_and_close() {
    let mut p = Process::new();
    p.listen("127.0.0.1:80");
    let set = Set::new(&mut p);
    let fd = p.tcp();
    p.set_nonblocking(fd);
    set.add(&mut p, fd, POLLIN | POLLOUT | POLLRDHUP);
    assert_eq!(set.wait(&mut p), [(fd, POLLOUT | POLLHUP)]);
    assert_eq!(p.connect(fd, "192.0.2.7:80"), Err(Errno::EINPROGRESS));
    assert_eq!(set.wait(&mut p), []);
    let nothing = [0u8; 16];
    p.once(|posix, now, call| posix.connect(now, call, fd, &nothing)).expect("fine");
    assert_eq!(p.connect(fd, "127.0.0.1:80"), Err(Errno::EINPROGRESS));
    assert_eq!(set.wait(&mut p), [(fd, POLLOUT)]);
    p.close(fd);
    assert_eq!(set.wait(&mut p), [], "closing removes it");
    let same = p.tcp();
    assert_eq!(same, fd);
    set.add(&mut p, same, POLLOUT);
    p.close(set.fd);
    p.close(same);
}

#[test]
fn wait_is_bounded_fair_and_timed() {
    let mut p = Process::new();
    let set = Set::new(&mut p);
    let sockets = [p.tcp(), p.tcp(), p.tcp()];
    for fd in sockets {
        set.add(&mut p, fd, POLLOUT);
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        let one = p.once(|posix, now, call| posix.epoll_wait(now, call, set.fd, 1, 0));
        seen.extend(one.expect("a set").iter().map(|event| event.data as Fd));
    }
    seen.sort_unstable();
    assert_eq!(seen, sockets, "each had its turn");
    for fd in sockets {
        p.close(fd);
    }
    let begin = p.now;
    let found = p.block(|posix, now, call| posix.epoll_wait(now, call, set.fd, 1, 40));
    assert_eq!(found, Some(Ok(vec![])));
    assert_eq!(p.now.since(begin), Nanos::from_millis(40));
}

#[test]
fn sets_can_be_watched_and_not_in_circles() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let (inner, outer) = (Set::new(&mut p), Set::new(&mut p));
    inner.add(&mut p, server, POLLIN);
    outer.add(&mut p, inner.fd, POLLIN);
    assert_eq!(inner.control(&mut p, EPOLL_CTL_ADD, outer.fd, POLLIN), Err(Errno::ELOOP));
    assert_eq!(outer.wait(&mut p), []);
    assert_eq!(p.ready(inner.fd), 0);
    p.send(client, b"x", 0).expect("room");
    assert_eq!(p.ready(inner.fd), READ);
    assert_eq!(outer.wait(&mut p), [(inner.fd, POLLIN)]);
    p.recv(server, 1, 0).expect("data");
    assert_eq!(outer.wait(&mut p), []);
    p.send(client, b"x", 0).expect("room");
    assert_eq!(outer.wait(&mut p), [(inner.fd, POLLIN)]);
}

#[test]
fn a_set_that_is_watched_for_edges_passes_each_on() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    for how in [0, EPOLLET] {
        let (inner, outer) = (Set::new(&mut p), Set::new(&mut p));
        outer.add(&mut p, inner.fd, POLLIN | EPOLLET);
        inner.add(&mut p, server, POLLIN | how);
        assert_eq!(outer.wait(&mut p), []);
        for _ in 0..3 {
            p.send(client, b"x", 0).expect("room");
            assert_eq!(outer.wait(&mut p), [(inner.fd, POLLIN)]);
            assert_eq!(outer.wait(&mut p), []);
        }
        // Whoever looks into the set takes nothing away of what comes next.
        assert_eq!(inner.wait(&mut p), [(server, POLLIN)]);
        p.send(client, b"x", 0).expect("room");
        assert_eq!(outer.wait(&mut p), [(inner.fd, POLLIN)]);
        p.recv(server, 9, 0).expect("data");
        assert_eq!((inner.wait(&mut p), outer.wait(&mut p)), (vec![], vec![]));
    }
}

#[test]
fn chains_of_sets_are_short_from_whichever_end_they_are_built() {
    let mut p = Process::new();
    for from_the_top in [true, false] {
        let sets: Vec<Set> = (0..7).map(|_| Set::new(&mut p)).collect();
        let mut links: Vec<_> = sets.windows(2).collect();
        if !from_the_top {
            links.reverse();
        }
        for (at, link) in links.iter().enumerate() {
            let added = link[0].control(&mut p, EPOLL_CTL_ADD, link[1].fd, POLLIN);
            // The one that is refused ends the chain: the next begins another.
            let expected = if at == 4 { Err(Errno::ELOOP) } else { Ok(()) };
            assert_eq!(added, expected, "link {at}");
        }
    }
    // Two chains of two steps cannot be joined by a fifth.
    let sets: Vec<Set> = (0..6).map(|_| Set::new(&mut p)).collect();
    for (above, below, expected) in [
        (0, 1, Ok(())),
        (1, 2, Ok(())),
        (3, 4, Ok(())),
        (4, 5, Ok(())),
        (2, 3, Err(Errno::ELOOP)),
        (2, 4, Ok(())),
    ] {
        let added = sets[above].control(&mut p, EPOLL_CTL_ADD, sets[below].fd, POLLIN);
        assert_eq!(added, expected, "{above} watches {below}");
    }
    // Many ways through few sets are looked at once.
    let layers: Vec<Vec<Set>> =
        (0..4).map(|_| (0..8).map(|_| Set::new(&mut p)).collect()).collect();
    for pair in layers.windows(2) {
        for (above, below) in pair[0].iter().flat_map(|a| pair[1].iter().map(move |b| (a, b))) {
            above.add(&mut p, below.fd, POLLIN);
        }
    }
    assert_eq!(layers[0][0].wait(&mut p), []);
}

#[test]
fn exclusive_watching_is_for_sockets_and_stays() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let (set, other) = (Set::new(&mut p), Set::new(&mut p));
    let exclusive = |events| EPOLLEXCLUSIVE | events;
    for events in [EPOLLONESHOT | POLLIN, POLLRDHUP, POLLPRI, POLLRDNORM] {
        let added = set.control(&mut p, EPOLL_CTL_ADD, client, exclusive(events));
        assert_eq!(added, Err(Errno::EINVAL), "{events:x}");
    }
    let ctl = |p: &mut Process, operation, fd, events| set.control(p, operation, fd, events);
    assert_eq!(ctl(&mut p, EPOLL_CTL_ADD, other.fd, exclusive(POLLIN)), Err(Errno::EINVAL));
    let all = EPOLLET | EPOLLWAKEUP | POLLIN | POLLOUT | POLLERR | POLLHUP;
    assert_eq!(ctl(&mut p, EPOLL_CTL_ADD, client, exclusive(all)), Ok(()));
    assert_eq!(ctl(&mut p, EPOLL_CTL_ADD, client, exclusive(POLLRDHUP)), Err(Errno::EINVAL));
    assert_eq!(ctl(&mut p, EPOLL_CTL_ADD, client, POLLIN), Err(Errno::EEXIST));
    assert_eq!(ctl(&mut p, EPOLL_CTL_MOD, client, POLLIN), Err(Errno::EINVAL));
    assert_eq!(ctl(&mut p, EPOLL_CTL_MOD, server, POLLIN), Err(Errno::ENOENT));
    assert_eq!(ctl(&mut p, EPOLL_CTL_MOD, server, exclusive(POLLIN)), Err(Errno::EINVAL));
    assert_eq!(ctl(&mut p, EPOLL_CTL_DEL, client, exclusive(POLLRDHUP)), Ok(()));
}

#[test]
fn epoll_wait_has_room_for_so_many_events() {
    let mut p = Process::new();
    let set = Set::new(&mut p);
    for (most, expected) in [
        (178_956_970, Ok(vec![])),
        (178_956_971, Err(Errno::EINVAL)),
        (i32::MAX, Err(Errno::EINVAL)),
        (0, Err(Errno::EINVAL)),
        (-1, Err(Errno::EINVAL)),
    ] {
        let found = p.once(|posix, now, call| posix.epoll_wait(now, call, set.fd, most, 0));
        assert_eq!(found, expected, "{most}");
    }
}
