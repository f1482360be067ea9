//! The C side: the table of functions that packetdrill calls, pointers in and out.
//!
//! All unsafe code is in this module. Its ground is the contract of the interface, which is that of
//! the system calls: see [`memory`]. `userdata` is what `packetdrill_interface_init` left.

mod memory;
mod namespace;

pub(crate) use namespace::OwnNamespace;

use crate::flags::{FLAGS_VARIABLE, Flags};
use crate::host::Host;
use core::ffi::{CStr, c_char, c_int, c_longlong, c_short, c_uint, c_ulong, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t, timeval, useconds_t,
};
use memory::{
    Address, Vector, bytes, bytes_mut, copy_in, give, is_bad, items_mut, read_value, value,
};
use neap_posix::abi::*;
use neap_posix::sockaddr::{Domain, Encoded, encode, parse};
use neap_posix::{EpollEvent, Errno, Fd, PollFd};
use neap_tcp::time::{Instant, Nanos};

/// Bytes of a receive that are only dropped.
const SCRATCH_MOST: usize = 16 << 20;
/// Bytes of the longest value of a socket option (`struct tcp_info` and some room).
const OPTION_MOST: usize = 512;

/// The host of the last `packetdrill_interface_init`, for [`preloaded_getsockopt`].
static LOADED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// `struct packetdrill_interface`.
#[repr(C)]
pub(crate) struct Interface {
    pub(crate) userdata: *mut c_void,
    pub(crate) free: extern "C" fn(*mut c_void),
    pub(crate) socket: extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    pub(crate) bind: extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub(crate) accept: extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub(crate) connect: extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) read: extern "C" fn(*mut c_void, c_int, *mut c_void, size_t) -> ssize_t,
    pub(crate) readv: extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    recv: extern "C" fn(*mut c_void, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub(crate) recvfrom: extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub(crate) recvmsg: extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> ssize_t,
    pub(crate) write: extern "C" fn(*mut c_void, c_int, *const c_void, size_t) -> ssize_t,
    pub(crate) writev: extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    send: extern "C" fn(*mut c_void, c_int, *const c_void, size_t, c_int) -> ssize_t,
    sendto: extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> ssize_t,
    /// Variadic in C. The last argument comes in the same register as a fixed one on the Linux ABIs
    /// of x86-64 and AArch64.
    pub(crate) fcntl: extern "C" fn(*mut c_void, c_int, c_int, c_ulong) -> c_int,
    ioctl: extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_void) -> c_int,
    pub(crate) close: extern "C" fn(*mut c_void, c_int) -> c_int,
    shutdown: extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub(crate) getsockopt:
        extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub(crate) setsockopt:
        extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub(crate) poll: extern "C" fn(*mut c_void, *mut pollfd, nfds_t, c_int) -> c_int,
    pub(crate) netdev_send: extern "C" fn(*mut c_void, *const c_void, size_t) -> c_int,
    pub(crate) netdev_receive:
        extern "C" fn(*mut c_void, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    usleep: extern "C" fn(*mut c_void, useconds_t) -> c_int,
    gettimeofday: extern "C" fn(*mut c_void, *mut timeval, *mut c_void) -> c_int,
    epoll_create: extern "C" fn(*mut c_void, c_int) -> c_int,
    epoll_ctl: extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    epoll_wait: extern "C" fn(*mut c_void, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub(crate) pipe: extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    splice: extern "C" fn(
        *mut c_void,
        c_int,
        *mut loff_t,
        c_int,
        *mut loff_t,
        size_t,
        c_uint,
    ) -> ssize_t,
}

/// What packetdrill looks up and calls first.
///
/// # Safety
/// `flags` is null or a C string, `interface` points at a `struct packetdrill_interface`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    let mut text = std::env::var(FLAGS_VARIABLE).unwrap_or_default();
    if !flags.is_null() {
        text.push(' ');
        // SAFETY: not null, so a C string, says the contract of this function.
        text.push_str(&unsafe { CStr::from_ptr(flags) }.to_string_lossy());
    }
    let host = Flags::parse(&text).map_err(|error| error.to_string());
    let host = host.and_then(|flags| {
        Host::new(flags, Box::<OwnNamespace>::default()).map_err(|error| error.to_string())
    });
    let host = host.unwrap_or_else(|error| {
        eprintln!("neap: {error}");
        std::process::exit(1)
    });
    let userdata = Box::into_raw(Box::new(host)).cast();
    LOADED.store(userdata, Ordering::Release);
    let table = Interface {
        userdata,
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: the caller's structure, to be filled by this function.
    unsafe { interface.write(table) };
}

extern "C" fn free(userdata: *mut c_void) {
    LOADED.store(ptr::null_mut(), Ordering::Release);
    // SAFETY: `userdata` came from `Box::into_raw` and is given back once.
    drop(unsafe { Box::from_raw(userdata.cast::<Host>()) });
}

fn host<'a>(userdata: *mut c_void) -> &'a Host {
    // SAFETY: `userdata` is the host until `free`, after which nothing is called.
    unsafe { &*userdata.cast::<Host>() }
}

fn set_errno(Errno(number): Errno) {
    // SAFETY: the C library gives each thread a place for its errno.
    unsafe { *libc::__errno_location() = number };
}

/// What C expects: the answer, or -1 and errno.
fn answer<T: TryInto<ssize_t>>(result: Result<T, Errno>) -> ssize_t {
    match result {
        Ok(value) => value.try_into().unwrap_or(ssize_t::MAX),
        Err(error) => fail(error),
    }
}

/// -1 and errno.
fn fail(error: Errno) -> ssize_t {
    set_errno(error);
    -1
}

fn done(result: Result<(), Errno>) -> c_int {
    answer(result.map(|()| 0i32)) as c_int
}

fn number(result: Result<i32, Errno>) -> c_int {
    answer(result) as c_int
}

/// Whether the room for an address has a negative size.
///
/// # Errors
/// `EINVAL`, as of the kernel's calls.
fn check_room(len: *mut socklen_t) -> Result<(), Errno> {
    match value(len) {
        Some(len) if c_int::try_from(*len).is_err() => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Writes an address with its size, as much as there is room for.
fn give_address(address: Encoded, to: *mut sockaddr, len: *mut socklen_t) {
    if let Some(len) = value(len) {
        let room = address.len().min(*len as usize);
        *len = address.copy_to(bytes_mut(to.cast(), room)) as socklen_t;
    }
}

/// Takes a descriptor of neap's number from the system as well: nothing else gets the number, and
/// packetdrill, which closes what a script left open by the system's call, finds something to
/// close.
fn hold(fd: Fd) {
    // SAFETY: no pointers but the literal; the descriptors are this function's own.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null >= 0 && null != fd {
            // Beyond the limit of descriptors the number is free anyway.
            libc::dup2(null, fd);
            libc::close(null);
        }
    }
}

/// The answer of a call that makes a descriptor.
fn descriptor(result: Result<Fd, Errno>) -> c_int {
    if let Ok(fd) = result {
        hold(fd);
    }
    number(result)
}

extern "C" fn socket(user: *mut c_void, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    host(user).refresh_settings();
    descriptor(host(user).at_once(|posix, _| posix.socket(domain, kind, protocol)))
}

extern "C" fn bind(user: *mut c_void, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::bind(fd, to, len) };
    }
    done(Address::new(to.cast(), len).and_then(|to| {
        // A script's own address is whatever it binds to.
        for domain in [Domain::V4, Domain::V6] {
            if let Ok(address) = parse(domain, to.as_slice()) {
                host(user).learn(address.ip().to_canonical());
            }
        }
        host(user).at_once(|posix, now| posix.bind(now, fd, to.as_slice()))
    }))
}

extern "C" fn listen(user: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: no pointers.
        return unsafe { libc::listen(fd, backlog) };
    }
    done(host(user).at_once(|posix, now| posix.listen(now, fd, backlog)))
}

extern "C" fn accept(
    user: *mut c_void,
    fd: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::accept(fd, from, len) };
    }
    let accepted = check_room(len)
        .and_then(|()| host(user).call(|posix, now, call| posix.accept(now, call, fd, 0)));
    descriptor(accepted.map(|accepted| {
        give_address(encode(accepted.peer), from, len);
        accepted.fd
    }))
}

extern "C" fn connect(user: *mut c_void, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::connect(fd, to, len) };
    }
    done(Address::new(to.cast(), len).and_then(|to| {
        host(user).call(|posix, now, call| posix.connect(now, call, fd, to.as_slice()))
    }))
}

extern "C" fn read(user: *mut c_void, fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::read(fd, buf, len) };
    }
    if is_bad(buf, len) {
        return fail(Errno::EFAULT);
    }
    let buf = bytes_mut(buf, len);
    answer(host(user).call(|posix, now, call| posix.read(now, call, fd, buf)))
}

extern "C" fn readv(user: *mut c_void, fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::readv(fd, parts, count) };
    }
    answer(Vector::new(parts, count).and_then(|parts| {
        let mut buf = vec![0; parts.len().min(SCRATCH_MOST)];
        let read = host(user).call(|posix, now, call| posix.read(now, call, fd, &mut buf))?;
        parts.scatter(&buf[..read]);
        Ok(read)
    }))
}

extern "C" fn recv(
    user: *mut c_void,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    recvfrom(user, fd, buf, len, flags, ptr::null_mut(), ptr::null_mut())
}

extern "C" fn recvfrom(
    user: *mut c_void,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::recvfrom(fd, buf, len, flags, from, from_len) };
    }
    if is_bad(buf, len) && flags & MSG_TRUNC == 0 {
        return fail(Errno::EFAULT);
    }
    // With MSG_TRUNC there may be no buffer: the length says how much is dropped.
    let mut scratch = vec![0; if buf.is_null() { len.min(SCRATCH_MOST) } else { 0 }];
    let buf = if buf.is_null() { &mut scratch[..] } else { bytes_mut(buf, len) };
    let received = check_room(from_len).and_then(|()| {
        host(user).call(|posix, now, call| posix.recv_from(now, call, fd, buf, flags))
    });
    answer(received.map(|received| {
        match received.from {
            Some(address) => give_address(encode(address), from, from_len),
            None => value(from_len).into_iter().for_each(|len| *len = 0),
        }
        received.len
    }))
}

extern "C" fn recvmsg(user: *mut c_void, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::recvmsg(fd, message, flags) };
    }
    let Some(message) = value(message) else { return fail(Errno::EFAULT) };
    let is_dropped = flags & MSG_TRUNC != 0;
    let parts = Vector::of_message(message.msg_iov, message.msg_iovlen, is_dropped);
    let room = check_room(&raw mut message.msg_namelen);
    let received = room.and(parts).and_then(|parts| {
        let mut buf = vec![0; parts.len().min(SCRATCH_MOST)];
        let control = bytes_mut(message.msg_control, message.msg_controllen);
        let received = host(user).call(|posix, now, call| {
            posix.recv_msg(now, call, fd, &mut buf, &mut *control, flags)
        })?;
        // With MSG_TRUNC the bytes of TCP are dropped.
        if !is_dropped || received.from.is_some() {
            parts.scatter(&buf[..received.len.min(buf.len())]);
        }
        Ok(received)
    });
    answer(received.map(|received| {
        match received.from {
            Some(address) => {
                let len = &raw mut message.msg_namelen;
                give_address(encode(address), message.msg_name.cast(), len);
            }
            None => message.msg_namelen = 0,
        }
        message.msg_flags = received.flags;
        message.msg_controllen = received.control;
        received.len
    }))
}

extern "C" fn write(user: *mut c_void, fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::write(fd, data, len) };
    }
    if is_bad(data, len) {
        return fail(Errno::EFAULT);
    }
    let data = bytes(data, len);
    answer(host(user).call(|posix, now, call| posix.write(now, call, fd, data)))
}

extern "C" fn writev(user: *mut c_void, fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::writev(fd, parts, count) };
    }
    answer(Vector::new(parts, count).and_then(|parts| {
        let data = parts.gather();
        host(user).call(|posix, now, call| posix.write(now, call, fd, &data))
    }))
}

extern "C" fn send(
    user: *mut c_void,
    fd: c_int,
    data: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    sendto(user, fd, data, len, flags, ptr::null(), 0)
}

extern "C" fn sendto(
    user: *mut c_void,
    fd: c_int,
    data: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::sendto(fd, data, len, flags, to, to_len) };
    }
    if is_bad(data, len) {
        return fail(Errno::EFAULT);
    }
    answer(Address::optional(to.cast(), to_len).and_then(|to| {
        let (data, to) = (bytes(data, len), to.as_ref().map(Address::as_slice));
        host(user).call(|posix, now, call| posix.send_to(now, call, fd, data, flags, to))
    }))
}

extern "C" fn sendmsg(
    user: *mut c_void,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::sendmsg(fd, message, flags) };
    }
    let Some(message) = read_value(message) else { return fail(Errno::EFAULT) };
    if message.msg_controllen > 0 {
        return fail(Errno::EINVAL);
    }
    let parts = Vector::of_message(message.msg_iov, message.msg_iovlen, false);
    answer(parts.and_then(|parts| {
        let to = Address::optional(message.msg_name, message.msg_namelen)?;
        let (data, to) = (parts.gather(), to.as_ref().map(Address::as_slice));
        host(user).call(|posix, now, call| posix.send_to(now, call, fd, &data, flags, to))
    }))
}

extern "C" fn fcntl(user: *mut c_void, fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::fcntl(fd, command, argument) };
    }
    // An int, whose upper half the register does not define.
    let argument = i64::from(argument as c_int);
    let result = host(user).at_once(|posix, _| posix.fcntl(fd, command, argument));
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => descriptor(result),
        _ => number(result),
    }
}

extern "C" fn ioctl(
    user: *mut c_void,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::ioctl(fd, request, argument) };
    }
    let Some(argument) = value(argument.cast::<c_int>()) else {
        return fail(Errno::EFAULT) as c_int;
    };
    let result = host(user).at_once(|posix, now| posix.ioctl(now, fd, request, *argument));
    number(result.map(|count| {
        if request != FIONBIO {
            *argument = count;
        }
        0
    }))
}

extern "C" fn close(user: *mut c_void, fd: c_int) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: the caller's descriptor.
        return unsafe { libc::close(fd) };
    }
    let closed = host(user).call(|posix, now, call| posix.close(now, call, fd));
    // SAFETY: the number that `hold` took.
    unsafe { libc::close(fd) };
    done(closed)
}

extern "C" fn shutdown(user: *mut c_void, fd: c_int, how: c_int) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: no pointers.
        return unsafe { libc::shutdown(fd, how) };
    }
    done(host(user).at_once(|posix, now| posix.shutdown(now, fd, how)))
}

extern "C" fn getsockopt(
    user: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if !host(user).owns(fd) {
        return system_getsockopt(fd, level, name, out, len);
    }
    let Some(len) = value(len) else { return fail(Errno::EFAULT) as c_int };
    if c_int::try_from(*len).is_err() {
        return fail(Errno::EINVAL) as c_int;
    }
    let mut room = [0; OPTION_MOST];
    let most = OPTION_MOST.min(*len as usize);
    let size =
        host(user).at_once(|posix, now| posix.getsockopt(now, fd, level, name, &mut room[..most]));
    done(size.and_then(|size| {
        give(&room[..size], out)?;
        *len = size as socklen_t;
        Ok(())
    }))
}

/// By number: the name is [`preloaded_getsockopt`] here.
fn system_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments for the same call of the system.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, out, len) as c_int }
}

/// packetdrill reads `TCP_INFO` for the code of a script by the C library's name and not through
/// the interface. Where this library is also preloaded (`LD_PRELOAD`), that name is this function.
#[unsafe(export_name = "getsockopt")]
pub(crate) extern "C" fn preloaded_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let user = LOADED.load(Ordering::Acquire);
    match user.is_null() {
        true => system_getsockopt(fd, level, name, out, len),
        false => getsockopt(user, fd, level, name, out, len),
    }
}

/// packetdrill calls `sendfile` by the C library's name. Where this library is also preloaded, that
/// name is this function.
#[unsafe(export_name = "sendfile")]
pub(crate) extern "C" fn preloaded_sendfile(
    output: c_int,
    input: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    let user = LOADED.load(Ordering::Acquire);
    match !user.is_null() && host(user).owns(output) {
        true => sendfile(user, output, input, offset, len),
        // SAFETY: the caller's arguments for the same call of the system.
        false => unsafe {
            libc::syscall(libc::SYS_sendfile, output, input, offset, len) as ssize_t
        },
    }
}

/// Sends the front of a file of the system's, as much as one call moves.
pub(crate) fn sendfile(
    user: *mut c_void,
    output: c_int,
    input: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    let mut data = vec![0; len.min(SCRATCH_MOST)];
    let at = value(offset);
    // SAFETY: a buffer of this function's own. -1 is a bad argument for `pread`, not for `lseek`.
    let read = unsafe {
        let begin = at.as_deref().copied().unwrap_or_else(|| libc::lseek(input, 0, libc::SEEK_CUR));
        libc::pread(input, data.as_mut_ptr().cast(), data.len(), begin)
    };
    let Ok(read) = usize::try_from(read) else { return read };
    let data = &data[..read];
    let sent = answer(host(user).call(|posix, now, call| posix.write(now, call, output, data)));
    if sent > 0 {
        match at {
            Some(at) => *at += sent as off_t,
            // SAFETY: no pointers.
            None => drop(unsafe { libc::lseek(input, sent as off_t, libc::SEEK_CUR) }),
        }
    }
    sent
}

extern "C" fn setsockopt(
    user: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    option: *const c_void,
    len: socklen_t,
) -> c_int {
    if !host(user).owns(fd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::setsockopt(fd, level, name, option, len) };
    }
    if c_int::try_from(len).is_err() {
        return fail(Errno::EINVAL) as c_int;
    }
    let mut room = [0; OPTION_MOST];
    let most = OPTION_MOST.min(len as usize);
    done(copy_in(option, &mut room[..most]).and_then(|size| {
        host(user).at_once(|posix, now| posix.setsockopt(now, fd, level, name, &room[..size]))
    }))
}

extern "C" fn poll(user: *mut c_void, fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: no pointers.
    let most = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    if nfds_t::try_from(most).is_ok_and(|most| count > most) {
        return fail(Errno::EINVAL) as c_int;
    }
    if is_bad(fds.cast(), count as usize) {
        return fail(Errno::EFAULT) as c_int;
    }
    let list = items_mut(fds, count as usize);
    let is_ours: Vec<bool> = list.iter().map(|one| host(user).owns(one.fd)).collect();
    if !is_ours.contains(&true) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::poll(fds, count, timeout) };
    }
    // Who waits in virtual time sees of the system's descriptors what they are now.
    let of = |one: &pollfd, is_seen: bool| if is_seen { one.fd } else { -1 };
    let both = || list.iter().zip(&is_ours);
    let system = both().map(|(one, &ours)| pollfd { fd: of(one, !ours), ..*one });
    let mut system: Vec<pollfd> = system.collect();
    // SAFETY: a list of this function's own.
    let there = unsafe { libc::poll(system.as_mut_ptr(), count, 0) };
    if there < 0 {
        return there;
    }
    let ours =
        both().map(|(one, &ours)| PollFd { fd: of(one, ours), events: one.events, revents: 0 });
    let mut ours: Vec<PollFd> = ours.collect();
    let timeout = if there > 0 { 0 } else { timeout };
    let found = host(user).call(|posix, now, call| posix.poll(now, call, &mut ours, timeout));
    for ((theirs, ours), system) in list.iter_mut().zip(&ours).zip(&system) {
        theirs.revents = ours.revents as c_short | system.revents;
    }
    answer(found.map(|found| found + there as usize)) as c_int
}

extern "C" fn netdev_send(user: *mut c_void, packet: *const c_void, len: size_t) -> c_int {
    if host(user).inject(bytes(packet, len)) { 0 } else { -1 }
}

/// Microseconds of the script's clock.
fn micros(at: Instant) -> u64 {
    at.as_nanos() / 1000
}

extern "C" fn netdev_receive(
    user: *mut c_void,
    buf: *mut c_void,
    count: *mut size_t,
    time: *mut c_longlong,
) -> c_int {
    let (Some(count), Some(time)) = (value(count), value(time)) else { return -1 };
    let Some((at, packet)) = host(user).sniff() else {
        eprintln!("neap: no packet was sent");
        *count = 0;
        return 0;
    };
    let len = packet.len().min(*count);
    bytes_mut(buf, len).copy_from_slice(&packet[..len]);
    (*count, *time) = (len, micros(at) as c_longlong);
    0
}

extern "C" fn usleep(user: *mut c_void, micros: useconds_t) -> c_int {
    host(user).sleep(Nanos::from_micros(u64::from(micros)));
    0
}

extern "C" fn gettimeofday(user: *mut c_void, out: *mut timeval, _zone: *mut c_void) -> c_int {
    let now = micros(host(user).look_at_clock());
    if let Some(out) = value(out) {
        out.tv_sec = (now / 1_000_000) as libc::time_t;
        out.tv_usec = (now % 1_000_000) as libc::suseconds_t;
    }
    0
}

extern "C" fn epoll_create(user: *mut c_void, size: c_int) -> c_int {
    descriptor(host(user).at_once(|posix, _| posix.epoll_create(size)))
}

extern "C" fn epoll_ctl(
    user: *mut c_void,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if !host(user).owns(epfd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::epoll_ctl(epfd, operation, fd, event) };
    }
    let event = match value(event) {
        Some(event) => EpollEvent { events: event.events, data: event.u64 },
        None if operation == EPOLL_CTL_DEL => EpollEvent::default(),
        None => return fail(Errno::EFAULT) as c_int,
    };
    done(host(user).at_once(|posix, _| posix.epoll_ctl(epfd, operation, fd, event)))
}

extern "C" fn epoll_wait(
    user: *mut c_void,
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    if !host(user).owns(epfd) {
        // SAFETY: the caller's arguments for the same call of the system.
        return unsafe { libc::epoll_wait(epfd, events, most, timeout) };
    }
    let found =
        host(user).call(|posix, now, call| posix.epoll_wait(now, call, epfd, most, timeout));
    answer(found.and_then(|found| {
        if is_bad(events.cast(), found.len()) {
            return Err(Errno::EFAULT);
        }
        for (out, event) in items_mut(events, found.len()).iter_mut().zip(&found) {
            *out = epoll_event { events: event.events, u64: event.data };
        }
        Ok(found.len())
    })) as c_int
}

extern "C" fn pipe(user: *mut c_void, fds: *mut c_int) -> c_int {
    let ends = host(user).at_once(|posix, _| posix.pipe2(0));
    done(ends.map(|ends| {
        ends.into_iter().for_each(hold);
        items_mut(fds, 2).copy_from_slice(&ends);
    }))
}

extern "C" fn splice(
    user: *mut c_void,
    input: c_int,
    input_at: *mut loff_t,
    output: c_int,
    output_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    match (host(user).owns(input), host(user).owns(output)) {
        (false, false) => {
            // SAFETY: the caller's arguments for the same call of the system.
            return unsafe { libc::splice(input, input_at, output, output_at, len, flags) };
        }
        // What is the system's does not reach neap.
        (true, false) | (false, true) => return fail(Errno::EINVAL),
        (true, true) => {}
    }
    // Neither a socket nor a pipe has offsets. packetdrill gives a pointer at the 0 that a script's
    // NULL was read as.
    if [input_at, output_at].iter().any(|at| value(*at).is_some_and(|at| *at != 0)) {
        return fail(Errno::ESPIPE);
    }
    answer(host(user).call(|posix, now, call| posix.splice(now, call, input, output, len, flags)))
}
