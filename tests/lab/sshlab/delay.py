"""Carries packets between two network namespaces, slowly: for kernels without netem. Ends with its standard input.

Arguments: seconds one way, file of the near namespace, file of the host's, address of the host.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import struct
import subprocess
import sys
import time
from collections import deque

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
DEVICE = "slow"


def main() -> None:
    delay_s, (near, far), address = float(sys.argv[1]), sys.argv[2:4], sys.argv[4]
    # The near end of the wire, whose address packets to the host come from.
    route = json.loads(_ip(near, "-j", "route", "get", address))[0]
    ends = [_tun(near), _tun(far)]
    # More specific than the wire's own route; the addresses stay, and so connections live on.
    for network, other in ((near, address), (far, route["prefsrc"])):
        _ip(network, "link", "set", DEVICE, "mtu", "9000", "txqueuelen", "20000", "up")
        _ip(
            network,
            "route",
            "add",
            f"{other}/32",
            "dev",
            DEVICE,
            "src",
            route["prefsrc"] if network == near else address,
        )
    print("ready 0", flush=True)
    _carry(ends, delay_s)


def _carry(ends: list[int], delay_s: float) -> None:
    waiting: list[deque[tuple[float, bytes]]] = [deque(), deque()]
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    for number, end in enumerate(ends):
        selector.register(end, selectors.EVENT_READ, number)
    while True:
        due = [packets[0][0] for packets in waiting if packets]
        ready = selector.select(max(0.0, min(due) - time.monotonic()) if due else None)
        for key, _ in ready:
            if key.data is None:
                return
            try:
                for _ in range(64):
                    waiting[key.data].append((time.monotonic() + delay_s, os.read(ends[key.data], 65536)))
            except BlockingIOError:
                pass
        for number, packets in enumerate(waiting):
            while packets and packets[0][0] <= time.monotonic():
                # A full queue drops the packet, as a wire does.
                with contextlib.suppress(BlockingIOError):
                    os.write(ends[1 - number], packets.popleft()[1])


def _tun(network: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    inside = os.open(network, os.O_RDONLY)
    if libc.setns(inside, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns {network}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN_NO_PI))
    libc.setns(before, CLONE_NEWNET)
    os.close(before)
    os.close(inside)
    return end


def _ip(network: str, *args: str) -> str:
    argv = ["nsenter", f"--net={network}", "ip", *args]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


main()
