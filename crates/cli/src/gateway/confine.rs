//! What a gateway gives up once it is set up: rights, files, and system calls.
//!
//! Each is given up by the thread that calls and by those that it starts later, so it is called
//! while there is one thread.

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    path_beneath_rules,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use std::collections::BTreeMap;

/// Where the names of resolvers are. `/etc/resolv.conf` is often a link into `/run`.
const READABLE: [&str; 2] = ["/etc", "/run"];

/// Newest rules of Landlock that are asked for; older kernels apply those that they know.
const LANDLOCK: ABI = ABI::V5;

/// Gives up all capabilities but `CAP_NET_BIND_SERVICE`, new privileges by `execve(2)`, being
/// looked into by others of the same user, and all files but [`READABLE`].
///
/// # Errors
/// One line that says what could not be given up. A kernel without Landlock keeps the files.
pub(crate) fn give_up_rights() -> Result<(), String> {
    let failed = |error| format!("rights cannot be given up: {error}");
    set_no_new_privs(true).map_err(failed)?;
    clear_ambient_capability_set().map_err(failed)?;
    let kept = capabilities(None).map_err(failed)?.permitted & CapabilitySet::NET_BIND_SERVICE;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(Ruleset::create)
        .and_then(|rules| {
            rules.add_rules(path_beneath_rules(READABLE, AccessFs::from_read(LANDLOCK)))
        })
        .and_then(RulesetCreated::restrict_self);
    restricted.map_err(|error| format!("files cannot be given up: {error}"))?;
    Ok(())
}

/// Calls that start programs, look into or stop others, change namespaces, mounts, keys, modules or
/// the machine, or have been ways into the kernel. They fail with `EPERM`.
const GIVEN_UP: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Gives up the system calls that no gateway needs.
///
/// # Errors
/// One line: the processor is one that the filter is not written for, or the kernel has no filters.
pub(crate) fn give_up_calls() -> Result<(), String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("system calls cannot be given up: {error}");
    let machine = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let calls: BTreeMap<_, _> = GIVEN_UP.iter().map(|&call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, machine)
        .map_err(|error| failed(&error))?;
    let program: BpfProgram = filter.try_into().map_err(|error| failed(&error))?;
    apply_filter(&program).map_err(|error| failed(&error))
}
