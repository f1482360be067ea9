"""The gateways, and a guest behind each: a namespace whose way out is a process in the namespace of the host.

A guest is a process that sleeps in a network namespace of its own. Programs of a load enter it by its process.
"""

import shutil
import subprocess
import time
from pathlib import Path

import build
import network
import usage
from network import FAR, HOST_ADDRESS, STACK, STACK_ADDRESS, children, descendants

# The namespace of the host, where gateways and servers are.
HOST = STACK
# Addresses of servers at the host. None of them is copied into a guest.
SERVERS = ["10.97.0.1", "10.97.0.2", "10.97.0.3", "10.97.0.4"]
# How long a gateway may take until its guest has a route.
START_S = 10


def prepare(net):
    """The host: a way out to the far side, servers' addresses, and echo requests for all users."""
    net.veth(HOST, "vs", STACK_ADDRESS, FAR, "vf", HOST_ADDRESS)
    net.ip(HOST, "route", "add", "default", "via", HOST_ADDRESS)
    for address in SERVERS:
        net.ip(HOST, "address", "add", f"{address}/32", "dev", "lo")
    net.sysctl(HOST, "net.ipv4.ping_group_range=0 2147483647")


class Gateway:
    """A running gateway with its guest."""

    def __init__(self, net, process, guest):
        self.net, self.process, self.guest = net, process, guest
        self.name = ""
        # Processes of the gateway besides the first.
        self.halves = []

    def start(self, *command, limit_s=30):
        """A program in the guest, which is ended after some time: not every gateway ends what it has begun."""
        inside = ["nsenter", f"--net=/proc/{self.guest}/ns/net", "timeout", limit_s, *command]
        return self.net.start(HOST, *inside)

    def has_route(self):
        return run_in(self.guest, "ip", "route", "get", SERVERS[0])

    def wait(self, name):
        end = time.monotonic() + START_S
        while not self.has_route():
            if time.monotonic() > end or not self.process.is_running():
                raise network.Failure(f"{name} did not start")
            time.sleep(0.02)

    def pids(self):
        return [self.process.pid, *self.halves]

    def rss(self):
        """Bytes of resident memory."""
        return sum(resident(pid) for pid in self.pids())

    def used_cpu_s(self):
        """CPU time, all threads of all halves."""
        return sum(usage.process_cpu_s(pid) for pid in self.pids())

    def wakeups(self):
        return sum(usage.wakeups(pid) for pid in self.pids())

    @property
    def pid(self):
        return self.process.pid

    def stop(self):
        """Ends all of it. A half may outlive the first process."""
        self.process.kill()
        network.end(self.halves)


def run_in(guest, *command):
    """Whether a command succeeded in a guest."""
    return subprocess.run(["nsenter", f"--net=/proc/{guest}/ns/net", *command], capture_output=True).returncode == 0


def resident(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def sleeper(net):
    """A guest without a way out. Answers the process."""
    # The user namespace lets gateways in that have given up their rights.
    guest = net.start(HOST, "unshare", "--user", "--map-root-user", "--net", "sleep", "infinity")
    await_sleep(guest.pid)
    run_in(guest.pid, "ip", "link", "set", "lo", "up")
    return guest.pid


def await_sleep(pid):
    end = time.monotonic() + START_S
    while name_of(pid) != "sleep":
        if time.monotonic() > end:
            raise network.Failure("the guest did not start")
        time.sleep(0.01)


def neap(net, program, mtu, *options):
    process = net.start(HOST, program, "gateway", "run", "--mtu", mtu, *options, "--", "sleep", "infinity")
    end = time.monotonic() + START_S
    while True:
        below = descendants(process.pid)
        guest = next((pid for pid in below if name_of(pid) == "sleep"), None)
        if guest:
            break
        if time.monotonic() > end or not process.is_running():
            raise network.Failure("neap did not start")
        time.sleep(0.01)
    gateway = Gateway(net, process, guest)
    # Its half in the guest, which sleeps.
    gateway.halves = [pid for pid in below if pid != guest]
    return gateway


def slirp4netns(net, program, mtu):
    guest = sleeper(net)
    process = net.start(HOST, program, "--configure", "--disable-host-loopback", "--mtu", mtu, guest, "tap0")
    return Gateway(net, process, guest)


def pasta(net, program, mtu):
    guest = sleeper(net)
    process = net.start(HOST, program, "--config-net", "--foreground", "--quiet", "--no-map-gw", "--mtu", mtu, "-t", "none", "-u",
                        "none", "-T", "none", "-U", "none", "--runas", "0", guest)
    return Gateway(net, process, guest)


def tun2proxy(net, program, mtu):
    """Without a proxy: its own connections, as the others have. It makes the guest, and its other half is in it."""
    process = net.start(HOST, program, "--unshare", "--proxy", "none", "--tun", "tun0", "--mtu", mtu, "--max-sessions", 20000,
                        "--verbosity", "off")
    end = time.monotonic() + START_S
    while True:
        # unshare(1), and the half in the guest.
        guest = next((half for pid in children(process.pid) for half in children(pid)), None)
        if guest and run_in(guest, "ip", "link", "set", "tun0", "mtu", str(mtu), "up"):
            break
        if time.monotonic() > end or not process.is_running():
            raise network.Failure("tun2proxy did not start")
        time.sleep(0.05)
    run_in(guest, "ip", "address", "add", "10.0.2.100/24", "dev", "tun0")
    run_in(guest, "ip", "route", "add", "default", "dev", "tun0")
    gateway = Gateway(net, process, guest)
    gateway.halves = [guest]
    return gateway


STARTERS = {"neap": neap, "pasta": pasta, "slirp4netns": slirp4netns, "tun2proxy": tun2proxy}


def programs(wanted):
    """The program of each gateway that is there, and a line for each that is missing."""
    found, missing = {}, []
    for name in wanted:
        try:
            if name == "neap":
                found[name] = build.neap()
            elif name == "tun2proxy":
                found[name] = build.crate("tun2proxy", "0.8.7", "tun2proxy-bin")
            elif shutil.which(name):
                found[name] = shutil.which(name)
            else:
                missing.append(f"{name} is missing: install {'passt' if name == 'pasta' else name}")
        except network.Failure as failure:
            if name == "neap":
                raise
            missing.append(f"{name} is left out: {str(failure).splitlines()[0]}")
    return found, missing


def datagrams():
    """The program of `datagrams.c`."""
    build.require("gcc")
    build.PEERS.mkdir(parents=True, exist_ok=True)
    source, program = Path(__file__).resolve().parent / "datagrams.c", build.PEERS / "datagrams"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        build.build(["gcc", "-O2", "-Wall", "-o", program, source], build.ROOT)
    return program


def start(net, name, program, mtu, *options):
    gateway = STARTERS[name](net, program, mtu, *options)
    gateway.wait(name)
    gateway.name = name
    return gateway
