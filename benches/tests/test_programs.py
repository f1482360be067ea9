"""What the programs of the benchmarks say of answers that do not come."""

import contextlib
import json
import shutil
import socket
import struct
import subprocess
import threading
import time
import unittest
from unittest import mock

import parts
import build
import gateways
import network
import scenarios

# Of `kb` and `datagrams`, microseconds.
PING_PATIENCE_US, PROBE_PATIENCE_US, REQUEST_PATIENCE_US = 1.5e6, 1e6, 3e6


class Programs(unittest.TestCase):
    def setUp(self):
        if not shutil.which("gcc"):
            parts.skip(self, "no gcc")

    def object_of(self, *command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def beside(self, work):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.addCleanup(thread.join, 10)

    def server(self, answer):
        """A server of one connection on the loopback. Answers its port."""
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            with listener:
                answer(listener.accept()[0])

        self.beside(serve)
        return listener.getsockname()[1]

    def ping_pong(self, answer, *options):
        return self.object_of(build.kb(), "ping-pong", "--target", "127.0.0.1", "--port", self.server(answer), *options)

    def test_a_request_whose_answer_does_not_come_is_an_error(self):
        def stall(connection):
            with connection:
                for _ in range(3):
                    connection.send(connection.recv(1))
                # Until the client has given up.
                while connection.recv(1):
                    pass

        found = self.ping_pong(stall, "--seconds", 1)
        self.assertEqual((found["errors"], found["samples"]), (1, 4))
        self.assertGreaterEqual(found["max_us"], REQUEST_PATIENCE_US)

    def test_a_reset_is_an_error(self):
        def reset(connection):
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        found = self.ping_pong(reset, "--seconds", 1)
        self.assertEqual((found["errors"], found["samples"]), (1, 1))

    def test_answers_are_no_errors(self):
        def echo(connection):
            with connection:
                while data := connection.recv(1):
                    connection.send(data)

        self.assertEqual(self.ping_pong(echo, "--seconds", 0.1)["errors"], 0)

    def test_one_connection_of_many_that_waits_is_an_error(self):
        # The second connection stays in the queue of the listener.
        def echo_slowly(first):
            with first, contextlib.suppress(ConnectionError):
                while data := first.recv(1):
                    time.sleep(0.01)
                    first.send(data)

        found = self.ping_pong(echo_slowly, "--flows", 2, "--seconds", 3.2)
        self.assertEqual(found["errors"], 1)
        self.assertGreaterEqual(found["max_us"], REQUEST_PATIENCE_US)

    def test_a_ping_without_an_answer_took_longest(self):
        # Answers cease on the way.
        quiet = "ip link set lo up; (sleep 0.3; echo 1 >/proc/sys/net/ipv4/icmp_echo_ignore_all) & exec \"$0\" \"$@\""
        found = self.object_of(*parts.namespace(self), "sh", "-c", quiet, build.kb(), "icmp", "--target", "127.0.0.1", "--seconds", 1)
        self.assertTrue(0 < found["lost"] < found["sent"], found)
        for figure in ("p99_us", "max_us", "arrival_p99_us"):
            self.assertEqual(found[figure], PING_PATIENCE_US, found)
        self.assertLess(found["min_us"], PING_PATIENCE_US)

    def test_a_probe_without_an_answer_took_longest(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind(("127.0.0.1", 0))
            server.settimeout(10)

            def answer():
                for _ in range(20):
                    data, client = server.recvfrom(100)
                    server.sendto(data, client)

            self.beside(answer)
            found = self.object_of(gateways.datagrams(), "probe", "127.0.0.1", server.getsockname()[1], 0.5)
        self.assertEqual(found["sent"] - found["lost"], 20, found)
        self.assertEqual(found["p99_us"], PROBE_PATIENCE_US, found)


    def mappings(self, change):
        """Twenty sockets ask a server twice, each by a port of its own; in the second round by those that `change` makes of them. Answers
        what they say."""
        with contextlib.ExitStack() as stack:
            own = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(21)]
            for one in own:
                one.bind(("127.0.0.1", 0))
            gateway, places = own[0], {}
            gateway.settimeout(10)
            server = subprocess.Popen([gateways.datagrams(), "ports", "127.0.0.1", str(self.free_port)])
            stack.callback(server.wait)
            stack.callback(server.kill)
            time.sleep(0.25)

            def relay():
                while True:
                    data, client = gateway.recvfrom(100)
                    if data == b"end":
                        return
                    place = places.setdefault(client, len(places))
                    is_second = struct.unpack("II", data)[0] == 1
                    outside = own[1 + (change(place) if is_second else place)]
                    outside.settimeout(10)
                    outside.sendto(data, ("127.0.0.1", self.free_port))
                    gateway.sendto(outside.recv(100), client)

            thread = threading.Thread(target=relay, daemon=True)
            thread.start()
            place = gateway.getsockname()
            found = self.object_of(gateways.datagrams(), "mappings", *place, 20)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", place)
            thread.join(10)
            return found

    @property
    def free_port(self):
        """A port of the loopback that nobody has."""
        if not hasattr(self, "port"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.bind(("127.0.0.1", 0))
                self.port = one.getsockname()[1]
        return self.port

    def test_a_mapping_that_was_made_anew_is_not_kept(self):
        found = self.mappings(lambda place: place)
        self.assertEqual((found["first"], found["again"], found["kept"]), (20, 20, 20))
        # Two have changed places.
        found = self.mappings(lambda place: {3: 4, 4: 3}.get(place, place))
        self.assertEqual((found["first"], found["again"], found["kept"]), (20, 20, 18))


class Callers(unittest.TestCase):
    """What benchmarks make of the errors of `kb`."""

    class Net:
        """A network, a gateway and a tunnel whose programs all say this of errors."""

        def __init__(self, errors):
            self.report = {"errors": errors, "per_second": 1.0, "p50_us": 1.0, "p99_us": 1.0}
            self.net, self.limit_s = self, None

        def start(self, *_, limit_s=None):
            self.limit_s = limit_s
            return self

        def client(self, *_):
            return self

        def finish(self):
            return self.report

        def kill(self):
            pass

    def test_a_request_without_an_answer_fails_the_row_of_a_gateway(self):
        tools = type("Tools", (), {"seconds": 1, "kb": "kb", "datagrams": "datagrams"})
        load = parts.loads("gateway")
        for errors in (0, 1):
            net = self.Net(errors)
            if errors:
                with self.assertRaises(network.Failure):
                    load.request(net, tools)
            else:
                self.assertEqual(load.request(net, tools)["per_second"], 1.0)

    def test_mappings_have_time_for_two_hundred_lost_answers(self):
        net = self.Net(0)
        net.report = {"first": 15_000, "again": 14_800, "kept": 14_700, "seconds": 110.0}
        tools = type("Tools", (), {"datagrams": "datagrams"})
        found = parts.loads("gateway").mappings(net, tools, 15_000)
        self.assertEqual((found["first"], found["answered"], found["kept"]), (15_000, 14_800, 14_700))
        self.assertGreater(net.limit_s, 100)

    def test_the_rate_of_datagrams_is_exact_enough_for_a_ratio(self):
        load = parts.loads("gateway")
        tools = type("Tools", (), {"datagrams": "datagrams"})

        class Lossy(self.Net):
            """A gateway that loses what is above its rate, in Mbit/s."""

            def __init__(self, most):
                super().__init__(0)
                self.most = most

            def start(self, *command, limit_s=None):
                if len(command) > 6:
                    seconds, mbit, length = (float(word) for word in command[4:7])
                    sent = round(mbit * 1e6 * seconds / 8 / length)
                    received = round(sent * min(1, self.most / mbit))
                    self.report = {"sent": sent, "received": received, "seconds": seconds}
                return self

        rate = {}
        for most in (700, 710, 2100):
            with mock.patch.object(load, "serve", lambda *_: self.Net(0)):
                found = load.udp(Lossy(most), tools, False, False)
            rate[most] = found["gbps"]
            self.assertLessEqual(found["lost_percent"], 0.1)
            self.assertAlmostEqual(rate[most] * 1e3 / most, 1, delta=0.025)
        self.assertAlmostEqual(rate[2100] / rate[700], 3, delta=0.075)

    def test_a_request_without_an_answer_fails_the_row_of_a_tunnel(self):
        with mock.patch.object(build, "kb"), self.assertRaisesRegex(network.Failure, "not answered"):
            parts.loads("wireguard").beside(self.Net(1), 3)

    def test_a_ping_that_printed_nothing_has_no_figure(self):
        self.assertIsNone(scenarios.milliseconds({}, "p99_us"))
        self.assertEqual(scenarios.milliseconds({"p99_us": 250.0}, "p99_us"), 0.25)
