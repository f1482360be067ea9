"""The parts of the benchmarks that are tested. `cargo test -p neap-cli --test commands` runs all tests in this folder."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

BENCHES = Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(BENCHES / folder) for folder in ("lib", "gateway", "peers", "wireguard")]


def loads(benchmark):
    """The loads of a benchmark: several have a file of this name."""
    path = BENCHES / benchmark / "loads.py"
    spec = importlib.util.spec_from_file_location(f"{benchmark}_loads", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(benchmark):
    """The command of a benchmark, whose file has no ending. What it imports is not to be kept for others: several have a `loads.py`."""
    path, before = BENCHES / benchmark / "run", list(sys.path)
    loader = importlib.machinery.SourceFileLoader(f"{benchmark}_run", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    own = sys.modules.pop("loads", None)
    try:
        loader.exec_module(module)
    finally:
        sys.path[:] = before
        sys.modules.pop("loads", None)
        if own is not None:
            sys.modules["loads"] = own
    return module


def skip(case, reason):
    """Ends a test that cannot run here. `./test` counts what is said on stderr."""
    print(f"SKIP: {reason}", file=sys.stderr)
    case.skipTest(reason)


def namespace(case):
    """The words that run a command in a network namespace that ends with it."""
    for words in (["unshare", "-n"], ["unshare", "-rn"]):
        probe = [*words, "sh", "-c", "ip link set lo up && test -w /proc/sys/net/ipv4/icmp_echo_ignore_all"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            return words
    return skip(case, "no right to make a network namespace with settings of its own")


def is_alive(pid):
    """Whether a process runs; nobody may have waited for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(is_so, seconds=20):
    """Whether something becomes true: far more time than it takes."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def kill(pid):
    """For the end of a test, which may have failed."""
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
