//! The kernel as a host for scripts: its sockets, a TUN as its wire, real time.

use super::calls::Calls;
use bytes::Bytes;
use neap::device::{Tun, TunConfig};
use neap::stack::device::{QueuePair, Received, TxQueue};
use neap::stack::frame::{Frame, Headers};
use neap::tcp::config::Config;
use neap::tcp::segment::{Ecn, Payload};
use neap::tcp::time::{Instant as Moment, Nanos};
use neap_lab::script::host::{Call, Host, HostFailure, Reply, Sent};
use neap_lab::script::settings::Settings;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::process::Command;
use std::time::{Duration, Instant};

/// The interface that a namespace of its own gets.
const INTERFACE: &str = "tun0";

const CONGESTION_SYSCTL: &str = "net.ipv4.tcp_congestion_control";
const IPPROTO_TCP: i32 = 6;
const TCP_CONGESTION: i32 = 13;

/// How long a call that should not wait may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ticks of the kernel's timers and what a busy machine adds.
const SLACK: Nanos = Nanos::from_millis(8);

/// This machine's Linux, in the network namespace of this process.
pub(super) struct Kernel {
    begin: Instant,
    queue: QueuePair,
    calls: Calls,
    /// Not every controller may be a namespace's default, so each socket is told.
    congestion: String,
    sent: VecDeque<Sent>,
    reply: Option<(Nanos, Reply)>,
}

fn failure(what: &str, error: impl std::fmt::Display) -> HostFailure {
    HostFailure(format!("{what}: {error}"))
}

fn run(program: &str, arguments: &str) -> Result<(), HostFailure> {
    let output = Command::new(program)
        .args(arguments.split(' '))
        .output()
        .map_err(|error| failure(program, error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failure(arguments, String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn write_sysctl(name: &str, value: &str) -> std::io::Result<()> {
    std::fs::write(format!("/proc/sys/{}", name.replace('.', "/")), value)
}

/// Gives the namespace the settings that neap has, as far as it has its own, and the script's.
fn set_sysctls(settings: &Settings) -> Result<(), HostFailure> {
    let config = Config::default();
    for name in Config::names().filter(|name| name.starts_with("net.")) {
        if let Some(value) = config.get(name) {
            // What belongs to the machine, not to a namespace, cannot be set here.
            let _ = write_sysctl(name, &value);
        }
    }
    write_sysctl("net.ipv4.tcp_no_metrics_save", "1").map_err(|error| failure("sysctl", error))?;
    let with_v6 = if settings.is_v6 || settings.is_mapped { "0" } else { "1" };
    // A kernel without IPv6 has nothing to turn off.
    let _ = write_sysctl("net.ipv6.conf.all.disable_ipv6", with_v6);
    let of_linux = |name: &str| name.starts_with("net.") && name != CONGESTION_SYSCTL;
    for sysctl in settings.sysctls.iter().filter(|sysctl| of_linux(&sysctl.name)) {
        write_sysctl(&sysctl.name, &sysctl.value).map_err(|error| failure(&sysctl.name, error))?;
    }
    Ok(())
}

impl Kernel {
    /// Prepares the namespace of this process.
    ///
    /// # Errors
    /// [`HostFailure`] if the system refuses.
    pub(super) fn new(settings: &Settings) -> Result<Self, HostFailure> {
        let config = TunConfig { name: Some(INTERFACE.into()), ..TunConfig::default() };
        let tun = Tun::open(&config).map_err(|error| failure("tun", error))?;
        set_sysctls(settings)?;
        run("ip", "link set lo up")?;
        run("ip", &format!("link set {INTERFACE} mtu {} up", settings.mtu))?;
        if let Some(qdisc) = &settings.qdisc {
            run("tc", &format!("qdisc replace dev {INTERFACE} root {qdisc}"))?;
        }
        let prefix = if settings.is_v6 { "64 nodad" } else { "16" };
        run("ip", &format!("address add {}/{prefix} dev {INTERFACE}", settings.local_ip))?;
        let family = if settings.is_v6 { "-6" } else { "-4" };
        run("ip", &format!("{family} route add default dev {INTERFACE}"))?;
        let mut device = tun.into_device();
        let queue = device.queues.pop().ok_or_else(|| failure("tun", "no queue"))?;
        let calls = Calls::new().map_err(|error| failure("eventfd", error))?;
        let sent = VecDeque::new();
        let named = settings.sysctls.iter().rfind(|one| one.name == CONGESTION_SYSCTL);
        let congestion = match named {
            Some(sysctl) => sysctl.value.clone(),
            None => Config::default().tcp_congestion_control,
        };
        Ok(Self { begin: Instant::now(), queue, calls, congestion, sent, reply: None })
    }

    fn since(&self, at: Instant) -> Nanos {
        Nanos(at.saturating_duration_since(self.begin).as_nanos() as u64)
    }

    /// Takes what has come.
    fn receive(&mut self) {
        let at = self.now();
        while let Some(Received { data, .. }) = self.queue.rx.receive(Moment::ZERO) {
            if !is_chatter(&data) {
                self.sent.push_back(Sent { at, packet: data });
            }
        }
        if self.reply.is_none() {
            self.reply = self.calls.poll().map(|(at, reply)| (self.since(at), reply));
        }
    }
}

/// What the kernel says of itself on an interface with IPv6: it speaks to groups.
fn is_chatter(packet: &Bytes) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6) && packet.get(24) == Some(&0xff)
}

impl Host for Kernel {
    fn now(&self) -> Nanos {
        self.since(Instant::now())
    }

    fn wait(&mut self, until: Nanos) -> Result<(), HostFailure> {
        loop {
            self.receive();
            let left = until.saturating_sub(self.now());
            if left == Nanos::ZERO || !self.sent.is_empty() || self.reply.is_some() {
                return Ok(());
            }
            let timeout = Timespec {
                tv_sec: (left.0 / 1_000_000_000) as i64,
                tv_nsec: (left.0 % 1_000_000_000) as _,
            };
            let descriptor = self.queue.descriptor.as_ref();
            let descriptor = descriptor.ok_or_else(|| failure("tun", "no descriptor"))?;
            let mut fds = [
                PollFd::new(descriptor, PollFlags::IN),
                PollFd::new(self.calls.answered(), PollFlags::IN),
            ];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failure("poll", errno)),
            }
        }
    }

    fn inject(&mut self, packet: Bytes) -> Result<(), HostFailure> {
        let frame = Frame {
            headers: Headers::default(),
            link_len: 0,
            payload: Payload::from(packet),
            gso: None,
            checksum: None,
            departure: Moment::ZERO,
            pacing_rate: neap::tcp::time::Rate::UNLIMITED,
            priority: 0,
            flow: 0,
            ecn: Ecn::NotEct,
            credit: None,
        };
        let tx: &mut dyn TxQueue = &mut *self.queue.tx;
        tx.submit(frame, Moment::ZERO).map_err(|_| failure("tun", "the kernel takes no packet"))?;
        match tx.errors() {
            0 => Ok(()),
            _ => Err(failure("tun", "the kernel refused a packet")),
        }
    }

    fn take_sent(&mut self) -> Option<Sent> {
        self.receive();
        self.sent.pop_front()
    }

    fn call(&mut self, call: Call, lasts: bool) -> Result<Option<Reply>, HostFailure> {
        let patience = if lasts { Duration::ZERO } else { PATIENCE };
        let opens = matches!(call, Call::Socket(..));
        let reply = self.calls.begin(call, patience).map(|(_, reply)| reply);
        if let Some(Reply { result, errno: None, .. }) = &reply
            && opens
        {
            let name = self.congestion.clone().into_bytes();
            let set = Call::SetOption(*result as i32, IPPROTO_TCP, TCP_CONGESTION, name);
            // A socket of another protocol has none.
            let _ = self.calls.begin(set, PATIENCE);
        }
        Ok(reply)
    }

    fn take_reply(&mut self) -> Option<(Nanos, Reply)> {
        self.receive();
        self.reply.take()
    }

    fn set_back(&mut self, by: Nanos) {
        self.begin += Duration::from_nanos(by.0);
        for sent in &mut self.sent {
            sent.at = sent.at.saturating_sub(by);
        }
    }

    fn slack(&self, span: Nanos) -> Nanos {
        // The wheel of the kernel's timers is the coarser the longer they run.
        SLACK + Nanos(span.0 / 8)
    }
}
