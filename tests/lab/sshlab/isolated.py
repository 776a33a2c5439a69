"""A host with namespaces of its own, and all that can be done to one: links cut, disks filled, pids reused, reboots."""

import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sshlab.host import PATH, Done, Host, LabError, run, wait_until
from sshlab.processes import Process, in_namespace, namespace_of, send, start_ticks

HERE = Path(__file__).parent
UIDS = {"root": 0, "train": 1500}
CLEAN = {"PATH": PATH, "TERM": "dumb"}
START_S = 30.0
BURST_S = 0.032
"""Of a slow link: so long it makes up for a sender that was late, with what it could have carried meanwhile."""
LARGEST_PACKET_BYTES = 1 << 17


@dataclass(frozen=True)
class Wire:
    """What leads to a host. A namespace is given as a file."""

    address: str
    port: int
    device: str
    near_namespace: str
    near_device: str


class IsolatedHost(Host):
    def __init__(self, name: str, lab: Path, keeper: int, wire: Wire, public_key: str) -> None:
        self.name = name
        self.address = wire.address
        self.port = wire.port
        self.user = "root"
        self.public_key = public_key
        self.network = f"/proc/{keeper}/root{lab}/net/{name}"
        """Of its network namespace, a file that `nsenter --net` takes."""
        self._lab = lab
        self._keeper = keeper
        self._wire = wire
        self._boots = 0
        self.init = 0
        """PID 1 of the host, as this machine calls it."""
        self._init_ticks = 0

    def boot(self, *, new_boot_id: bool = True) -> None:
        self.begin_boot(new_boot_id=new_boot_id)
        self.finish_boot()

    def begin_boot(self, *, new_boot_id: bool = True) -> None:
        self._boots += 1
        argv = [
            *("nsenter", "-t", str(self._keeper), "-m", "-p", "--", "nsenter", f"--net={self._lab}/net/{self.name}"),
            *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL", "--"),
            *("/bin/sh", str(HERE / "host_init.sh"), self.name, str(self._lab), "new" if new_boot_id else "same"),
            *(sys.prefix, sys.base_prefix),
        ]
        self._log = self._lab / f"{self.name}.{self._boots}.log"
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=CLEAN, start_new_session=True
            )

    def finish_boot(self) -> None:
        """Raises LabError with what the host printed, if it is not up in time."""
        self.init, self._sleeper = read_ready(self._outer, self._log)
        self._namespace = namespace_of(self.init)
        self._init_ticks = start_ticks(self.init) or 0

    def power_off(self) -> None:
        """SIGKILL its PID 1, and with it all of the host; disks stay."""
        if self.init:
            send(self.init, self._init_ticks, signal.SIGKILL)
        self._outer.wait(timeout=START_S)
        assert self._outer.stdout is not None
        self._outer.stdout.close()

    def reboot(self, *, new_boot_id: bool = True) -> None:
        """With the same disks; /run is empty. A container that is restarted keeps its machine's boot id."""
        self.power_off()
        self.boot(new_boot_id=new_boot_id)

    @property
    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id").decode().strip()

    def home(self, user: str | None = None) -> str:
        return {"root": "/root", "train": "/home/train"}[user or self.user]

    def processes(self) -> tuple[Process, ...]:
        return in_namespace(self._namespace)

    def jobs(self) -> tuple[Process, ...]:
        processes = self.processes()
        kept = {1, self._sleeper} | {process.pid for process in self.below_sshd()}
        if self.sshd is not None:
            kept.add(self.sshd.pid)
        return tuple(process for process in processes if process.pid not in kept)

    @property
    def sshd(self) -> Process | None:
        try:
            text = Path(f"/proc/{self.init}/root/run/sshd.pid").read_text()
        except FileNotFoundError:
            return None
        process = self.process(int(text)) if text.strip() else None
        return None if process is None or process.state in "ZX" else process

    def start_sshd(self) -> None:
        """No effect if one listens."""
        if self.sshd is None:
            self.exec("rm -f /run/sshd.pid; /usr/sbin/sshd -f /etc/ssh/lab_sshd_config -E /var/log/lab-sshd.log")
            wait_until(lambda: self.sshd is not None, f"{self.name}: sshd did not start")

    def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        stdin: bytes | str = b"",
        env: dict[str, str] | None = None,
        timeout_s: float = 20.0,
        check: bool = True,
    ) -> Done:
        user = user or self.user
        inside = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        argv = [
            *("nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "-r", "-w"),
            *("-S", str(UIDS[user]), "-G", str(UIDS[user]), "--"),
            *("/bin/sh", "-c", 'cd && unset OLDPWD && exec "$@"', "sh", *inside),
        ]
        given = stdin.encode() if isinstance(stdin, str) else stdin
        variables = {**CLEAN, "HOME": self.home(user), "USER": user, "LOGNAME": user, **(env or {})}
        done = run(argv, stdin=given, env=variables, timeout_s=timeout_s)
        if check and done.code:
            raise LabError(f"{self.name}: {command!r} ended with {done.code}: {done.err.strip()}")
        return done

    @contextmanager
    def login_shell(self, shell: str, user: str | None = None) -> Iterator[None]:
        before = self.read("/etc/passwd").decode()
        lines = [line.split(":") for line in before.splitlines()]
        changed = [[*line[:6], shell] if line[0] == (user or self.user) else line for line in lines]
        self.write("/etc/passwd", "".join(":".join(line) + "\n" for line in changed))
        try:
            yield
        finally:
            self.write("/etc/passwd", before)

    @contextmanager
    def link_down(self, *, near: bool = False) -> Iterator[None]:
        """Silence: nothing comes or goes, and nobody is told. `near`: the end of whoever is next to the host."""
        network = self._wire.near_namespace if near else self.network
        device = self._wire.near_device if near else self._wire.device
        _in_network(network, "ip", "link", "set", device, "down")
        try:
            yield
        finally:
            _in_network(network, "ip", "link", "set", device, "up")

    @contextmanager
    def tcp_reset(self) -> Iterator[None]:
        """Every TCP packet to the host is answered with a reset: connections die at once, new ones are refused."""
        rule = ["INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"]
        self.exec(["iptables", "-w", "-I", *rule])
        try:
            yield
        finally:
            self.exec(["iptables", "-w", "-D", *rule])

    @contextmanager
    def small_disk(self, path: str, size: str = "1m") -> Iterator[None]:
        """An empty disk of that size (as `mount -t tmpfs -o size=` has it) at the path, open to all users."""
        self.exec(["mkdir", "-p", "--", path])
        self.exec(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "small", path])
        with self._mounted(path):
            yield

    @contextmanager
    def read_only(self, path: str) -> Iterator[None]:
        self.exec(["mount", "--bind", path, path])
        with self._mounted(path):
            self.exec(["mount", "-o", "remount,bind,ro", path])
            yield

    @contextmanager
    def hidepid(self, level: int = 2) -> Iterator[None]:
        """Users see only their own processes; root sees all."""
        self.exec(["mount", "-o", f"remount,hidepid={level}", "/proc"])
        try:
            yield
        finally:
            self.exec(["mount", "-o", "remount,hidepid=0", "/proc"])

    @contextmanager
    def without(self, *programs: str) -> Iterator[None]:
        """These names are on no PATH."""
        folders = PATH.split(":") + [
            f"{self.home(user)}/{below}" for user in UIDS for below in (".local/bin", ".cargo/bin")
        ]
        paths = [f"{folder}/{program}" for folder in folders for program in programs]
        text = 'for path; do if [ -e "$path" ]; then mv "$path" "$path.hidden" && echo "$path"; fi; done'
        hidden = self.exec(["/bin/sh", "-c", text, "sh", *paths]).out.splitlines()
        try:
            yield
        finally:
            self.exec(["/bin/sh", "-c", 'for path; do mv "$path.hidden" "$path"; done', "sh", *hidden])

    @contextmanager
    def sh_is(self, program: str) -> Iterator[None]:
        """/bin/sh is this program: /bin/dash, /bin/bash (then in POSIX mode) or busybox."""
        before = self.exec(["readlink", "/bin/sh"]).out.strip()
        self.exec(["ln", "-sfn", program, "/bin/sh"])
        try:
            yield
        finally:
            self.exec(["ln", "-sfn", before, "/bin/sh"])

    @contextmanager
    def not_reaping(self) -> Iterator[None]:
        """PID 1 does not wait for its children, as in many containers: whoever ends there stays as a zombie."""
        send(self.init, self._init_ticks, signal.SIGSTOP)
        try:
            yield
        finally:
            send(self.init, self._init_ticks, signal.SIGCONT)

    def recycle_pid(self, pid: int, argv: Sequence[str], *, user: str | None = None) -> Process:
        """Start a process whose number is that of one that is gone. Raises LabError if it can't be had."""
        words = " ".join(shlex.quote(word) for word in argv)
        uid = UIDS[user or self.user]
        start = f"setsid setpriv --reuid={uid} --regid={uid} --clear-groups"
        text = f"""
            for attempt in 1 2 3 4 5 6 7 8 9 10; do
              echo {pid - 1} >/proc/sys/kernel/ns_last_pid || exit 3
              {start} {words} </dev/null >/dev/null 2>&1 &
              [ "$!" = {pid} ] && exit 0
              kill -9 "$!"
              wait "$!"
            done
            exit 4
        """
        self.exec(text)
        wait_until(lambda: self._has_begun(pid, argv), f"{self.name}: no process {pid} {argv}")
        process = self.process(pid)
        if process is None:
            raise LabError(f"{self.name}: {argv[0]} ended at once")
        return process

    @contextmanager
    def delay(self, rtt_s: float) -> Iterator[None]:
        """Every packet between the host and who is next to it takes half of this time, each way."""
        argv = [
            *(sys.executable, str(HERE / "delay.py"), str(rtt_s / 2)),
            *(self._wire.near_namespace, self.network, self.address),
        ]
        log = self._lab / f"{self.name}.delay.log"
        with log.open("wb") as err:
            carrier = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, env=CLEAN)
        with carrier:
            read_ready(carrier, log)
            try:
                yield
            finally:
                carrier.stdin.close()
                carrier.wait(timeout=START_S)

    @contextmanager
    def rate(self, bits_per_s: float) -> Iterator[None]:
        """The wire between the host and who is next to it carries so much, each way."""
        burst_bytes = max(LARGEST_PACKET_BYTES, int(bits_per_s / 8 * BURST_S))
        shape = ["rate", f"{bits_per_s:.0f}bit", "burst", f"{burst_bytes}b", "latency", "20ms"]
        ends = ((self._wire.near_namespace, self._wire.near_device), (self.network, self._wire.device))
        with ExitStack() as stack:
            for network, device in ends:
                _in_network(network, "tc", "qdisc", "add", "dev", device, "root", "tbf", *shape)
                stack.callback(_in_network, network, "tc", "qdisc", "del", "dev", device, "root")
            yield

    @contextmanager
    def _mounted(self, path: str) -> Iterator[None]:
        try:
            yield
        finally:
            # Gone already, if the host was rebooted meanwhile.
            self.exec(["umount", "-l", path], check=False)


def read_ready(process: subprocess.Popen[bytes], log: Path) -> tuple[int, int]:
    """The numbers of a line `ready A [B]`. Raises LabError with the log, if it does not come."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    words = process.stdout.readline().split() if ready else []
    process.stdout.close()
    if not words or words[0] != b"ready":
        process.kill()
        process.wait()
        raise LabError(f"{log.name.removesuffix('.log')} did not start: {log.read_text().strip() or 'no word'}")
    numbers = [int(word) for word in words[1:]] + [0, 0]
    return numbers[0], numbers[1]


def _in_network(network: str, *argv: str) -> None:
    done = run(["nsenter", f"--net={network}", *argv], env=CLEAN, timeout_s=START_S)
    if done.code:
        raise LabError(f"{argv}: {done.err.strip()}")
