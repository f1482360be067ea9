//! The system calls of a gateway that is set up. All others fail with `ENOSYS`, as on a kernel that
//! does not have them, so that C libraries do without.
//!
//! The lists have what the engine, the standard library and the C libraries use for sockets,
//! threads, memory and time. Files are opened under the rules of Landlock.

use rustix::process::Pid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// Calls with any arguments.
const CALLS: &[i64] = &[
    // Descriptors, and what is ready.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Files: resolvers, a log, sockets that are removed in the end.
    libc::SYS_faccessat,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads, the end of the process and of its children.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Who this is, time, chance.
    libc::SYS_capget,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_nanosleep,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Calls that newer processors have by other numbers only.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[i64] = &[
    libc::SYS_access,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_getdents,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[i64] = &[];

/// Kinds of sockets are in these bits, beside flags (`SOCK_TYPE_MASK`).
const SOCKET_KIND: u64 = 0xf;

/// What the kernel has told the process at its start.
const PR_GET_AUXV: i32 = 0x4155_5856;

/// A condition on an argument of 32 bits.
fn argument(
    index: u8,
    operator: SeccompCmpOp,
    value: impl Into<i64>,
) -> seccompiler::Result<SeccompCondition> {
    let value = u64::from(value.into().cast_unsigned() as u32);
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?)
}

/// The calls, each with conditions of which one set has to hold; no set is no condition.
fn rules(signals: Option<Pid>) -> seccompiler::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let mut rules: BTreeMap<_, _> =
        CALLS.iter().chain(OLD_CALLS).map(|&call| (call, Vec::new())).collect();
    let mut allow = |call: i64, conditions: Vec<seccompiler::Result<SeccompCondition>>| {
        let conditions = conditions.into_iter().collect::<seccompiler::Result<Vec<_>>>()?;
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
        seccompiler::Result::Ok(())
    };
    // No Unix sockets, by which other programs could be reached, no raw ones, and of the kernel's
    // own services only that for interfaces.
    for family in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            let kind = argument(1, MaskedEq(SOCKET_KIND), kind);
            allow(libc::SYS_socket, vec![argument(0, Eq, family), kind])?;
        }
    }
    let of_interfaces = argument(2, Eq, libc::NETLINK_ROUTE);
    allow(libc::SYS_socket, vec![argument(0, Eq, libc::AF_NETLINK), of_interfaces])?;
    // No memory becomes code.
    let no_code = || argument(2, MaskedEq(libc::PROT_EXEC as u64), 0);
    allow(libc::SYS_mmap, vec![no_code()])?;
    allow(libc::SYS_mprotect, vec![no_code()])?;
    // Threads, and no processes. The flags of `clone3` are out of reach of a filter.
    let thread = libc::CLONE_THREAD;
    allow(libc::SYS_clone, vec![argument(0, MaskedEq(thread as u64), thread)])?;
    for call in [libc::PR_SET_NAME, PR_GET_AUXV] {
        allow(libc::SYS_prctl, vec![argument(0, Eq, call)])?;
    }
    // Nothing is typed into the terminal of the user.
    let typing = [libc::TIOCSTI as i64, libc::TIOCLINUX as i64];
    allow(libc::SYS_ioctl, typing.map(|call| argument(1, Ne, call)).into())?;
    // Limits of this process, and signals to it and to the command.
    allow(libc::SYS_prlimit64, vec![argument(0, Eq, 0)])?;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    allow(libc::SYS_tgkill, vec![argument(0, Eq, own)])?;
    if let Some(pid) = signals {
        allow(libc::SYS_kill, vec![argument(0, Eq, pid.as_raw_nonzero().get())])?;
    }
    Ok(rules)
}

/// Gives up the system calls that no gateway needs. Signals can be sent to one process.
///
/// # Errors
/// One line: the processor is one that the filter is not written for, or the kernel has no filters.
pub(super) fn give_up_calls(signals: Option<Pid>) -> Result<(), String> {
    let given_up = || {
        let machine = TargetArch::try_from(std::env::consts::ARCH)?;
        let refused = SeccompAction::Errno(libc::ENOSYS as u32);
        let filter = SeccompFilter::new(rules(signals)?, refused, SeccompAction::Allow, machine)?;
        let program: BpfProgram = filter.try_into()?;
        apply_filter(&program)
    };
    given_up().map_err(|error| format!("system calls cannot be given up: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, netlink, socket};
    use rustix::process::{Signal, getppid, kill_process, test_kill_process};
    use std::process::Command;
    use std::thread;

    /// A filter belongs to a thread and to those that it starts.
    #[test]
    fn a_thread_without_calls_relays_and_does_nothing_else() {
        let given_up = thread::spawn(|| {
            give_up_calls(getppid()).expect("the kernel has filters");
            let open = |family, kind| socket(family, kind, None).map(drop);
            for family in [AddressFamily::INET, AddressFamily::INET6] {
                open(family, SocketType::STREAM).expect("relays have sockets");
                open(family, SocketType::DGRAM).expect("relays have sockets");
                assert_eq!(open(family, SocketType::RAW), Err(Errno::NOSYS));
            }
            open(AddressFamily::NETLINK, SocketType::RAW).expect("interfaces are watched");
            let audit = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::AUDIT));
            assert_eq!(audit.map(drop), Err(Errno::NOSYS));
            for family in [AddressFamily::UNIX, AddressFamily::PACKET, AddressFamily::VSOCK] {
                assert_eq!(open(family, SocketType::DGRAM), Err(Errno::NOSYS));
            }
            assert!(Command::new("true").spawn().is_err());
            let parent = getppid().expect("cargo");
            test_kill_process(parent).expect("signals are passed on to it");
            let own = rustix::process::getpid();
            assert_eq!(kill_process(own, Signal::CONT), Err(Errno::NOSYS));
            thread::spawn(|| ()).join().expect("threads start");
        });
        given_up.join().expect("no panic");
    }
}
