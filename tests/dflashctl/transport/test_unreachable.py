import errno
import os
import socket

import pytest

from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.unreachable import (
    place,
    unreachable,
    why_not_connected,
    why_not_forwarded,
    why_not_greeted,
)


def hop(alias: str, address: str, port: int) -> Hop:
    return Hop(alias=alias, by_hand=alias, address=address, port=port, user="bob", host_key_name=address)


BOX, GATE = hop("box", "10.0.0.9", 2222), hop("gate", "10.0.0.1", 22)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(-2, "Name or service not known"), "its address 10.0.0.9 is not known (Name or service"),
        (os_error(errno.ECONNREFUSED), "box (10.0.0.9:2222) refuses connections"),
        (TimeoutError("timed out"), "box (10.0.0.9:2222) did not answer within 7 s"),
        (os_error(errno.ETIMEDOUT), "box (10.0.0.9:2222) did not answer within 7 s"),
        (os_error(errno.EHOSTUNREACH), "there is no route to box (10.0.0.9:2222)"),
        (os_error(errno.ENETUNREACH), "there is no route to box (10.0.0.9:2222)"),
        (os_error(errno.EADDRNOTAVAIL), "box (10.0.0.9:2222): Cannot assign requested address"),
    ],
)
def test_a_connection_that_was_not_made_is_explained(error, reason):
    found, hint = why_not_connected(BOX, error, 7)
    assert found.startswith(reason) and hint


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        (1, "Administratively prohibited", "its jump host gate does not allow forwarding"),
        (2, "Connect failed", "its jump host gate gets no connection to 10.0.0.9:2222 (Connect failed)"),
        (None, "Timeout opening channel.", "its jump host gate did not open the way to 10.0.0.9:2222 (Timeout"),
    ],
)
def test_a_jump_host_that_did_not_open_the_way_is_named(code, words, reason):
    found, hint = why_not_forwarded(GATE, BOX, code, words)
    assert found.startswith(reason) and "gate" in hint


def test_a_server_that_is_none_is_told_from_one_that_hangs_up():
    silent = EOFError()
    silent.__context__ = TimeoutError()
    assert "said nothing within 15 s" in why_not_greeted(BOX, silent, 15, has_greeted=False)[0]
    assert "hung up, where an SSH server greets" in why_not_greeted(BOX, EOFError(), 15, has_greeted=False)[0]
    assert "hung up during the greeting (EOFError)" in why_not_greeted(BOX, EOFError(), 15, has_greeted=True)[0]


def test_what_is_said_is_one_sentence_with_the_host_in_it():
    error = unreachable("kpro6", *why_not_connected(BOX, os_error(errno.ECONNREFUSED), 7))
    assert error.message == "kpro6 cannot be reached: box (10.0.0.9:2222) refuses connections"
    assert (error.host, error.exit_code) == ("kpro6", 3)


def test_a_place_that_is_its_own_name_is_said_once():
    assert place(hop("10.0.0.9", "10.0.0.9", 22)) == "10.0.0.9:22"
