#!/usr/bin/env python3
"""Bursts of one TCP sender as an interface carries them.

    wire.py INTERFACE PORT BITS SECONDS

Watches the data to PORT for SECONDS, by the kernel's time stamps, and prints one JSON object. `burst_ms` is the most that
a bucket held which runs out at 4/3 of BITS per second, in milliseconds of BITS. The first second is slow start.
"""

import json
import socket
import struct
import sys
import time

# Of asm-generic/socket.h, linux/if_ether.h and linux/if_packet.h.
SO_TIMESTAMPNS, ETH_P_IP, PACKET_OUTGOING = 35, 0x0800, 4
# Bytes of a packet that are read: IP and TCP headers.
HEADERS = 128
# A socket buffer that holds what comes while a busy machine keeps this program from running.
BUFFER = 8 << 20


def payload(packet, port):
    """Payload bytes of a TCP segment to the port, or 0."""
    if len(packet) < 40 or packet[9] != socket.IPPROTO_TCP:
        return 0
    header = (packet[0] & 15) * 4
    if struct.unpack_from("!H", packet, header + 2)[0] != port:
        return 0
    return struct.unpack_from("!H", packet, 2)[0] - header - (packet[header + 12] >> 4) * 4


def main():
    interface, port, bits, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
    watch.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    watch.setsockopt(socket.SOL_SOCKET, 33, BUFFER)  # SO_RCVBUFFORCE
    watch.bind((interface, ETH_P_IP))
    watch.settimeout(0.2)
    first, last, level, most, total, end = None, 0, 0.0, 0.0, 0, time.monotonic() + seconds + 20
    while time.monotonic() < end:
        try:
            packet, control, _, _ = watch.recvmsg(HEADERS, 64)
        except TimeoutError:
            continue
        size = payload(packet, port)
        if size <= 0:
            continue
        whole, part = struct.unpack("@ll", control[0][2])
        at = whole + part / 1e9
        if first is None:
            first, end = at, time.monotonic() + seconds
        if at - first < 1:
            continue
        level = max(level - bits / 8 * 4 / 3 * (at - last), 0.0) + size if last else size
        most, last, total = max(most, level), at, total + size
    print(json.dumps({"burst_ms": most * 8000 / bits, "watched_bytes": total}))


if __name__ == "__main__":
    main()
