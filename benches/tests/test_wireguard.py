"""The rows of `benches/wireguard/run`, their peers, and the figures of a flood."""

import importlib.machinery
import importlib.util
import sys
import unittest
from unittest import mock

import parts
import network
import tunnels


def program():
    """The command itself, which has no ending."""
    if "wireguard_run" not in sys.modules:
        loader = importlib.machinery.SourceFileLoader("wireguard_run", str(parts.BENCHES / "wireguard/run"))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        # The loads of another benchmark may have been there first.
        with mock.patch.dict(sys.modules, {loader.name: module, "loads": parts.loads("wireguard")}):
            loader.exec_module(module)
        sys.modules[loader.name] = module
    return sys.modules["wireguard_run"]


def table():
    run = program()
    return [*run.unlimited(), *run.host_rates(), *run.paths(), *run.many()]


class Started:
    """A network, and programs in it that all print this."""

    def __init__(self, report):
        self.report, self.commands = report, []
        self.net = self

    def start(self, role, *words):
        self.commands.append((role, *map(str, words)))
        return self

    def finish(self):
        return self.report

    def kill(self):
        pass


class Rows(unittest.TestCase):
    def test_each_peer_can_be_started(self):
        for row in table():
            for peer in row.peers:
                self.assertIn(peer, tunnels.STARTERS, row.name)
            self.assertEqual(len(row.peers), len(set(row.peers)), row.name)
            for bar in row.bars:
                self.assertTrue({bar.own, bar.peer} - {""} <= set(row.peers), bar.text())

    def test_both_versions_of_bbr_are_in_the_same_rows(self):
        for row in table():
            self.assertEqual("neap-bbr" in row.peers, "neap-bbr3" in row.peers, row.name)
        self.assertEqual(tunnels.needs("neap-bbr3"), "neap")

    def test_both_ends_without_proxies_are_in_the_rows_without_a_limit(self):
        rows = [row.name for row in table() if "neap-both-inside" in row.peers]
        self.assertEqual(rows, ["up-1", "up-10", "down-1", "down-10"])
        self.assertEqual(tunnels.needs("neap-both-inside"), "throughput")

    def test_both_ends_without_proxies_are_one_program(self):
        started = Started({})
        near = tunnels.start(started, {"throughput": "throughput"}, None, "neap-both-inside")
        near.server(True, 5)
        near.load(True, tunnels.SINK, 10, 5)
        near.load(False, tunnels.SOURCE, 1, 5)
        address = network.HOST_ADDRESS
        self.assertEqual(started.commands, [
            (network.FAR, "throughput", "far", "5"),
            (network.STACK, "throughput", "load", address, "up", "10", "5"),
            (network.STACK, "throughput", "load", address, "down", "1", "5"),
        ])

    def test_a_flood_shows_what_was_offered_and_sent_and_the_rate_without_it(self):
        run, near = program(), Started({"per_second": 19_000.0, "cookies_per_second": 11_000.0})
        rates = [{"gbps": rate} for rate in (4.0, 2.0, 1.8)]
        ports = []

        def attack(port):
            ports.append(port)
            return near

        with mock.patch.object(run.loads, "bulk", side_effect=rates), mock.patch.object(run.loads.time, "sleep"):
            figures = run.loads.forged(near, attack, run.FORGED_PER_SECOND, 5)
        self.assertEqual(ports, [tunnels.DEAF_PORT, tunnels.NEAR_PORT])
        self.assertEqual(figures, {
            "gbps": 1.8, "unread_gbps": 2.0, "quiet_gbps": 4.0, "kept": 0.9, "kept_of_quiet": 0.45,
            "offered_per_second": 20_000, "unread_per_second": 19_000.0, "forged_per_second": 19_000.0, "cookies_per_second": 11_000.0,
        })
        printed = run.bars.shown(run.bars.medians([figures], run.FORMATS), run.FORMATS)
        for shown in ("unread 2.000", "alone 4.000", "kept 0.90", "kept of alone 0.45", "offered/s 20000", "forged/s 19000"):
            self.assertIn(shown, printed)
