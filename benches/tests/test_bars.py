"""What counts as a missed bar."""

import contextlib
import io
import json
import unittest
from types import SimpleNamespace

import parts  # noqa: F401, before the parts themselves
import bars
import network
from bars import at_least, at_most

FORMATS = {"gbps": ("Gbit/s", ".1f"), "p99_ms": ("p99 ms", ".1f")}


def run(rows, outcomes, rounds=1):
    """Runs rows whose peers have these outcomes, one per round: figures, or None for a failure. Answers how many bars were missed,
    and what was printed."""

    def measure(row, peer, number):
        figures = outcomes[row.name, peer][number]
        if figures is None:
            raise network.Failure("it did not start")
        return figures

    def peers(row):
        return [peer for name, peer in outcomes if name == row.name]

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        results = bars.run_all([row for row in rows if peers(row)], rounds, peers, measure, io.StringIO(), FORMATS)
        return bars.judge(rows, results), printed.getvalue()


def row(name, *wanted):
    return SimpleNamespace(name=name, bars=list(wanted))


class Bars(unittest.TestCase):
    def test_a_peer_that_always_fails_misses_its_bars(self):
        rows = [row("up", at_least("gbps", 1), at_least("gbps", 2, "other"), at_most("p99_ms", 3, own="third"))]
        missed, printed = run(rows, {("up", "neap"): [None], ("up", "other"): [{"gbps": 1.0}]})
        self.assertEqual(missed, 2, printed)
        self.assertIn("not measured", printed)

    def test_one_round_without_the_figure_is_enough(self):
        rows = [row("up", at_least("gbps", 1))]
        for lacking in (None, {}, {"gbps": float("nan")}):
            missed, printed = run(rows, {("up", "neap"): [{"gbps": 5.0}, lacking, {"gbps": 5.0}]}, rounds=3)
            self.assertEqual(missed, 1, printed)
            self.assertIn("1 round without it", printed)
        self.assertEqual(run(rows, {("up", "neap"): [{"gbps": 5.0}]})[0], 0)

    def test_what_was_not_run_is_not_measured(self):
        rows = [row("up", at_least("gbps", 1), at_least("gbps", 1, "other"), at_least("gbps", 1, row="down")), row("down")]
        for outcomes in ({("up", "other"): [{"gbps": 1.0}]}, {("down", "neap"): [{"gbps": 1.0}]}):
            missed, printed = run(rows, outcomes)
            self.assertEqual((missed, printed.count("not measured")), (0, 3), printed)
        missed, printed = run(rows, {("up", "neap"): [{"gbps": 2.0}], ("up", "other"): [None]})
        self.assertEqual((missed, printed.count("not measured")), (0, 2), printed)

    def test_a_failure_in_the_row_to_compare_with_misses_the_bar(self):
        rows = [row("many", at_least("gbps", 0.9, row="one")), row("one")]
        missed, printed = run(rows, {("many", "neap"): [{"gbps": 2.0}], ("one", "neap"): [None]})
        self.assertEqual(missed, 1, printed)

    def test_the_lines_say_why_a_round_failed(self):
        lines = io.StringIO()

        def measure(*_):
            raise network.Failure("it did not start")

        with contextlib.redirect_stdout(io.StringIO()):
            bars.run_all([row("up")], 1, lambda _: ["neap"], measure, lines, FORMATS)
        self.assertEqual(json.loads(lines.getvalue())["failure"], "it did not start")
