"""What makes a benchmark end with status 1."""

import contextlib
import io
import unittest
from types import SimpleNamespace

import parts


class Status(unittest.TestCase):
    def test_a_missed_bar_of_fairness_counts(self):
        peers = parts.program("peers")

        def is_fair(jain, rounds, kernel=None):
            results = {"neap": [{"jain": jain, "longest_wait": rounds}]}
            if kernel is not None:
                results["kernel"] = [{"jain": kernel}]
            with contextlib.redirect_stdout(io.StringIO()):
                return peers.print_table(SimpleNamespace(name="J10-tun", title="shares", figure="jain"), results)

        self.assertTrue(is_fair(0.985, 2))
        self.assertFalse(is_fair(0.975, 2))
        self.assertTrue(is_fair(0.975, 2, kernel=0.97))
        self.assertFalse(is_fair(0.985, 3))

    def test_a_missed_bar_of_a_cost_counts_as_a_failed_peer_does(self):
        cost = parts.program("cost")
        load = next(load for load in cost.all_loads(cost.Setting("", "", "", True)) if load.bars[0].most_ratio)
        bar = load.bars[0]

        def is_good(own, kernel):
            rounds = [{peer_bar.key: kernel for peer_bar in load.bars}]
            results = {cost.NEAP: [own if isinstance(own, dict) else {**rounds[0], bar.key: own}], cost.KERNEL: rounds}
            return cost.is_good(next(iter(cost.verdicts(load, results))))

        self.assertTrue(is_good(bar.most_ratio, 1.0))
        self.assertFalse(is_good(bar.most_ratio * 1.01, 1.0))
        self.assertFalse(is_good({"failed": "it did not start"}, 1.0))
        self.assertTrue(is_good(1.0, 0.0), "the kernel used nothing")
