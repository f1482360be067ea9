"""What is measured of a tunnel. Each function takes a running near side, and answers a row of figures."""

import sys
import time

import build
import network
import tunnels
import usage
from network import FAR, HOST_ADDRESS, STACK

# A ping beside a load begins so much later than the load, and ends so much before it.
MARGIN_S = 0.5
# Between requests of the flow beside an upload, ms.
GAP_MS = 10
# How long a tunnel is watched while nothing is sent, and seconds between its keepalives then.
IDLE_S, KEEPALIVE_S = 20, 5
# What is opened before flows are idle.
SETTLE_S = 3
# What a server needs until it listens.
SERVER_S = 0.25


def serve(net, *words):
    """A server on the far host, which needs a moment."""
    server = net.start(FAR, build.kb(), *words)
    time.sleep(SERVER_S)
    return server


def ping(net, seconds):
    """The near host's own ping, beside the tunnel."""
    return net.start(STACK, build.kb(), "icmp", "--target", HOST_ADDRESS, "--seconds", seconds)


def quantiles(report, name):
    """Round trips in milliseconds."""
    if "p50_us" not in report:
        return {}
    return {f"{name}_p50_ms": report["p50_us"] / 1e3, f"{name}_p99_ms": report["p99_us"] / 1e3}


def bulk(near, is_up, flows, seconds):
    """A transfer with a ping of the host beside it: what the receiver got from the second second on, and CPU per 10^9 bytes. `cpu`
    is that of the tunnel's process, `near` with the client of the tunnel, `machine` all of the machine."""
    net = near.net
    server = near.server(is_up, seconds)
    time.sleep(SERVER_S)
    before = near.used_cpu_s()
    # The near side is first, as its wake-ups are counted. The far side's tunnel is of the load too.
    others = [process for process in net.processes if process is not near.process]
    meter = usage.Meter([near, *others] if near.process else others)
    client = near.load(is_up, tunnels.SINK if is_up else tunnels.SOURCE, flows, seconds)
    meter.add(client)
    time.sleep(MARGIN_S)
    beside = ping(net, seconds - 2 * MARGIN_S)
    meter.add(beside)
    report = client.finish()
    used = meter.stop()
    cpu_s = near.used_cpu_s() - before
    row = quantiles(beside.finish(), "ping")
    if is_up:
        report = server.finish()
    server.kill()
    received = report.get("bytes", 0)
    if not received:
        raise network.Failure("nothing was received")
    gigabytes = received / 1e9
    gbps = report["gbps_steady"] if is_up else report["gbps"]
    row |= {"gbps": gbps, "mbit": gbps * 1e3, "near_s_per_gb": (cpu_s + client.cpu_s) / gigabytes,
            "machine_s_per_gb": used.load_s / gigabytes}
    if near.process:
        row["cpu_s_per_gb"] = cpu_s / gigabytes
    if "jain" in report:
        row["jain"] = report["jain"]
    return row


def queue(near):
    """Drops of the near host's `tbf`, if it has one."""
    qdisc = near.net.qdisc(STACK, network.ETHERNET)
    return {"drops": qdisc["drops"]} if qdisc["kind"] == "tbf" else {}


def upload(near, flows, seconds):
    return bulk(near, True, flows, seconds) | queue(near)


def beside(near, seconds):
    """An upload, with requests through the same tunnel and the host's pings beside it. Figures with `more` are the p99 beside
    the upload, less the median without it."""
    net = near.net
    echo = serve(net, "echo", "--port", tunnels.ECHO, "--seconds", 3 * seconds + 10)

    def requests(length):
        pings = ping(net, length)
        asked = near.client("ping-pong", tunnels.ECHO, "--seconds", length, "--gap", GAP_MS)
        seen, answers = pings.finish(), asked.finish()
        if answers.get("errors", 1):
            raise network.Failure("a request was not answered")
        return seen, answers

    quiet, quiet_asked = requests(2)
    sink = serve(net, "sink", "--port", tunnels.SINK, "--seconds", seconds)
    client = near.load(True, tunnels.SINK, 1, seconds)
    time.sleep(1.5)
    loaded, loaded_asked = requests(seconds - 2)
    client.finish()
    report = sink.finish()
    echo.kill()
    missing = float("nan")

    def more(now, then):
        return (now.get("p99_us", missing) - then.get("p50_us", missing)) / 1e3

    return {"mbit": report.get("gbps_steady", 0) * 1e3, "ping_more_ms": more(loaded, quiet),
            "request_more_ms": more(loaded_asked, quiet_asked)} | queue(near)


def datagrams(net):
    """Datagrams of the near host's interface, in both directions."""
    counts = net.link(STACK, network.ETHERNET)
    return counts["rx"]["packets"] + counts["tx"]["packets"]


def watch(near, seconds):
    """Wake-ups of the tunnel and datagrams of its host, per second."""
    before, woken, start = datagrams(near.net), near.wakeups(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - start
    return (near.wakeups() - woken) / took, (datagrams(near.net) - before) / took


def idle(near, flows, seconds):
    """Wake-ups of the tunnel's process while nothing but keepalives is sent, with open flows and without."""
    without, _ = watch(near, seconds)
    hold = serve(near.net, "hold", "--port", tunnels.HOLD, "--flows", flows, "--seconds", 60 + seconds)
    client = near.client("idle", tunnels.HOLD, "--flows", flows, "--seconds", 60 + seconds)
    if client.first_line().get("flows") != flows:
        raise network.Failure(f"{flows} flows could not be opened")
    time.sleep(SETTLE_S)
    wakeups, sent = watch(near, seconds)
    client.kill()
    hold.kill()
    return {"wakeups_per_second": wakeups, "unused_wakeups_per_second": without, "datagrams_per_second": sent,
            "wakeups_per_datagram": wakeups / sent if sent else float("nan")}


# Holds a port whose datagrams nobody reads.
DEAF = "import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', int(sys.argv[1]))); time.sleep(600)"


def forged(near, attack, offered, seconds):
    """An upload alone, beside datagrams to a port that nobody reads, and beside the same as forged handshakes: `attack` starts a
    program that sends them to a port of the near host, and is to send `offered` of them a second. `kept` is the last to the second,
    as the program needs processors too, and `kept_of_quiet` the last to the first. What was really sent is beside what was offered,
    of datagrams that nobody reads and of handshakes."""
    quiet = bulk(near, True, 1, seconds)["gbps"]
    deaf = near.net.start(STACK, sys.executable, "-c", DEAF, tunnels.DEAF_PORT)
    time.sleep(0.25)

    def beside_datagrams(port):
        attacker = attack(port)
        return bulk(near, True, 1, seconds)["gbps"], attacker.finish()

    unread, ignored = beside_datagrams(tunnels.DEAF_PORT)
    deaf.kill()
    loaded, report = beside_datagrams(tunnels.NEAR_PORT)
    return {"gbps": loaded, "unread_gbps": unread, "quiet_gbps": quiet, "kept": loaded / unread, "kept_of_quiet": loaded / quiet,
            "offered_per_second": offered, "unread_per_second": ignored.get("per_second", 0),
            "forged_per_second": report.get("per_second", 0), "cookies_per_second": report.get("cookies_per_second", 0)}
