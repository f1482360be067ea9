"""A link of the lab in real time (`neap link`) between the stack under test and the far side."""

import os
import signal
import subprocess

import network
from network import ETHERNET, FAR, HOST_ADDRESS, ROUTER, STACK, STACK_ADDRESS

# Ends of the link in the namespace of the router, and the interface of the far side.
LEFT, RIGHT, FAR_END = "la", "lb", "vf"
# Whoever is later than the link promises spoils a measurement; this gives it precedence.
SCHEDULING = ("--scheduling", "fifo:1")


class Link(network.Process):
    """A running link. `finish` ends it and answers its counts, with `cpu_s` of the process."""

    def __init__(self, command):
        self.popen = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.cpu_s = 0.0
        line = self.popen.stderr.readline()
        if "are joined" not in line:
            raise network.Failure(line.strip() or "neap link says nothing")

    def finish(self):
        self.popen.send_signal(signal.SIGINT)
        counts = super().finish()
        self.popen.stderr.close()
        if not counts:
            raise network.Failure("neap link printed no counts")
        return counts


def start(net, neap, ends, words, *options):
    """Joins two ends in the router's namespace."""
    inside = ["ip", "netns", "exec", net.names[ROUTER], neap, "link", "--json", *ends, *words.split(), *options]
    link = Link(inside)
    net.processes.append(link)
    return link


def over_ethernet(net, neap, is_kernel, words, *options):
    """A veth from the stack and one from the far side to the router, joined there. ETHERNET in the stack's namespace has
    no address for neap, which brings its own."""
    net.veth(STACK, ETHERNET, STACK_ADDRESS if is_kernel else None, ROUTER, LEFT, None)
    net.veth(ROUTER, RIGHT, None, FAR, FAR_END, HOST_ADDRESS)
    return start(net, neap, (f"packet:{LEFT}", f"packet:{RIGHT}"), words, *options)


def over_tuns(net, neap, words, *options):
    """TUNs of the link in both namespaces, with addresses for kernels."""
    ends = [f"tun:{network.TUN}@{net.names[role]}" for role in (STACK, FAR)]
    addresses = ("--address-a", f"{STACK_ADDRESS}/24", "--address-b", f"{HOST_ADDRESS}/24")
    return start(net, neap, ends, words, *addresses, *options)


def lateness(counts):
    """Percentiles of both directions together are not known; those of the worse one."""
    both = [way["lateness"] for way in counts["directions"]]
    late, packets = sum(way["late"] for way in both), sum(way["packets"] for way in both)
    worst = {name: max(way[name] for way in both) for name in ("p50_us", "p99_us", "max_us")}
    return {**worst, "late_percent": 100 * late / max(packets, 1)}


def is_busy():
    """Load of the machine in the last minute, per processor."""
    return os.getloadavg()[0] / os.cpu_count()
