"""The loads: what runs, what is measured, and the bars.

A measurement answers figures by name, or raises `network.Failure` if a peer failed or did not do what the load asks.
"""

import time
from dataclasses import dataclass

import network
from network import FAR, HOST_ADDRESS, NEAP_TUN, ROUTER, STACK, STACK_ADDRESS, TUN, Failure
from usage import Meter

NEAP, KERNEL = "neap", "kernel"
PORT = 7001
# Both ends use it, whatever the default of the machine is.
CUBIC = ("--congestion", "cubic")
# Payload of a segment.
MSS = 1448
# Slow start is over so long after the start of a flow, seconds.
WARM_UP = 2.0
# A connection has nothing left to do so long after its handshake, seconds: the last ACK, entries of neighbours.
SETTLE = 8.0
# What Linux recommends for `net.core.busy_read`.
BUSY_POLL_US = 50
# The most connections of one process of the kernel: it has a descriptor for each, and one port has so many pairs.
# What else a process has open.
MOST_OF_A_PORT, OTHER_FILES = 40_000, 100
# The least share of its rate that a flow must have for its cost to count. `tbf` counts headers, and devices count those
# of a super-frame once.
LEAST_SHARE, LEAST_SHAPED_SHARE = 0.97, 0.92


@dataclass(frozen=True)
class Setting:
    """What all measurements have in common: programs, and whether they are only tried."""

    kb: str
    bench: str
    neap: str
    is_quick: bool

    def seconds(self, full):
        return min(full, 2.0) if self.is_quick else full

    def program(self, peer):
        return [self.kb] if peer == KERNEL else [self.bench]


@dataclass(frozen=True)
class Bar:
    """A bound of a figure: of the ratio neap/kernel, or of neap's alone."""

    key: str
    title: str
    digits: int = 2
    least_ratio: float = None
    most_ratio: float = None
    most: float = None

    def text(self):
        if self.most is not None:
            return f"<= {self.most:g}"
        return f">= {self.least_ratio:g} x" if self.least_ratio else f"<= {self.most_ratio:g} x"

    def is_met(self, own, ratio):
        """Rounded as it is shown; `None` if the kernel's figure is 0 and there is no ratio."""
        if self.most is not None:
            return round(own, self.digits) <= self.most
        if ratio is None:
            return None
        return ratio >= self.least_ratio if self.least_ratio else ratio <= self.most_ratio


@dataclass(frozen=True)
class Load:
    group: str
    name: str
    measure: object
    bars: tuple
    # Whether what the machine does without a load has to be subtracted.
    needs_background: bool = False


def finished(process, what, *keys):
    """The figures that a process printed; it must have ended well."""
    result = process.finish()
    if process.popen.returncode != 0:
        raise Failure(f"{what} ended with status {process.popen.returncode}")
    missing = [key for key in keys if key not in result]
    if missing:
        raise Failure(f"{what} did not print {' '.join(missing)}")
    return result


def background(setting):
    """What the machine does without a load, percent of a processor."""
    meter = Meter()
    time.sleep(setting.seconds(10.0))
    usage = meter.stop()
    return usage.load_s / usage.seconds * 100


def figures(usage):
    return {
        "machine_percent": usage.load_s / usage.seconds * 100,
        "cpu_percent": usage.cpu_s / usage.seconds * 100,
        "wakeups": usage.wakeups,
        "wakeups_per_s": usage.wakeups / usage.seconds,
        "reads_and_writes_per_s": usage.calls / usage.seconds,
        "foreign_percent": usage.foreign_s / usage.seconds * 100,
    }


def observe(seconds, peer, processes):
    """The usage of `seconds`; all processes, the first of which is the peer, must outlive them."""
    meter = Meter(processes)
    time.sleep(seconds)
    usage = meter.stop()
    if not all(process.is_running() for process in processes):
        raise Failure(f"{peer} or its far side ended too early")
    return usage


def idle(setting, peer, face, flows):
    """Established connections that do nothing, and threads that wait in one of the faces."""
    seconds = setting.seconds(60.0)
    each = min(MOST_OF_A_PORT, network.raise_file_limit() - OTHER_FILES)
    # Connections of each port, which belongs to one process of the far side.
    shares = [min(each, flows - start) for start in range(0, flows, each)] or [0]
    ports = range(PORT, PORT + len(shares))
    with network.Network() as net:
        role, target = net.beside(peer == KERNEL, NEAP_TUN)
        far = [net.start(FAR, setting.kb, "hold", "--port", port, "--seconds", 600) for port in ports]
        time.sleep(0.3)
        common = ["idle", "--target", target, "--seconds", 600]
        if peer == KERNEL:
            stack = [net.start(role, setting.kb, *common, "--port", port, "--flows", share, show_errors=True)
                     for port, share in zip(ports, shares)]
        else:
            options = ["--face", face, "--sysctl", "net.ipv4.ip_local_port_range=10000 65000"]
            stack = [net.start(role, setting.bench, *common, "--port", PORT, "--ports", len(ports), "--flows", flows,
                               *options, show_errors=True)]
        opened = sum(process.first_line().get("flows", 0) for process in stack)
        if opened != flows:
            raise Failure(f"{peer} has opened {opened} of {flows} connections")
        time.sleep(setting.seconds(SETTLE))
        return figures(observe(seconds, peer, [*stack, *far]))


def paced(setting, peer, mbit, flows, full):
    """Flows that the stack paces."""
    seconds = setting.seconds(full)
    length = WARM_UP + seconds + 1
    bits = round(mbit * 1e6)
    with network.Network() as net:
        far = net.start(FAR, setting.kb, "sink", "--port", PORT, "--seconds", length, "--fq-rate", bits,
                        *CUBIC)
        time.sleep(0.2)
        role, target = net.beside(peer == KERNEL, NEAP_TUN)
        stack = net.start(role, *setting.program(peer), "send", "--target", target, "--port", PORT, "--flows", flows,
                          "--seconds", length, "--fq-rate", bits, *CUBIC, show_errors=True)
        # Connections are made one after the other.
        time.sleep(WARM_UP + flows / 2000)
        usage = observe(seconds - flows / 2000 if flows > 1000 else seconds, peer, [stack, far])
        finished(stack, peer, "bytes")
        got = finished(far, "the far side", "flows", "mean_percent", "slowest_percent")
    if got["flows"] != flows:
        raise Failure(f"{got['flows']} of {flows} flows of {peer} came")
    share, slowest = (1 + got[key] / 100 for key in ("mean_percent", "slowest_percent"))
    per_second = share * flows * bits / 8 / MSS
    return {
        **figures(usage), "share": share, "slowest_share": slowest, "worst_percent": got["worst_percent"],
        "machine_us_per_segment": usage.load_s / usage.seconds / per_second * 1e6,
        "cpu_us_per_segment": usage.cpu_s / usage.seconds / per_second * 1e6,
    }


def at_rate(setting, peer, mbit, flows, full):
    result = paced(setting, peer, mbit, flows, full)
    if result["share"] < LEAST_SHARE:
        raise Failure(f"flows of {peer} had {result['share']:.1%} of their rate")
    return result


def shaped(setting, peer, mbit, full):
    """One flow through `tbf`, which nobody paces."""
    seconds = setting.seconds(full)
    with network.Network() as net:
        role, target = net.behind_bottleneck(peer == KERNEL, NEAP_TUN, mbit)
        far = net.start(FAR, setting.kb, "sink", "--port", PORT, "--seconds", 600, *CUBIC)
        time.sleep(0.2)
        stack = net.start(role, *setting.program(peer), "send", "--target", target, "--port", PORT, "--seconds", 600,
                          *CUBIC, show_errors=True)
        time.sleep(WARM_UP)
        before = net.link(FAR, "in")["rx"]["bytes"]
        usage = observe(seconds, peer, [stack, far])
        bits = (net.link(FAR, "in")["rx"]["bytes"] - before) * 8
    # What does not end soon is killed: the queue holds up to 10 MB.
    share = bits / usage.seconds / (mbit * 1e6)
    if share < LEAST_SHAPED_SHARE:
        raise Failure(f"the flow of {peer} had {share:.1%} of its rate")
    return {**figures(usage), "share": share}


def most_flows(setting, peer, mbit):
    """The largest number of paced flows of which each has 99 % of its rate, and what they cost."""
    results = {}

    def holds(flows):
        if flows not in results:
            results[flows] = paced(setting, peer, mbit, flows, 4.0)
        return results[flows]["slowest_share"] >= 0.99

    low, high = 0, 64
    while holds(high) and high < 4096:
        low, high = high, high * 2
    while high - low > max(8, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
        if setting.is_quick:
            break
    if not low:
        raise Failure(f"{peer} holds not even 64 flows at {mbit} Mbit/s")
    return {**results[low], "flows_at_rate": low}


def transactions(setting, peer, mode, far_mode, size, flows, busy_poll_us=0):
    """Requests and answers, or connections with one of each. neap looks at its device for so long before it sleeps."""
    own = ("--busy-poll", busy_poll_us) if busy_poll_us and peer != KERNEL else ()
    seconds = setting.seconds(10.0)
    with network.Network() as net:
        role, target = net.beside(peer == KERNEL, NEAP_TUN)
        net.start(FAR, setting.kb, far_mode, "--port", PORT, "--seconds", seconds + 10, *CUBIC)
        time.sleep(0.3)
        stack = net.start(role, *setting.program(peer), mode, "--target", target, "--port", PORT, "--flows", flows,
                          "--size", size, "--seconds", seconds, *CUBIC, *own, show_errors=True)
        result = finished(stack, peer, "per_second", "p99_us")
    if result["errors"]:
        raise Failure(f"{peer} had {result['errors']} errors")
    return result


def bulk(setting, peer, mode, flows):
    """As fast as it goes, with a ping beside it."""
    seconds = setting.seconds(5.0)
    receives = mode == "receive"
    with network.Network() as net:
        role, target = net.beside(peer == KERNEL, NEAP_TUN)
        far = net.start(FAR, setting.kb, "source" if receives else "sink", "--port", PORT, "--seconds", seconds,
                        *CUBIC)
        time.sleep(0.2)
        counters = net.tcp_counters(FAR)
        meter = Meter()
        stack = net.start(role, *setting.program(peer), mode, "--target", target, "--port", PORT, "--flows", flows,
                          "--seconds", seconds, *CUBIC, show_errors=True)
        time.sleep(0.6)
        ping = net.start(FAR, setting.kb, "icmp", "--target", STACK_ADDRESS, "--seconds", seconds - 0.9)
        meter.add(stack, far, ping)
        pings = finished(ping, "the ping", "sent", "lost")
        own = finished(stack, peer, "bytes")
        other = finished(far, "the far side", "bytes", "flows")
        usage = meter.stop()
        dropped = {} if peer == KERNEL else {"ring_drops": net.link(FAR, TUN)["tx"]["dropped"]}
        sent = {name: value - counters[name] for name, value in net.tcp_counters(FAR).items()}
    if other["flows"] != flows:
        raise Failure(f"{other['flows']} of {flows} flows of {peer} came")
    if pings["lost"] == pings["sent"]:
        raise Failure(f"no ping to {peer} was answered")
    gigabytes = (own if receives else other)["bytes"] / 1e9
    if not gigabytes:
        raise Failure(f"{peer} moved nothing")
    return {
        "gbps": own["gbps"] if receives else other["gbps"],
        "machine_s_per_gb": usage.load_s / gigabytes,
        "cpu_s_per_gb": stack.cpu_s / gigabytes,
        "ping_p99_ms": pings["p99_us"] / 1e3,
        "ping_arrival_p99_ms": pings["arrival_p99_us"] / 1e3,
        "foreign_percent": usage.foreign_s / usage.seconds * 100,
        "far_retransmits": sent["RetransSegs"],
        "far_segments": sent["OutSegs"],
        **dropped,
    }


def from_iperf3(setting, peer, flows):
    """Flows of a stock iperf3, received."""
    seconds = max(2, round(setting.seconds(5.0)))
    with network.Network() as net:
        role, target = net.beside(peer == KERNEL, NEAP_TUN)
        far = net.start(FAR, "iperf3", "-s", "-1")
        time.sleep(0.3)
        before = net.tcp_counters(FAR)
        options = ["-c", target, "-P", flows, "-R", "-C", "cubic", "-t", seconds, "-J", "-i", 0]
        program = ["iperf3"] if peer == KERNEL else [
            setting.neap, "perf", "--tun", TUN, "--address", f"{STACK_ADDRESS}/24", "--host-address", f"{HOST_ADDRESS}/24"]
        meter = Meter()
        stack = net.start(role, *program, *options, show_errors=True)
        meter.add(stack, far)
        result = finished(stack, peer, "end")
        usage = meter.stop()
        after = net.tcp_counters(FAR)
        dropped = {} if peer == KERNEL else {"ring_drops": net.link(FAR, TUN)["tx"]["dropped"]}
    received = result["end"]["sum_received"]
    segments, again = (after[name] - before[name] for name in ("OutSegs", "RetransSegs"))
    if not received["bytes"] or not segments:
        raise Failure(f"{peer} received nothing")
    return {
        "gbps": received["bits_per_second"] / 1e9,
        "retransmits_per_10000": again / segments * 1e4,
        "retransmits": again,
        "segments": segments,
        "cpu_s_per_gb": stack.cpu_s / received["bytes"] * 1e9,
        "foreign_percent": usage.foreign_s / usage.seconds * 100,
        **dropped,
    }


def load(group, name, function, *arguments, bars, needs_background=False):
    return Load(group, name, lambda setting, peer: function(setting, peer, *arguments), bars, needs_background)


def idle_loads(setting):
    bars = (Bar("wakeups", "wake-ups in all", 0, most=0), Bar("cpu_percent", "CPU %", 1, most=0))
    for flows in (0, 1000, 2000 if setting.is_quick else 100_000):
        faces = ["none", "accept", "poller", "tokio", "posix"] + ["read"] * bool(flows)
        for face in faces:
            yield load("idle", f"idle-{flows}-{face}", idle, face, flows, bars=bars)


def steady_loads():
    def bars(ratio):
        return (Bar("machine_percent", "machine CPU %", 2, most_ratio=ratio),)

    for mbit, seconds in ((1, 60.0), (10, 60.0), (48, 20.0), (1000, 10.0)):
        yield load("one-flow", f"paced-1x{mbit}", at_rate, mbit, 1, seconds, bars=bars(1.5), needs_background=True)
        yield load("one-flow", f"tbf-1x{mbit}", shaped, mbit, seconds, bars=bars(1.5), needs_background=True)
    for flows, mbit in ((100, 1), (100, 10), (100, 48), (10, 200), (10, 1000)):
        name = f"paced-{flows}x{mbit}"
        yield load("flows", name, at_rate, mbit, flows, 10.0, bars=bars(1.3), needs_background=True)
    per_segment = Bar("machine_us_per_segment", "machine us/segment", 3, most_ratio=1.3)
    for flows in (800, 3000):
        yield load("many-flows", f"paced-{flows}x1", paced, 1, flows, 10.0,
                   bars=(per_segment, Bar("share", "share of the rate", 4, least_ratio=0.99),
                         Bar("slowest_share", "share of the slowest", 4, least_ratio=0.99)))
    most = Bar("flows_at_rate", "flows at 99 %", 0, least_ratio=1.0)
    yield load("many-flows", "most-flows-48", most_flows, 48, bars=(most, per_segment))


def transaction_loads():
    def bars(least):
        rate = Bar("per_second", "per second", 0, least_ratio=least)
        return (rate, Bar("p99_us", "p99 us", 1, most_ratio=1.2))

    for size, flows in ((1, 1), (1, 100), (16384, 1), (16384, 100)):
        for name, busy_poll_us in (("", 0), ("-busy", BUSY_POLL_US)):
            yield load("requests", f"request-{size}x{flows}{name}", transactions, "ping-pong", "echo", size, flows,
                       busy_poll_us, bars=bars(1.0))
    yield load("connect", "connect", transactions, "connect", "connect-echo", 1, 1, bars=bars(1.1)[:1])


def bulk_loads():
    for mode in ("send", "receive"):
        for flows, least in ((1, 1.0), (10, 1.0), (100, 0.9), (1000, 0.8)):
            bars = (Bar("gbps", "Gbit/s", 2, least_ratio=least),
                    Bar("machine_s_per_gb", "machine s/GB", 3, most_ratio=1.15),
                    Bar("ping_p99_ms", "ping p99 ms", 3, most=0.3),
                    # Without the time for which the pinging process waits for a processor.
                    Bar("ping_arrival_p99_ms", "ping p99 arrival ms", 3, most=0.3))
            yield load("bulk", f"{mode}-{flows}", bulk, mode, flows, bars=bars)
    bars = (Bar("gbps", "Gbit/s", 2, least_ratio=0.9), Bar("retransmits_per_10000", "retrans/10000", 2, most=0.99))
    yield load("iperf3", "iperf3-100", from_iperf3, 100, bars=bars)


def all_loads(setting):
    return [*idle_loads(setting), *steady_loads(), *transaction_loads(), *bulk_loads()]
