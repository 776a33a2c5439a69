import pytest

from dflashctl_remote.serve.listen import claim_port
from dflashctl_remote.spec.errors import BadInput


def test_port_0_is_any_free_one() -> None:
    with claim_port("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with claim_port("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(BadInput, match=rf"127\.0\.0\.1 port {port}, found the port taken") as caught:
            claim_port("127.0.0.1", port)
    assert "another port" in caught.value.hint


def test_a_port_is_free_again_once_its_server_has_closed_it() -> None:
    with claim_port("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
    claim_port("127.0.0.1", port).close()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BadInput, match=r"wanted to serve on 192\.0\.2\.1 port 0, found that this machine cannot"):
        claim_port("192.0.2.1", 0)
