"""Loading paramiko, when a connection is first opened: a tenth of a second, half of it for nothing."""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflashctl.transport.ssh_config import Hop
    from dflashctl.transport.ssh_connection import Connection


def load_connection() -> "Callable[[Hop, Connection | None, str], Connection]":
    """`ssh_connection.connect`."""
    _load_paramiko()
    from dflashctl.transport.ssh_connection import connect

    return connect


def _load_paramiko() -> None:
    """Without `invoke`, a task runner that takes as long to load as paramiko itself.

    paramiko wants it for `Match exec` in ssh_config alone, does without where it is missing, and never reads an
    ssh_config with Match here: ssh does. Where paramiko is loaded already it is too late, and no matter.
    """
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("paramiko")
    finally:
        del sys.modules["invoke"]
