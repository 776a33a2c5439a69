"""Taking the port, before anything slow: a port that is taken is a sentence at once, and nobody else gets it later."""

import errno
import socket

from dflashctl_remote.spec.errors import BadInput


def claim_port(address: str, port: int) -> socket.socket:
    """A listening socket; port 0: any free one. Connections wait in it until somebody accepts them. Raises BadInput."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Without it a port is not free for a minute after its last server ended.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        # Two may bind, and one only may listen.
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _refusal(address, port, error) from error
    return listener


def _refusal(address: str, port: int, error: OSError) -> BadInput:
    wanted = f"wanted to serve on {address} port {port}"
    if error.errno == errno.EADDRINUSE:
        return BadInput(f"{wanted}, found the port taken", hint="stop what listens there, or set another port")
    if error.errno == errno.EACCES:
        return BadInput(f"{wanted}, which only root may use", hint="set a port of 1024 or above")
    return BadInput(f"{wanted}, found that this machine cannot: {error.strerror or error}", hint="set another address")
