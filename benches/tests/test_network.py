"""What processes have of the processors."""

import unittest
from unittest import mock

import parts  # noqa: F401, before the parts themselves
import network


class Processes(unittest.TestCase):
    def test_precedence_is_no_setting_of_the_session(self):
        with mock.patch("builtins.open") as opened, mock.patch("os.nice") as nice:
            network.go_first()
        nice.assert_called_once_with(-15)
        opened.assert_not_called()

    def test_precedence_that_may_not_be_had_is_not_had(self):
        with mock.patch("os.nice", side_effect=PermissionError):
            network.go_first()
