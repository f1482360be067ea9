"""What is measured of a gateway. Each function takes a running gateway, and answers a row of figures."""

import time

import build
import gateways
import network
import usage
from gateways import HOST, SERVERS
from network import FAR, HOST_ADDRESS

PORT, PROBE_PORT = 5201, 7001
# A load runs for so long before its probe, so that the start is not in it.
WARM_UP_S = 0.5
# How long after its load a program may end.
GRACE_S = 5
# Lost of 1000 datagrams at a rate that counts as without loss.
LOST_PER_1000 = 1
# Rates of datagrams that are tried, 50 Mbit/s to 30 Gbit/s: each so much above the one before. A ratio of two gateways is a power of
# this step, so it is as exact as the step is small.
UDP_STEP = 1.025
UDP_RATES = [50 * UDP_STEP**step for step in range(260)]
UDP_LENGTH, UDP_S = 1400, 1
# A lost answer holds up `datagrams mappings` for half a second, and it tells how many came: two hundred lost ones, too.
MAPPINGS_S = 120


class Tools:
    """Programs of the loads, and how long a load runs."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.kb, self.datagrams = build.kb(), gateways.datagrams()


def serve(net, role, *command):
    """A server, which needs a moment."""
    process = net.start(role, *command)
    time.sleep(0.25)
    return process


def iperf3(gateway, address, tools, *options, seconds=None):
    seconds = seconds or tools.seconds
    return gateway.start("iperf3", "-c", address, "-t", seconds, "-J", *options, limit_s=seconds + GRACE_S)


def ended(process):
    """The report of iperf3."""
    report = process.finish()
    if "error" in report or "end" not in report:
        raise network.Failure(f"iperf3: {report.get('error', 'no report')}")
    return report["end"]


def received(end):
    return end["sum_received"]["bits_per_second"] / 1e9


def probe_of(report):
    """Round trips of a probe in milliseconds."""
    if "p50_us" not in report:
        return {}
    return {"p50_ms": report["p50_us"] / 1e3, "p99_ms": report["p99_us"] / 1e3}


def bulk(gateway, tools, is_in, flows, mbit=None, needs_probe=True):
    """A transfer of iperf3 with a probe beside it; `mbit` of all flows together, or as fast as it goes."""
    net = gateway.net
    server = serve(net, HOST, "iperf3", "-s", "-1", "-B", SERVERS[0])
    echo = serve(net, HOST, tools.datagrams, "echo", SERVERS[1], PROBE_PORT)
    options = ["-P", flows, *(["-R"] if is_in else []), *(["-b", f"{mbit / flows:.2f}M"] if mbit else [])]
    meter = usage.Meter([gateway, server])
    client = iperf3(gateway, SERVERS[0], tools, *options)
    meter.add(client)
    probe = None
    if needs_probe:
        time.sleep(WARM_UP_S)
        probe = gateway.start(tools.datagrams, "probe", SERVERS[1], PROBE_PORT, max(tools.seconds - 2 * WARM_UP_S, 0.5))
        meter.add(probe)
    end = ended(client)
    used = meter.stop()
    row = {"gbps": received(end)}
    if probe:
        row |= probe_of(probe.finish())
    gigabytes = end["sum_received"]["bytes"] / 1e9
    if gigabytes > 0:
        row |= {"cpu_s_per_gb": used.cpu_s / gigabytes, "machine_s_per_gb": used.load_s / gigabytes}
    echo.kill()
    server.kill()
    return row


def half(gateway, tools, is_in):
    """The probe beside half of the rate that this gateway reaches with one flow."""
    full = bulk(gateway, tools, is_in, 1, needs_probe=False)["gbps"]
    return {"full_gbps": full} | bulk(gateway, tools, is_in, 1, mbit=full * 500)


def udp_at(gateway, tools, is_in, mbit, is_joined):
    """Datagrams at a rate: what arrived, or None if more than `LOST_PER_1000` was lost or the sender did not reach the rate."""
    way = "in" if is_in else "out"
    client = gateway.start(tools.datagrams, way, SERVERS[1], PROBE_PORT, UDP_S, mbit, UDP_LENGTH,
                           *(["joined"] if is_joined else []), limit_s=UDP_S + GRACE_S)
    report = client.finish()
    sent, received = report.get("sent", 0), report.get("received", 0)
    reached = sent * UDP_LENGTH * 8 / UDP_S / 1e6 > mbit * 0.95
    if not reached or (sent - received) * 1000 > sent * LOST_PER_1000:
        return None
    return {"gbps": received * UDP_LENGTH * 8 / report["seconds"] / 1e9, "lost_percent": max(sent - received, 0) * 100 / sent}


def udp(gateway, tools, is_in, is_joined):
    """The highest of the rates of which no more is lost than `LOST_PER_1000`, by bisection, and what was lost of it; `is_joined` is
    with `UDP_SEGMENT` and `UDP_GRO` at both ends."""
    station = serve(gateway.net, HOST, tools.datagrams, "station", SERVERS[1], PROBE_PORT)
    low, high, best = -1, len(UDP_RATES), {"gbps": 0.0}
    while high - low > 1:
        step = (low + high) // 2
        found = udp_at(gateway, tools, is_in, UDP_RATES[step], is_joined)
        if found is None:
            high = step
        else:
            low, best = step, found
    station.kill()
    return best


def request(gateway, tools):
    """One byte there and back, on one connection."""
    server = serve(gateway.net, HOST, tools.kb, "echo", "--seconds", tools.seconds + GRACE_S)
    client = gateway.start(tools.kb, "ping-pong", "--target", SERVERS[0], "--seconds", tools.seconds, limit_s=tools.seconds + GRACE_S)
    report = client.finish()
    server.kill()
    if report.get("errors", 1):
        raise network.Failure("a request was not answered")
    return {"per_second": report["per_second"], "p50_ms": report["p50_us"] / 1e3, "p99_ms": report["p99_us"] / 1e3}


def connect(gateway, tools):
    """Connect, a byte each way, close: clients beside each other, each with a destination of its own."""
    server = serve(gateway.net, HOST, tools.kb, "connect-echo", "--seconds", tools.seconds + 2 * GRACE_S)
    clients = [gateway.start(tools.kb, "connect", "--target", address, "--seconds", tools.seconds, limit_s=tools.seconds + GRACE_S)
               for address in SERVERS]
    reports = [client.finish() for client in clients]
    server.kill()
    return {"per_second": sum(report.get("per_second", 0) for report in reports),
            "errors": sum(report.get("errors", 1) for report in reports)}


def idle(gateway, tools, flows):
    """Memory of the gateway for each flow that does nothing, and its wake-ups beside them."""
    server = serve(gateway.net, HOST, tools.kb, "hold", "--flows", flows, "--seconds", 60)
    before = gateway.rss()
    client = gateway.start(tools.kb, "idle", "--target", SERVERS[0], "--flows", flows, "--seconds", 60)
    report = client.first_line()
    if report.get("flows") != flows:
        raise network.Failure(f"{flows} flows could not be opened")
    time.sleep(1)
    grown = gateway.rss() - before
    start, woken = time.monotonic(), gateway.wakeups()
    time.sleep(max(2 * tools.seconds, 2))
    wakeups = (gateway.wakeups() - woken) / (time.monotonic() - start)
    client.kill()
    server.kill()
    return {"bytes_per_flow": grown / flows, "megabytes": (before + grown) / 1e6, "wakeups_per_second": wakeups}


def mappings(gateway, tools, count):
    """Sockets of the guest that have their answers, those that have them also when all of them are there, and those that had the
    same port outside both times: whose mapping stayed."""
    ports = serve(gateway.net, HOST, tools.datagrams, "ports", SERVERS[1], PROBE_PORT)
    report = gateway.start(tools.datagrams, "mappings", SERVERS[1], PROBE_PORT, count, limit_s=MAPPINGS_S).finish()
    ports.kill()
    if "kept" not in report:
        raise network.Failure("the mappings could not be opened")
    return {"first": report["first"], "answered": report["again"], "kept": report["kept"], "seconds": report["seconds"]}


def shape(net, mbit):
    """A slow uplink, with a queue that holds 400 ms."""
    net.tc(HOST, "qdisc", "replace", "dev", "vs", "root", "tbf", "rate", f"{mbit}mbit", "burst", "16kb", "latency", "400ms")


def uplink(gateway, tools, flows):
    """An upload behind a slow uplink: pings of the host beside it, and a probe of the guest, each without load and with."""
    net = gateway.net
    server = serve(net, FAR, "iperf3", "-s", "-1")
    echo = serve(net, FAR, tools.datagrams, "echo", HOST_ADDRESS, PROBE_PORT)

    def ping(seconds):
        host = net.start(HOST, tools.kb, "icmp", "--target", HOST_ADDRESS, "--seconds", seconds)
        guest = gateway.start(tools.datagrams, "probe", HOST_ADDRESS, PROBE_PORT, seconds)
        return host.finish(), probe_of(guest.finish())

    quiet, quiet_guest = ping(tools.seconds)
    client = iperf3(gateway, HOST_ADDRESS, tools, "-P", flows, seconds=tools.seconds * 2 + 3)
    time.sleep(2)
    loaded, loaded_guest = ping(tools.seconds * 2)
    end = ended(client)
    echo.kill()
    server.kill()
    missing = float("nan")
    return {
        "mbit": received(end) * 1e3,
        "ping_more_ms": (loaded.get("p99_us", missing) - quiet.get("p50_us", missing)) / 1e3,
        "probe_more_ms": loaded_guest.get("p99_ms", missing) - quiet_guest.get("p50_ms", missing),
        "drops": net.qdisc(HOST, "vs")["drops"],
    }
