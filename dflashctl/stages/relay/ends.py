"""Hosts as ends of a relay: with the bundle in place, and a way to start an agent there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dflashctl.bundle import bundle_root
from dflashctl.defaults import LOCAL
from dflashctl.operations.bundle import ensure_bundle
from dflashctl.operations.relay.agent import End
from dflashctl.transport.bulk import ByteStream
from dflashctl.transport.shell import Script, Shell

Opener = Callable[[str, Script, str], ByteStream]


def end_of(host: str, python: str, workdir: str, shell: Shell, open_stream: Opener) -> End:
    """Raises HostUnreachable, JobFailed."""
    root = str(bundle_root()) if host == LOCAL else ensure_bundle(shell, workdir).root
    return End(host, workdir, python, root, lambda script, sentinel: open_stream(host, script, sentinel))


def both(one: Callable[[], End], other: Callable[[], End]) -> tuple[End, End]:
    """At once."""
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(one), threads.submit(other)
        return first.result(), second.result()
