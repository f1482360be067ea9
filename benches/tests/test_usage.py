"""What counts as used by others."""

import unittest
from pathlib import Path
from unittest import mock

import parts  # noqa: F401, before the parts themselves
import usage


class Load:
    """A process of a load that used 3 s between two looks."""

    pid = 10

    def __init__(self):
        self.used = iter((1.0, 4.0))

    def pids(self):
        return [10, 11]

    def used_cpu_s(self):
        return next(self.used)


def measured(looks, load, machine, started=()):
    """What a meter finds without the controller cpuacct, from what each process had used at the two looks."""
    with mock.patch.object(usage, "ALL_TASKS", Path("/nowhere")), \
            mock.patch.object(usage, "cpu_by_pid", side_effect=[(users, {2: 5.0}) for users in looks]), \
            mock.patch.object(usage, "machine_cpu_s", side_effect=[0.0, machine]):
        meter = usage.Meter(load)
        meter.add(*started)
        return meter.stop()


class Foreign(unittest.TestCase):
    def test_what_of_the_load_has_ended_hides_no_process_of_others(self):
        ended = mock.Mock(used_cpu_s=lambda: 8.0, pids=lambda: [12])
        # The load's second process ended, and one that started later too.
        found = measured(({1: 0.5, 10: 1.0, 11: 7.0, 20: 2.0}, {1: 0.5, 10: 4.0, 20: 4.5}), [Load()], 14.0, [ended])
        self.assertEqual((found.foreign_s, found.load_s), (2.5, 11.5))

    def test_processes_of_the_load_are_none_of_others(self):
        found = measured(({10: 1.0, 11: 7.0, 20: 2.0}, {10: 4.0, 11: 9.0, 20: 2.25}), [Load()], 6.0)
        self.assertEqual((found.foreign_s, found.load_s), (0.25, 5.75))

    def test_who_came_or_went_between_the_looks_does_not_count(self):
        found = measured(({10: 1.0, 20: 2.0}, {10: 4.0, 30: 9.0}), [Load()], 4.0)
        self.assertEqual((found.foreign_s, found.load_s), (0.0, 4.0))
