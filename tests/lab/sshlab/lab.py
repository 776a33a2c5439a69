"""Three hosts with real sshd on this machine: jump, ct129 and kpro6.

The operator reaches jump and ct129; kpro6 only through jump; ct129 and kpro6 do not reach each other. Where namespaces
are allowed each host has its own; elsewhere it is a loopback variant: three sshd, no isolation.
"""

import ctypes
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import yaml

from dflashctl.config.hosts import HostsFile, HostSpec, RelaySection
from sshlab.host import Host, LabError, run
from sshlab.isolated import CLEAN, START_S, IsolatedHost, Wire, read_ready
from sshlab.loopback import LoopbackHost
from sshlab.operator_side import Operator

Style = Literal["alias", "explicit"]
HERE = Path(__file__).parent
PREFIX = f"dflashctl-lab-{os.getuid()}-"
NAMES = ("jump", "ct129", "kpro6")
CLONE_NEWNET = 0x40000000
SSHD_CONFIG = """\
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
MaxStartups 200
MaxSessions 200
LogLevel VERBOSE
"""


class Lab:
    """Up from `up()` to `down()`; whoever started it may be killed at any time, it then ends by itself."""

    def __init__(self, mode: Literal["namespaces", "loopback"], *, disk: str = "4g") -> None:
        self.mode = mode
        self._keeper: subprocess.Popen[bytes] | None = None
        self.hosts: dict[str, Host] = {}
        self.disk = disk
        """Size of each host's, of memory that is taken when it is written."""

    def __enter__(self) -> "Lab":
        return self.up()

    def __exit__(self, *details: object) -> None:
        self.down()

    def up(self) -> "Lab":
        """Raises LabError."""
        remove_abandoned()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Held while the lab is up: a lab whose lock is free has been abandoned.
        self._lock = os.open(self.folder / "lock.new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.folder / "lock.new").rename(self.folder / "lock")
        for name in ("op", "keys", "net", "disk"):
            (self.folder / name).mkdir(mode=0o700)
        for path in ["op/id_ed25519", *(f"keys/{name}" for name in NAMES)]:
            _make_key(self.folder / path)
        try:
            if self.mode == "namespaces":
                self._start_isolated()
            else:
                self._start_loopback()
            self.ssh_config = self.write_ssh_config(self.folder / "op")
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Leaves nothing: no process, no mount, no namespace, no file."""
        if self._keeper is not None:
            # The hosts are in its PID namespace, and end with it.
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait(timeout=START_S)
        for host in self.hosts.values():
            host.power_off()
        shutil.rmtree(self.folder)
        os.close(self._lock)
        self.hosts = {}

    @contextmanager
    def in_operator(self) -> Iterator[None]:
        """This thread, and all threads and processes that it starts, are where the operator is: in that network."""
        if self.mode == "loopback":
            yield
            return
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(self._network)
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(before)

    @property
    def identity_file(self) -> Path:
        return self.folder / "op/id_ed25519"

    def known_hosts(self) -> str:
        lines = []
        for host in self.hosts.values():
            name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
            lines.append(f"{name} {host.public_key}\n")
        return "".join(lines)

    def write_ssh_config(self, folder: Path, *, is_known: bool = True, user: str | None = None) -> Path:
        """An ssh_config with the three names, and a known_hosts beside it: all of them, or, unless `is_known`, none."""
        (folder / "known_hosts").write_text(self.known_hosts() if is_known else "")
        lines = []
        for host in self.hosts.values():
            lines += [f"Host {host.name}", f"  HostName {host.address}", f"  Port {host.port}"]
            lines += [f"  User {user or host.user}"]
            lines += ["  ProxyJump jump"] if host.name == "kpro6" else []
        lines += ["Host *", f"  IdentityFile {self.identity_file}", "  IdentitiesOnly yes"]
        lines += [f"  UserKnownHostsFile {folder / 'known_hosts'}", "  GlobalKnownHostsFile /dev/null"]
        path = folder / "ssh_config"
        path.write_text("\n".join(lines) + "\n")
        return path

    def hosts_yaml(
        self, folder: Path, *, style: Style = "alias", user: str | None = None, **changes: dict[str, object]
    ) -> Path:
        """A hosts.yaml of the three hosts: by alias in ssh_config, or with all that ssh has to know.

        Work folders are the tests' own, named as `folder`. Further fields of a host by its name: ct129={...}.
        """
        specs = {}
        for host in self.hosts.values():
            fields: dict[str, object] = {"workdir": f"~/{folder.name}"}
            if style == "explicit":
                fields |= {"address": host.address, "port": host.port, "user": user or host.user}
                fields |= {"identity_file": str(self.identity_file)}
                fields |= {"via": "jump"} if host.name == "kpro6" else {}
            else:
                fields |= {"ssh": host.name}
            specs[host.name] = HostSpec.model_validate({**fields, **changes.get(host.name, {})})
        file = HostsFile(hosts=specs, relay=RelaySection(unreachable=(("ct129", "kpro6"),)))
        path = folder / "hosts.yaml"
        path.write_text(yaml.safe_dump(file.model_dump(mode="json", exclude_unset=True), sort_keys=False))
        return path

    def operator(self, folder: Path, *, style: Style = "alias", is_known: bool = True, **changes) -> Operator:
        """The operator's machine as commands find it: a home folder, an ssh_config and a hosts.yaml in this folder."""
        (folder / "home").mkdir()
        return Operator(
            folder=folder,
            ssh_config=self.write_ssh_config(folder, is_known=is_known),
            hosts_file=self.hosts_yaml(folder, style=style, **changes),
            network=None if self.mode == "loopback" else f"/proc/{self._keeper_pid}/ns/net",
        )

    def settle(self) -> None:
        """Between tests: nothing is left running on a host but what it runs by itself."""
        for host in self.hosts.values():
            host.end_jobs()

    def _start_isolated(self) -> None:
        (self.folder / "sshd_config").write_text(
            f"{SSHD_CONFIG}Port 22\nPort 2222\nHostKey /etc/ssh/lab_host_key\nPidFile /run/sshd.pid\n"
            "Subsystem sftp internal-sftp\n"
        )
        log = self.folder / "keeper.log"
        with log.open("wb") as err:
            self._keeper = subprocess.Popen(
                [
                    *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--"),
                    *("/bin/sh", str(HERE / "keeper.sh"), str(self.folder), self.disk),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=CLEAN,
                start_new_session=True,
            )
        self._keeper_pid, _ = read_ready(self._keeper, log)
        self._network = os.open(f"/proc/{self._keeper_pid}/ns/net", os.O_RDONLY)
        op = f"/proc/{self._keeper_pid}/ns/net"
        jump = f"/proc/{self._keeper_pid}/root{self.folder}/net/jump"
        wires = {
            "jump": Wire("198.18.1.2", 22, "to-op", op, "to-jump"),
            "ct129": Wire("198.18.2.2", 2222, "to-op", op, "to-ct129"),
            "kpro6": Wire("198.18.3.2", 22, "to-jump", jump, "to-kpro6"),
        }
        hosts = []
        for name, wire in wires.items():
            key = _public_key(self.folder / "keys" / name)
            hosts.append(IsolatedHost(name, self.folder, self._keeper_pid, wire, key))
            hosts[-1].begin_boot()
            self.hosts[name] = hosts[-1]
        for host in hosts:
            host.finish_boot()

    def _start_loopback(self) -> None:
        for name in NAMES:
            host = LoopbackHost(name, self.folder, _public_key(self.folder / "keys" / name))
            self.hosts[name] = host
            host.boot(SSHD_CONFIG)


def remove_abandoned() -> None:
    """What is left of labs whose owner was killed: they ended when it did, but for their files."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except FileNotFoundError:
            # Being made, or being removed.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _make_key(path: Path) -> None:
    done = run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], env=CLEAN, timeout_s=START_S
    )
    if done.code:
        raise LabError(f"ssh-keygen: {done.err.strip()}")


def _public_key(path: Path) -> str:
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def _enter(network: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(network, CLONE_NEWNET):
        raise LabError(f"setns: {os.strerror(ctypes.get_errno())}")
