"""Shells of the lab's hosts, made as commands make them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import yaml

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import ssh_settings
from dflashctl.transport.pool import Pool
from dflashctl.transport.shell import Script, Shell
from dflashctl.transport.ssh_shell import open_shell
from sshlab import Host, Operator

T = TypeVar("T")


class Shells:
    """All of them share connections, which end with `close`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.pool = Pool()
        self._hosts = HostsFile.model_validate(yaml.safe_load(operator.hosts_file.read_text()))

    def __call__(self, name: str, **fields: object) -> Shell:
        """`fields`: other than in hosts.yaml, or those of a host that is not there."""
        before = self._hosts.hosts[name].model_dump(exclude_unset=True) if name in self._hosts.hosts else {}
        hosts = {**self._hosts.hosts, name: HostSpec.model_validate({**before, **fields})}
        return open_shell(name, HostsFile(hosts=hosts), ssh_settings(self._operator.env), self.pool)

    def close(self) -> None:
        self.pool.close()


def told(shell: Shell, text: str, timeout_s: float = 30.0, **values: str) -> str:
    """What a script prints that ends well."""
    answer = shell.run(Script("told", text, tuple(values.items())), timeout_s=timeout_s)
    assert answer.code == 0, answer
    return answer.out.decode()


def logins(host: Host) -> int:
    """So often somebody was let in: one for each connection."""
    return host.read("/var/log/lab-sshd.log").count(b"Accepted publickey")


def with_options(operator: Operator, *options: str) -> None:
    """Options of ssh_config that go before all others."""
    path: Path = operator.ssh_config
    path.write_text("\n".join(options) + "\n" + path.read_text())


def at_once(number: int, function: Callable[[int], T]) -> list[T]:
    """Calls a function with 0, 1, 2, ... in so many threads; gives what it returned, in that order."""
    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(function, range(number)))
