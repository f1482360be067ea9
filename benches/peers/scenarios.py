"""The scenarios: what is run, what is measured, and what the figures are called."""

import signal
import time
from dataclasses import dataclass
from functools import partial

import network
import usage
from network import ETHERNET, FAR, ROUTER, STACK

PORT = "7001"
# A ping beside the flow starts so long after it, seconds, and ends before it.
WARM_UP, BEFORE_END = 0.6, 0.3
IDLE_FLOWS = 10_000
# Bytes of a write that no send buffer takes at once.
MORE_THAN_A_BUFFER = 16_000_000


@dataclass(frozen=True)
class Peer:
    name: str
    program: str
    is_kernel: bool = False
    # Those of its TUN.
    tun_flags: tuple = ("vnet_hdr",)
    options: tuple = ()

    def command(self, mode, target, flows, seconds, congestion):
        return [self.program, mode, "--target", target, "--port", PORT, "--flows", flows,
                "--seconds", seconds, "--congestion", congestion, *self.options]


@dataclass(frozen=True)
class Setting:
    """What all runs have in common."""

    kb: str
    seconds: float
    congestion: str = "cubic"


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    measure: object
    # The figure that is compared, and whether more of it is better.
    figure: str
    is_rate: bool = True
    # Peers that can be measured; empty for all.
    peers: tuple = ()


def milliseconds(pings, figure):
    """A figure of a ping; None if it printed none."""
    return pings[figure] / 1e3 if figure in pings else None


def bulk(setting, peer, mode, flows, mbit=None):
    """One bulk run with a ping beside it."""
    with network.Network() as net:
        if mbit is None:
            role, target = net.beside(peer.is_kernel, peer.tun_flags)
        else:
            role, target = net.behind_bottleneck(peer.is_kernel, peer.tun_flags, mbit)
        receives = mode == "receive"
        seconds = setting.seconds
        far = net.start(FAR, setting.kb, "source" if receives else "sink", "--port", PORT,
                        "--seconds", seconds, "--congestion", setting.congestion)
        time.sleep(0.2)
        machine, start = usage.machine_cpu_s(), time.monotonic()
        command = peer.command(mode, target, flows, seconds, setting.congestion)
        stack = net.start(role, *command, show_errors=True)
        time.sleep(WARM_UP)
        ping = net.start(FAR, setting.kb, "icmp", "--target", network.STACK_ADDRESS,
                         "--seconds", seconds - WARM_UP - BEFORE_END)
        pings, own, other = ping.finish(), stack.finish(), far.finish()
        machine, wall = usage.machine_cpu_s() - machine, time.monotonic() - start
        drops = net.qdisc(ROUTER, "out")["drops"] if mbit else None
    by = own if receives else other
    gigabytes = by.get("bytes", 0) / 1e9
    if not gigabytes:
        return {"failed": True}
    return {
        "gbps": by.get("gbps"),
        "gbps_steady": other.get("gbps_steady"),
        "cpu_s_per_gb": stack.cpu_s / gigabytes,
        "far_cpu_s_per_gb": far.cpu_s / gigabytes,
        "machine_cpu_s_per_gb": machine / gigabytes,
        "other_cores": max(0.0, machine - stack.cpu_s - far.cpu_s - ping.cpu_s) / wall,
        "ping_p50_ms": milliseconds(pings, "p50_us"),
        "ping_p99_ms": milliseconds(pings, "p99_us"),
        "pings_lost": pings.get("lost"),
        "peak_rss_mb": own.get("peak_rss_kb", 0) / 1024,
        "retransmits": own.get("retransmits"),
        "bottleneck_drops": drops,
        "jain": by.get("jain"),
    }


def fairness(setting, peer, flows, is_ethernet, has_super_frames):
    """Flows that always have something to send, so that the application does not deal out shares."""
    seconds = setting.seconds
    with network.Network() as net:
        if peer.is_kernel or is_ethernet:
            role, target = net.beside_on_ethernet(peer.is_kernel)
        else:
            role, target = net.beside(False, network.NEAP_TUN)
        options = ["--write", MORE_THAN_A_BUFFER]
        if peer.is_kernel and not has_super_frames:
            net.ip(STACK, "link", "set", "dev", ETHERNET, "gso_max_segs", "1")
        if not peer.is_kernel:
            options += ["--gso-max-size", 65535 if has_super_frames else 1500]
        if not peer.is_kernel and is_ethernet:
            options += ["--device", "packet", "--interface", ETHERNET]
        far = net.start(FAR, setting.kb, "sink", "--port", PORT, "--seconds", seconds, "--congestion", setting.congestion)
        time.sleep(0.2)
        command = peer.command("send", target, flows, seconds, setting.congestion)
        stack = net.start(role, *command, *options, show_errors=True)
        own, other = stack.finish(), far.finish()
    if other.get("flows") != flows or "jain" not in other:
        return {"failed": True}
    return {"jain": other["jain"], "gbps": other["gbps"], "cpu_s_per_gb": stack.cpu_s / (other["bytes"] / 1e9),
            "retransmits": own.get("retransmits"), "longest_wait": own.get("longest_wait")}


def transactions(setting, peer, mode, far_mode):
    """One connection, or one after the other, with one byte each way."""
    with network.Network() as net:
        role, target = net.beside(peer.is_kernel, peer.tun_flags)
        net.start(FAR, setting.kb, far_mode, "--port", PORT, "--seconds", setting.seconds + 5)
        time.sleep(0.3)
        command = peer.command(mode, target, 1, setting.seconds, setting.congestion)
        return net.start(role, *command, show_errors=True).finish() or {"failed": True}


def idle(setting, peer):
    """Memory of established connections that do nothing."""
    with network.Network() as net:
        role, target = net.beside(peer.is_kernel, peer.tun_flags)
        far = net.start(FAR, setting.kb, "hold", "--port", PORT, "--seconds", 60)
        time.sleep(0.3)
        slab = slab_bytes()
        command = peer.command("idle", target, IDLE_FLOWS, 1, setting.congestion)
        stack = net.start(role, *command, show_errors=True)
        result = stack.first_line()
        grown = slab_bytes() - slab
        stack.finish()
        far.popen.send_signal(signal.SIGKILL)
    if not result:
        return {"failed": True}
    # Both ends of the kernel's connections are in its slabs.
    each = grown / IDLE_FLOWS / 2 if peer.is_kernel else result["rss_bytes_per_flow"]
    return {"bytes_per_flow": each, "flows": result["flows"]}


def slab_bytes():
    with open("/proc/meminfo") as meminfo:
        lines = dict(line.split(":") for line in meminfo)
    return int(lines["Slab"].split()[0]) * 1024


def all_scenarios():
    def flows(mode, count, mbit=None):
        return lambda setting, peer: bulk(setting, peer, mode, count, mbit)

    def zero_copy(setting, peer):
        return bulk(setting, peer, "send-zero-copy" if peer.name == "neap" else "send", 1)

    listing = [
        Scenario("A", "send, 1 flow", flows("send", 1), "gbps"),
        Scenario("Z", "send, 1 flow, neap without a copy", zero_copy, "gbps"),
        Scenario("B", "receive, 1 flow", flows("receive", 1), "gbps"),
        Scenario("C10", "send, 10 flows", flows("send", 10), "gbps"),
        Scenario("C100", "send, 100 flows", flows("send", 100), "gbps"),
        Scenario("C1000", "send, 1000 flows", flows("send", 1000), "gbps"),
        Scenario("B100", "receive, 100 flows", flows("receive", 100), "gbps"),
        Scenario("Epp", "1 byte there and back, one connection",
                 lambda s, p: transactions(s, p, "ping-pong", "echo"), "per_second"),
        Scenario("Ecrr", "connect, 1 byte there and back, close",
                 lambda s, p: transactions(s, p, "connect", "connect-echo"), "per_second"),
        Scenario("F", f"{IDLE_FLOWS} idle connections", idle, "bytes_per_flow", is_rate=False),
        Scenario("D100", "send, 1 flow, through tbf at 100 Mbit", flows("send", 1, 100), "gbps"),
        Scenario("D1000", "send, 1 flow, through tbf at 1 Gbit", flows("send", 1, 1000), "gbps"),
    ]
    for flows in (10, 100, 1000):
        for is_ethernet, has_super_frames in ((False, True), (False, False), (True, True), (True, False)):
            name = f"J{flows}-{'packet' if is_ethernet else 'tun'}{'' if has_super_frames else '-plain'}"
            title = (f"shares of {flows} flows, {'AF_PACKET' if is_ethernet else 'TUN'}, "
                     f"{'super-frames' if has_super_frames else 'segments'}")
            measure = partial(fairness, flows=flows, is_ethernet=is_ethernet, has_super_frames=has_super_frames)
            listing.append(Scenario(name, title, measure, "jain", peers=("neap", "kernel")))
    return {scenario.name: scenario for scenario in listing}
