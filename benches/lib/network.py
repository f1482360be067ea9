"""Network namespaces for one measurement, and the processes in them.

Everything is made and removed by `Network`: on success, on an exception, on SIGINT and SIGTERM. What a
killed run left behind is removed by the next. Nothing leaves the namespaces.
"""

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import usage

PREFIX = "neap-bench"

# Namespaces: the stack under test, a router with the bottleneck, the far side.
STACK, ROUTER, FAR = "stack", "router", "far"

# The stack under test has STACK_ADDRESS; the far side is HOST_ADDRESS, or BEHIND_ADDRESS with a router
# between.
STACK_ADDRESS, HOST_ADDRESS, BEHIND_ADDRESS = "10.99.0.2", "10.99.0.1", "10.98.0.2"
TUN, ETHERNET = "nb0", "vs"
# Flags of a TUN for neap: super-frames, and a queue for flows that receive in bulk.
NEAP_TUN = ("vnet_hdr", "multi_queue")

SYSCTLS = [
    "net.ipv4.ip_forward=1",
    "net.ipv4.tcp_no_metrics_save=1",
    "net.ipv4.icmp_ratelimit=0",
    "net.ipv4.ip_local_port_range=10000 65000",
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
]


class Failure(Exception):
    """Something that the user has to know, in one line."""


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def exit_on_signals():
    """Lets SIGTERM and SIGHUP unwind, so that namespaces are removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def go_first():
    """This process, and those that it starts, go before others, as far as it may. If the kernel has groups for sessions
    (`sched_autogroup_enabled`), it goes before others of its session only: the session has the share of any other
    (`share_equally`)."""
    try:
        os.nice(-15)
    except OSError:
        pass


def raise_file_limit():
    """As many descriptors as the system allows, for this process and those that it starts. Answers how many."""
    with open("/proc/sys/fs/nr_open") as most:
        limit = int(most.read())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    except (ValueError, PermissionError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def remove_leftovers():
    """Removes the namespaces of runs whose process is gone."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        owner = name.rpartition("-")[2]
        if name.startswith(PREFIX) and not os.path.exists(f"/proc/{owner}"):
            run("ip", "netns", "delete", name, check=False)


class Process:
    """A program in a namespace that prints one JSON object."""

    def __init__(self, command, show_errors):
        stderr = None if show_errors else subprocess.DEVNULL
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.cpu_s = 0.0

    def first_line(self):
        """The first line of its output, as it comes."""
        return parse(self.popen.stdout.readline())

    def finish(self):
        """Waits for its end: its object (`{}` if it printed none); `cpu_s` is user and system time."""
        output = self.popen.stdout.read().strip()
        _, status, usage = os.wait4(self.popen.pid, 0)
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        return parse(output) or parse(output.splitlines()[-1] if output else "")

    @property
    def pid(self):
        """`ip netns exec` becomes the program, so it is the program's."""
        return self.popen.pid

    def pids(self):
        """All that the program consists of."""
        return [self.pid]

    def used_cpu_s(self):
        """CPU time until now, or until it ended."""
        return self.cpu_s if self.popen.returncode is not None else usage.process_cpu_s(self.pid)

    def is_running(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def kill(self):
        """Ends it, and what it has started."""
        if self.popen.returncode is None:
            below = descendants(self.pid)
            self.popen.kill()
            end(below)
            self.popen.wait()
        self.popen.stdout.close()


def children(pid):
    """Children of all threads of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            pass
    return found


def descendants(pid):
    return [pid for child in children(pid) for pid in (child, *descendants(child))]


def end(pids):
    """Ends processes at once; some may have ended."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def parse(line):
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return {}


def share_equally():
    """Gives the session the scheduler's default share of the processors (autogroup, sched(7)) until the program
    ends. One that has a nice value of its own starves the kernel's threads, which work for all peers."""
    path = "/proc/self/autogroup"
    try:
        with open(path) as file:
            before = file.read().split()[-1]
        if before != "0":
            with open(path, "w") as file:
                file.write("0")
            atexit.register(lambda: open(path, "w").write(before))
    except (OSError, IndexError):
        # The kernel has no such groups.
        pass


class Network:
    """Three namespaces and what runs in them; a context manager."""

    def __init__(self):
        share_equally()
        self.processes = []
        self.names = {role: f"{PREFIX}-{role}-{os.getpid()}" for role in (STACK, ROUTER, FAR)}

    def __enter__(self):
        try:
            for name in self.names.values():
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "netns", "exec", name, "sysctl", "-qw", *SYSCTLS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for name in self.names.values():
            run("ip", "netns", "delete", name, check=False)

    def ip(self, role, *words):
        return run("ip", "-n", self.names[role], *words)

    def tc(self, role, *words):
        return run("tc", "-n", self.names[role], *words)

    def sysctl(self, role, setting):
        run("ip", "netns", "exec", self.names[role], "sysctl", "-qw", setting)

    def start(self, role, *command, show_errors=False):
        inside = ["ip", "netns", "exec", self.names[role], *map(str, command)]
        process = Process(inside, show_errors)
        self.processes.append(process)
        return process

    def tun(self, role, flags):
        """A TUN for the stack under test, its kernel end at HOST_ADDRESS."""
        self.ip(role, "tuntap", "add", "dev", TUN, "mode", "tun", *flags)
        self.ip(role, "link", "set", "dev", TUN, "mtu", "1500", "up")
        self.ip(role, "address", "add", f"{HOST_ADDRESS}/24", "dev", TUN)

    def veth(self, role, name, address, other_role, other_name, other_address):
        """A veth pair; an address of None leaves that end to the stack under test."""
        self.ip(role, "link", "add", name, "type", "veth", "peer", "name", other_name,
                "netns", self.names[other_role])
        ends = ((role, name, address), (other_role, other_name, other_address))
        for role, name, address in ends:
            self.ip(role, "link", "set", "dev", name, "up")
            if address:
                self.ip(role, "address", "add", f"{address}/24", "dev", name)

    def bottleneck(self, role, name, mbit):
        """A token bucket filter with a queue of 10 MB. At 1 Gbit a burst below 256 KB costs rate."""
        burst = "16kb" if mbit <= 100 else "256kb"
        self.tc(role, "qdisc", "replace", "dev", name, "root", "tbf", "rate", f"{mbit}mbit",
                "burst", burst, "limit", "10mb")

    def beside(self, is_kernel, tun_flags):
        """Stack and far side next to each other. Answers the stack's namespace and its target."""
        if is_kernel:
            return self.beside_on_ethernet(True)
        self.tun(FAR, tun_flags)
        return FAR, HOST_ADDRESS

    def beside_on_ethernet(self, is_kernel):
        """The same with a veth, whose end in the stack's namespace is ETHERNET. It has no address for neap, which
        brings its own."""
        self.veth(STACK, ETHERNET, STACK_ADDRESS if is_kernel else None, FAR, "vf", HOST_ADDRESS)
        if not is_kernel:
            self.sysctl(STACK, "net.ipv4.ip_forward=0")
        return STACK, HOST_ADDRESS

    def behind_bottleneck(self, is_kernel, tun_flags, mbit):
        """Stack, router with a bottleneck, far side. Answers the stack's namespace and its target."""
        if is_kernel:
            self.veth(STACK, ETHERNET, STACK_ADDRESS, ROUTER, "vr", HOST_ADDRESS)
            self.ip(STACK, "route", "add", "default", "via", HOST_ADDRESS)
        else:
            self.tun(ROUTER, tun_flags)
        self.veth(ROUTER, "out", "10.98.0.1", FAR, "in", BEHIND_ADDRESS)
        self.ip(FAR, "route", "add", "default", "via", "10.98.0.1")
        self.bottleneck(ROUTER, "out", mbit)
        return (STACK if is_kernel else ROUTER), BEHIND_ADDRESS

    def link(self, role, name):
        """Counters of a device: `ip -s -j link`."""
        return json.loads(self.ip(role, "-s", "-j", "link", "show", "dev", name))[0]["stats64"]

    def tcp_counters(self, role):
        """TCP's counters of a namespace by the names of `/proc/net/snmp`."""
        text = run("ip", "netns", "exec", self.names[role], "cat", "/proc/net/snmp")
        names, values = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
        return dict(zip(names, map(int, values)))

    def qdisc(self, role, name):
        """Figures of a device's root qdisc: `tc -s -j`."""
        listing = json.loads(self.tc(role, "-s", "-j", "qdisc", "show", "dev", name))
        return next(qdisc for qdisc in listing if qdisc.get("root"))
