"""Processes, and what they have of the processors."""

import unittest
from unittest import mock

import parts
import gateways
import network


def sleeper():
    """A program whose child does the work, as that of timeout(1)."""
    process = network.Process(["timeout", "600", "sleep", "600"], False)
    assert parts.eventually(lambda: network.children(process.pid)), "no child"
    return process, network.children(process.pid)[0]


class Processes(unittest.TestCase):
    def test_precedence_is_no_setting_of_the_session(self):
        with mock.patch("builtins.open") as opened, mock.patch("os.nice") as nice:
            network.go_first()
        nice.assert_called_once_with(-15)
        opened.assert_not_called()

    def test_precedence_that_may_not_be_had_is_not_had(self):
        with mock.patch("os.nice", side_effect=PermissionError):
            network.go_first()

    def test_who_is_killed_takes_along_what_it_has_started(self):
        process, child = sleeper()
        self.addCleanup(parts.kill, child)
        process.kill()
        self.assertTrue(parts.eventually(lambda: not parts.is_alive(child)))

    def test_a_gateway_takes_its_halves_along(self):
        process, child = sleeper()
        self.addCleanup(parts.kill, child)
        gateway = gateways.Gateway(None, process, child)
        gateway.halves = [child]
        # Its first process has ended by itself.
        parts.kill(process.pid)
        process.popen.wait()
        self.assertTrue(parts.is_alive(child))
        gateway.stop()
        self.assertTrue(parts.eventually(lambda: not parts.is_alive(child)))
        # Nothing is left to end.
        gateway.stop()
