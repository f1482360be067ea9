"""Building what the benchmarks run. Each function answers the program's path or raises `Failure`."""

import os
import shutil
import subprocess
from pathlib import Path

from network import Failure

BENCHES = Path(__file__).resolve().parent.parent
ROOT = BENCHES.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PEERS = TARGET / "peers"

HOW_TO_INSTALL = {
    "ip": "install iproute2",
    "tc": "install iproute2",
    "ss": "install iproute2",
    "sysctl": "install procps",
    "gcc": "install gcc, or another C compiler as gcc",
    "cargo": "install Rust with rustup",
    "go": "install Go, 1.26 or newer",
    "iperf3": "install iperf3",
    "ping": "install iputils",
    "wg": "install wireguard-tools",
    "valgrind": "install valgrind",
}


def require(*tools):
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        raise Failure("; ".join(f"{tool} is missing: {HOW_TO_INSTALL[tool]}" for tool in missing))


def require_network():
    require("ip", "tc", "sysctl")
    if os.geteuid() != 0:
        raise Failure("network namespaces need root: run it with sudo")
    if not os.path.exists("/dev/net/tun"):
        raise Failure("/dev/net/tun is missing: modprobe tun")


def build(command, directory, **environment):
    done = subprocess.run(command, cwd=directory, env={**os.environ, **environment},
                          capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))} failed in {directory.name}:\n{done.stderr}")


def kb():
    require("gcc")
    PEERS.mkdir(parents=True, exist_ok=True)
    source, program = BENCHES / "peers/kb.c", PEERS / "kb"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        build(["gcc", "-O2", "-Wall", "-o", program, source], ROOT)
    return program


def gvisor():
    require("go")
    build(["go", "build", "-o", PEERS / "gvisor", "."], BENCHES / "peers/gvisor")
    return PEERS / "gvisor"


def smoltcp():
    require("cargo")
    target = PEERS / "smoltcp"
    build(["cargo", "build", "--release", "--locked"], BENCHES / "peers/smoltcp",
          CARGO_TARGET_DIR=str(target))
    return target / "release/neap-bench-smoltcp"


def crate(name, version, program):
    """A program of a crate of crates.io, in a folder of its own."""
    require("cargo")
    root = PEERS / f"{name}-{version}"
    if not (root / "bin" / program).exists():
        PEERS.mkdir(parents=True, exist_ok=True)
        build(["cargo", "install", name, "--version", version, "--locked", "--root", root], ROOT,
              CARGO_TARGET_DIR=str(PEERS / "build"))
    return root / "bin" / program


def example(package, name, *features):
    """A release build of one of the workspace's examples."""
    require("cargo")
    build(["cargo", "build", "--release", "-p", package, "--features", ",".join(features), "--example", name], ROOT)
    return TARGET / "release/examples" / name


def neap():
    """The program `neap`."""
    require("cargo")
    build(["cargo", "build", "--release", "-p", "neap-cli"], ROOT)
    return TARGET / "release/neap"
