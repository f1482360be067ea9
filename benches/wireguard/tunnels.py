"""The near sides and the far sides of a tunnel, each in a namespace of its own, and the path between them.

A near side is a program through which clients of the near host reach servers of the far host: a proxy (`kb` connects to it), a
TUN (`kb` connects through the kernel), or a program that makes the load itself.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import build
import link
import network
import usage
from network import ETHERNET, FAR, HOST_ADDRESS, STACK, STACK_ADDRESS

HERE = Path(__file__).resolve().parent
# Addresses inside of the tunnel, and the ports of the devices outside.
NEAR_ADDRESS, FAR_ADDRESS = "10.90.0.2", "10.90.0.1"
NEAR_PORT, FAR_PORT = 51821, 51820
# A port of the near host beside the tunnel.
DEAF_PORT = 51822
# Ports of the servers of the far host; proxies listen on the same ports of the near host's loopback.
SINK, SOURCE, ECHO, HOLD = SERVERS = 9001, 9002, 9003, 9004
SOCKS = 1080
# MTU inside of the tunnel. Of it, 52 bytes are headers of IPv4 and TCP with time stamps.
MTU, HEADERS = 1420, 52
# What a datagram has besides the packet inside: IPv4, UDP, WireGuard's header and tag.
OVERHEAD = 20 + 8 + 32
# Seconds that a program may take until its tunnel passes data.
START_S = 15
# Where wireguard-go listens for settings; its interfaces are called by the number of this process.
SETTINGS = Path("/var/run/wireguard")
INTERFACES = {STACK: "nbn", FAR: "nbf"}
CUBIC, BBR, BBR3 = "cubic", "bbr", "bbr3"


def goodput(ethernet):
    """Of the rate of a path, what full segments leave to the data. `ethernet` is what the path counts of each packet besides IP."""
    return (MTU - HEADERS) / (MTU + OVERHEAD + ethernet)


class Keys:
    """Key pairs of both sides, and a folder for the files of programs. It is removed at the end."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="neap-wireguard-"))
        self.private, self.public = {}, {}
        for role in (STACK, FAR):
            private = subprocess.run(["wg", "genkey"], capture_output=True, text=True, check=True).stdout
            public = subprocess.run(["wg", "pubkey"], input=private, capture_output=True, text=True, check=True).stdout
            self.private[role], self.public[role] = private.strip(), public.strip()

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path


def hexadecimal(key):
    """A key of base64 as the cross-platform interface has it."""
    import base64

    return base64.b64decode(key).hex()


def settings(keys, role, keepalive=25):
    """A device and its peer in the words of the cross-platform interface. The near side keeps the tunnel alive."""
    other = FAR if role == STACK else STACK
    lines = [f"private_key={hexadecimal(keys.private[role])}", f"listen_port={NEAR_PORT if role == STACK else FAR_PORT}",
             f"public_key={hexadecimal(keys.public[other])}"]
    if role == STACK:
        lines += [f"endpoint={HOST_ADDRESS}:{FAR_PORT}", f"persistent_keepalive_interval={keepalive}",
                  f"allowed_ip={FAR_ADDRESS}/32"]
    else:
        lines += [f"allowed_ip={NEAR_ADDRESS}/32"]
    return "\n".join(lines) + "\n"


def file(keys, role, keepalive=25):
    """The same as wg-quick's file, with the doors of neap."""
    other = FAR if role == STACK else STACK
    own, theirs = (NEAR_ADDRESS, FAR_ADDRESS) if role == STACK else (FAR_ADDRESS, NEAR_ADDRESS)
    lines = ["[Interface]", f"PrivateKey = {keys.private[role]}", f"Address = {own}/32", f"MTU = {MTU}",
             f"ListenPort = {NEAR_PORT if role == STACK else FAR_PORT}",
             "[Peer]", f"PublicKey = {keys.public[other]}", f"AllowedIPs = {theirs}/32"]
    if role == STACK:
        lines += [f"Endpoint = {HOST_ADDRESS}:{FAR_PORT}", f"PersistentKeepalive = {keepalive}"]
        for port in SERVERS:
            lines += ["[TCPClientTunnel]", f"BindAddress = 127.0.0.1:{port}", f"Target = {FAR_ADDRESS}:{port}"]
        lines += ["[Socks5]", f"BindAddress = 127.0.0.1:{SOCKS}"]
    else:
        for port in SERVERS:
            lines += ["[TCPServerTunnel]", f"ListenPort = {port}", f"Target = 127.0.0.1:{port}"]
    return "\n".join(lines) + "\n"


class WireguardGo(network.Process):
    """wireguard-go over a TUN with the kernel's TCP."""

    def __init__(self, net, program, keys, role, keepalive=25):
        self.interface = f"{INTERFACES[role]}{os.getpid()}"
        inside = ["ip", "netns", "exec", net.names[role], "env", "LOG_LEVEL=error", program, "-f", self.interface]
        super().__init__(list(map(str, inside)), False)
        net.processes.append(self)
        self.set(settings(keys, role, keepalive))
        own, theirs = (NEAR_ADDRESS, FAR_ADDRESS) if role == STACK else (FAR_ADDRESS, NEAR_ADDRESS)
        net.ip(role, "address", "add", own, "peer", theirs, "dev", self.interface)
        net.ip(role, "link", "set", "dev", self.interface, "mtu", str(MTU), "up")

    def set(self, text):
        end = time.monotonic() + START_S
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as stream:
                    stream.connect(str(self.path()))
                    stream.sendall(f"set=1\n{text}\n".encode())
                    answer = stream.recv(100)
                break
            except OSError:
                if time.monotonic() > end or not self.is_running():
                    raise network.Failure("wireguard-go did not start") from None
                time.sleep(0.02)
        if b"errno=0" not in answer:
            raise network.Failure(f"wireguard-go does not take its settings: {answer.decode().strip()}")

    def path(self):
        return SETTINGS / f"{self.interface}.sock"

    def kill(self):
        super().kill()
        self.path().unlink(missing_ok=True)


def remove_leftovers():
    """Removes sockets of wireguard-go that a killed run has left."""
    for path in SETTINGS.glob("nb[nf]*.sock"):
        if not os.path.exists(f"/proc/{path.stem[3:]}"):
            path.unlink(missing_ok=True)


class Near:
    """A running near side. `process` is None for the kernel without a tunnel."""

    def __init__(self, net, programs, process, target, *words):
        self.net, self.programs, self.process, self.target, self.words = net, programs, process, target, words

    def client(self, mode, port, *words):
        """`kb` through the tunnel."""
        return self.net.start(STACK, self.programs["kb"], mode, "--target", self.target, "--port", port, *self.words, *words)

    def server(self, is_up, seconds):
        """A program of the far host for a load: what it got is its result."""
        mode, port = ("sink", SINK) if is_up else ("source", SOURCE)
        return self.net.start(FAR, self.programs["kb"], mode, "--port", port, "--seconds", seconds)

    def load(self, is_up, port, flows, seconds):
        """A program that sends or receives as fast as it goes."""
        return self.client("send" if is_up else "receive", port, "--flows", flows, "--seconds", seconds)

    @property
    def pid(self):
        return self.process.pid

    def pids(self):
        return self.process.pids()

    def used_cpu_s(self):
        """CPU time of the tunnel's process."""
        return self.process.used_cpu_s() if self.process else 0.0

    def wakeups(self):
        return usage.wakeups(self.pid)

    def wait(self):
        """Until the tunnel passes data: the first handshake is not part of a load."""
        server = self.net.start(FAR, self.programs["kb"], "echo", "--port", ECHO, "--seconds", START_S)
        end = time.monotonic() + START_S
        while self.client("ping-pong", ECHO, "--seconds", 0.05).finish().get("errors", 1):
            if time.monotonic() > end or (self.process and not self.process.is_running()):
                raise network.Failure("the tunnel does not pass data")
        server.kill()


class Inside(Near):
    """A tunnel with the load in its own process. `command` answers the command of a load."""

    def __init__(self, net, programs, command):
        super().__init__(net, programs, None, FAR_ADDRESS)
        self.command = command

    def load(self, is_up, port, flows, seconds):
        return self.net.start(STACK, *self.command("up" if is_up else "down", f"{FAR_ADDRESS}:{port}", flows, seconds))

    def wait(self):
        """Each load makes its own tunnel."""


class BothInside(Inside):
    """Both ends with their tunnels in their own processes: they know each other's keys."""

    def __init__(self, net, programs):
        super().__init__(net, programs, None)

    def server(self, is_up, seconds):
        return self.net.start(FAR, self.programs["throughput"], "far", seconds)

    def load(self, is_up, port, flows, seconds):
        return self.net.start(STACK, self.programs["throughput"], "load", HOST_ADDRESS, "up" if is_up else "down", flows, seconds)


def forwards():
    return [word for port in SERVERS for word in ("--forward", f"127.0.0.1:{port}={FAR_ADDRESS}:{port}")]


def netstack(net, programs, keys, keepalive):
    device = keys.write("near.uapi", settings(keys, STACK, keepalive))
    process = net.start(STACK, programs["netstack"], "--device", device, *forwards())
    return Near(net, programs, process, "127.0.0.1")


def netstack_inside(net, programs, keys, keepalive):
    device = keys.write("near.uapi", settings(keys, STACK, keepalive))
    return Inside(net, programs, lambda way, target, flows, seconds: (
        programs["netstack"], "--device", device, "--load", way, "--target", target, "--flows", flows, "--seconds", seconds))


def neap_inside(net, programs, keys, keepalive):
    near = keys.write("near.conf", file(keys, STACK, keepalive))
    return Inside(net, programs, lambda way, target, flows, seconds: (programs["load"], near, way, target, flows, seconds))


def neap_both_inside(net, programs, _keys, _keepalive):
    return BothInside(net, programs)


def onetun(net, programs, keys, keepalive):
    private = keys.write("near.key", keys.private[STACK])
    process = net.start(STACK, programs["onetun"], *[f"127.0.0.1:{port}:{FAR_ADDRESS}:{port}" for port in SERVERS],
                        "--endpoint-addr", f"{HOST_ADDRESS}:{FAR_PORT}", "--endpoint-public-key", keys.public[FAR],
                        "--endpoint-bind-addr", f"0.0.0.0:{NEAR_PORT}",
                        "--private-key-file", private, "--source-peer-ip", NEAR_ADDRESS, "--keep-alive", keepalive,
                        "--max-transmission-unit", MTU, "--log", "error")
    return Near(net, programs, process, "127.0.0.1")


def tun(controller):
    def start(net, programs, keys, keepalive):
        process = WireguardGo(net, programs["wireguard-go"], keys, STACK, keepalive)
        return Near(net, programs, process, FAR_ADDRESS, "--congestion", controller)

    return start


def kernel(controller):
    """The kernel's TCP on the same path, without a tunnel."""

    def start(net, programs, _keys, _keepalive):
        return Near(net, programs, None, HOST_ADDRESS, "--congestion", controller)

    return start


def neap(*options, is_socks=False):
    def start(net, programs, keys, keepalive):
        near = keys.write("near.conf", file(keys, STACK, keepalive))
        process = net.start(STACK, programs["neap"], "wireguard", "-c", near, *options)
        if is_socks:
            return Near(net, programs, process, FAR_ADDRESS, "--socks", SOCKS)
        return Near(net, programs, process, "127.0.0.1")

    return start


# Each near side, by the name that rows and options have.
STARTERS = {
    "neap": neap(),
    "neap-socks": neap(is_socks=True),
    "neap-both": neap(),
    "neap-cubic": neap("--congestion", CUBIC),
    "neap-bbr": neap("--congestion", BBR),
    "neap-bbr3": neap("--congestion", BBR3),
    "netstack": netstack,
    "neap-inside": neap_inside,
    "neap-both-inside": neap_both_inside,
    "netstack-inside": netstack_inside,
    "onetun": onetun,
    "wireguard-go": tun(CUBIC),
    "wireguard-go-bbr": tun(BBR),
    "kernel": kernel(CUBIC),
    "kernel-bbr": kernel(BBR),
}
# Far sides that are not wireguard-go over a TUN: neap, and none besides what the near side starts itself.
NEAP_FAR, NO_FAR = {"neap-both"}, {"kernel", "kernel-bbr", "neap-both-inside"}


def needs(name):
    """The program of a near side."""
    others = {"neap-inside": "load", "neap-both-inside": "throughput", "netstack-inside": "netstack", "wireguard-go-bbr": "wireguard-go",
              "kernel-bbr": "kernel"}
    return others.get(name, "neap" if name.startswith("neap") else name)


def go(name, package):
    """A program of the module beside this file; versions are those of its go.sum."""
    build.require("go")
    build.PEERS.mkdir(parents=True, exist_ok=True)
    build.build(["go", "build", "-o", build.PEERS / name, package], HERE / "netstack")
    return build.PEERS / name


def programs(wanted):
    """The programs of the near sides that are wanted, and a line for each that is missing. The far side and the link are always needed."""
    found = {"kb": build.kb(), "neap": build.neap(), "wireguard-go": go("wireguard-go", "golang.zx2c4.com/wireguard"), "kernel": None}
    missing = []
    for name in {"load", "throughput"} & set(wanted):
        found[name] = build.example("neap-wireguard", name)
    if "netstack" in wanted:
        found["netstack"] = go("wireguard-netstack", ".")
    if "onetun" in wanted:
        try:
            found["onetun"] = build.crate("onetun", "0.3.10", "onetun")
        except network.Failure as failure:
            missing.append(f"onetun is left out: {str(failure).splitlines()[0]}")
    return found, missing


def join(net, programs, path, seed):
    """The path from the near host to the far host: words of `neap link`, or a veth with a `tbf` at the near host's end, or
    without one. Answers the running link, if there is one."""
    if path.words:
        return link.over_ethernet(net, programs["neap"], True, path.words, "--seed", seed, *link.SCHEDULING)
    net.veth(STACK, ETHERNET, STACK_ADDRESS, FAR, link.FAR_END, HOST_ADDRESS)
    if path.tbf:
        net.tc(STACK, "qdisc", "replace", "dev", ETHERNET, "root", "tbf", *path.tbf.split())
    return None


def start(net, programs, keys, name, keepalive=25):
    """The far side, then the near side, and data through both."""
    if name in NEAP_FAR:
        net.start(FAR, programs["neap"], "wireguard", "-c", keys.write("far.conf", file(keys, FAR)))
    elif name not in NO_FAR:
        WireguardGo(net, programs["wireguard-go"], keys, FAR)
    near = STARTERS[name](net, programs, keys, keepalive)
    near.wait()
    return near
