"""How fast a host's link is by itself: one TCP stream between the host and the operator, without SSH."""

import json
import shutil
import socket
import threading
import time

from sshlab.host import Host, LabError
from sshlab.operator_side import Operator

PORT = 5201
LIMIT_S = 600.0
PIECE_BYTES = 1 << 20
# On the host: gives so many bytes to the operator, or takes all.
_OTHER_END = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as end:
    left, data = int(sys.argv[4]), bytearray(1 << 20)
    if sys.argv[3] == "take":
        while end.recv_into(data):
            pass
    else:
        while left:
            left -= end.send(memoryview(data)[: min(left, len(data))])
"""


def has_iperf3() -> bool:
    return shutil.which("iperf3") is not None


def raw_seconds(operator: Operator, host: Host, num_bytes: int, *, is_from_host: bool) -> float:
    """Of so many bytes, by iperf3 or, where there is none, by Python. Called where the operator is."""
    if has_iperf3():
        return iperf3_seconds(operator, host, num_bytes, is_from_host=is_from_host)
    return python_seconds(host, num_bytes, is_from_host=is_from_host)


def iperf3_seconds(operator: Operator, host: Host, num_bytes: int, *, is_from_host: bool) -> float:
    """Raises LabError."""
    server = host.start(["iperf3", "-s", "-1", "-p", str(PORT)])
    words = ["iperf3", "-c", host.address, "-p", str(PORT), "-n", str(num_bytes), "-J"]
    for _ in range(100):
        done = operator.run([*words, *(["-R"] if is_from_host else [])], timeout_s=LIMIT_S)
        if done.code == 0:
            return num_bytes * 8 / float(json.loads(done.out)["end"]["sum_received"]["bits_per_second"])
        # Until it listens.
        if not host.is_alive(server):
            break
        time.sleep(0.05)
    raise LabError(f"{host.name}: iperf3 ended with {done.code}: {done.out[-500:]}")


def python_seconds(host: Host, num_bytes: int, *, is_from_host: bool) -> float:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host.address, 1))
        listener = socket.create_server((probe.getsockname()[0], 0))
    listener.settimeout(20)
    argv = ["/usr/bin/python3", "-c", _OTHER_END, *map(str, listener.getsockname())]
    argv += ["give" if is_from_host else "take", str(num_bytes)]
    other = threading.Thread(target=host.exec, args=(argv,), kwargs={"timeout_s": LIMIT_S})
    other.start()
    data = bytearray(PIECE_BYTES)
    with listener:
        end, _ = listener.accept()
    with end:
        began_s = time.perf_counter()
        if not is_from_host:
            for at in range(0, num_bytes, PIECE_BYTES):
                end.sendall(memoryview(data)[: num_bytes - at])
            end.shutdown(socket.SHUT_WR)
        # The host closes when it has given all, or had all.
        while end.recv_into(data):
            pass
        seconds = time.perf_counter() - began_s
    other.join()
    return seconds
