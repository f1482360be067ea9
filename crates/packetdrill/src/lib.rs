//! packetdrill's shared-object interface, on one neap host in virtual time.
//!
//! `packetdrill --so_filename=libneap_packetdrill.so --so_flags=FLAGS SCRIPT` gives the system
//! calls and packets of a script to neap instead of the kernel. The host's device is the script:
//! what packetdrill injects is received, what the stack sends is what packetdrill sniffs,
//! segment by segment. Time is virtual: it passes when the script sleeps or waits for a
//! packet, so that a script of a minute ends at once. The host itself is
//! [`neap_script::machine::Machine`], on which `neap lab script` runs scripts as well.
//!
//! Flags are words separated by white space or commas:
//!
//! - `local=ADDRESS`: the host's own address (default `flags::LOCAL_V4` and `flags::LOCAL_V6`).
//!   Others are learnt from `bind` and from packets.
//! - `mtu=BYTES` and `qdisc=NAME` of the device. Unless they are there, the device follows
//!   packetdrill's `--mtu` and what the script makes of `tun0`.
//! - `defaults`: a network namespace of its own, with neap's defaults and a device `tun0`.
//! - sysctls by name, `net.ipv4.tcp_sack=0`.
//!
//! The flags of the environment's `NEAP_SO_FLAGS` stand in front, since a script may have a line
//! `--so_flags` of its own, which one on the command line would replace.
//!
//! Whenever a socket is made, the sysctls of the process' network namespace are read from
//! `/proc/sys/net` and hold for it as far as neap knows them. The sysctls of the flags come after.
//!
//! The code of a script (`%{ assert tcpi_rtt > 0 }%`) reads `TCP_INFO` past the interface, and
//! `sendfile` passes it by, too: give the library to the loader as well,
//! `LD_PRELOAD=libneap_packetdrill.so packetdrill ...`.
//!
//! Descriptors of neap begin at `host::FIRST_FD`; calls on others go to the system.

mod ffi;
mod flags;
mod host;
mod namespace;
#[cfg(test)]
mod tests;
