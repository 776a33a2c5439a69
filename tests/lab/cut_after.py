"""A way to a host that carries so many bytes there, and then is silent or breaks: for ProxyCommand.

Arguments: address, port, number of bytes, `silence` or `break`, a file that says how many were carried there.
"""

import os
import selectors
import socket
import sys
from pathlib import Path


def main() -> None:
    address, port, limit, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    left = limit
    with socket.create_connection((address, port)) as host, selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(host, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 65536)
                if not data:
                    return
                if key.fd == 0:
                    host.sendall(data[:left])
                    left -= len(data[:left])
                    count = Path(sys.argv[5])
                    count.with_suffix(".new").write_text(str(limit - left))
                    count.with_suffix(".new").replace(count)
                    if not left and end == "break":
                        return
                elif left:
                    os.write(1, data)


main()
