"""A tunnel to a port of a host: whole, both ways, for several clients, and gone with its context."""

import http.client
import os
import socket
from contextlib import ExitStack, suppress

import pytest

from dflashctl.errors import HostUnreachable
from shells import Shells, at_once, logins
from sshlab.host import wait_until

# Answers with what it got, turned round, once whoever came has said all.
ECHO = """
import socket, threading
def serve(client):
    got = b"".join(iter(lambda: client.recv(65536), b""))
    client.sendall(got[::-1])
    client.close()
server = socket.create_server(("127.0.0.1", 0))
with open("port.new", "w") as file:
    file.write(str(server.getsockname()[1]))
import os; os.rename("port.new", "port")
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""


@pytest.fixture
def shells(operator):
    made = Shells(operator)
    yield made
    made.close()


def started(host, code: str) -> int:
    """The port that a server on the host listens on."""
    host.exec(["rm", "-f", "port"])
    host.start(["python3", "-c", f"import os; os.chdir({host.home()!r})\n{code}"])
    wait_until(lambda: host.exists(f"{host.home()}/port"), "the server did not start")
    return int(host.read(f"{host.home()}/port"))


def turned(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("name", ["ct129", "kpro6"])
def test_bytes_go_both_ways_and_each_side_may_end_first(lab, shells, name):
    content = os.urandom(2**20)
    with shells(name).tunnel(started(lab.hosts[name], ECHO)) as port:
        assert turned(port, content) == content[::-1]
        assert turned(port, b"") == b""


def test_several_clients_at_once_over_one_connection(ns_lab, ct129, shells):
    before = logins(ct129)
    contents = [os.urandom(200_000) for _ in range(12)]
    with shells("ct129").tunnel(started(ct129, ECHO)) as port:
        found = at_once(len(contents), lambda number: turned(port, contents[number]))
    assert found == [content[::-1] for content in contents]
    assert logins(ct129) == before + 1


def test_a_web_server_of_the_host_is_reached(ct129, shells):
    code = (
        "from http.server import *\nserver = ThreadingHTTPServer(('127.0.0.1', 0), SimpleHTTPRequestHandler)\n"
        "open('hello.txt', 'w').write('hello')\nopen('port.new', 'w').write(str(server.server_port))\n"
        "os.rename('port.new', 'port')\nserver.serve_forever()\n"
    )
    with shells("ct129").tunnel(started(ct129, code)) as port:
        for _ in range(3):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            client.request("GET", "/hello.txt")
            assert client.getresponse().read() == b"hello"
            client.close()


def test_a_tunnel_ends_with_its_context(ct129, shells):
    with ExitStack() as stack:
        with shells("ct129").tunnel(started(ct129, ECHO)) as port:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            client.sendall(b"hello")
        with suppress(ConnectionResetError):
            assert client.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=20)


def test_a_port_where_nothing_listens_is_closed_to_the_client(shells):
    with shells("ct129").tunnel(1) as port:
        assert turned_or_reset(port) == b""


def turned_or_reset(port: int) -> bytes:
    try:
        return turned(port, b"")
    except (ConnectionResetError, BrokenPipeError):
        return b""


def test_a_tunnel_outlives_its_connection(ct129, shells):
    with shells("ct129").tunnel(started(ct129, ECHO)) as port:
        assert turned(port, b"abc") == b"cba"
        ct129.kill_sessions()
        wait_until(lambda: turned_or_reset(port) == b"" and turned(port, b"abc") == b"cba", "it did not come back")


def test_a_tunnel_to_a_host_that_is_not_there_does_not_open(ct129, shells):
    with (
        ct129.sshd_down(),
        pytest.raises(HostUnreachable, match="refuses connections"),
        shells("ct129").tunnel(1),
    ):
        pass
