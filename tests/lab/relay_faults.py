"""Faults for a relay at random moments, and what each of them excuses: exit codes, and bytes that are sent again."""

import random
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from relay_site import CHUNK_BYTES, MIB, RelaySite, outside, wire_bytes
from sshlab.host import Host, LabError, wait_until

AHEAD = 3
NUM_LANES = 2
IN_FLIGHT_BYTES = NUM_LANES * (AHEAD + 1) * CHUNK_BYTES
HANDSHAKES_BYTES = 2 * MIB
"""Of a fault, and of a command: keys, the bundle, questions and answers."""


class Meter:
    """Bytes that have come to the target, though devices come and go."""

    def __init__(self, site: RelaySite) -> None:
        self._host = site.target
        self._before = 0
        self._base = wire_bytes(self._host, "in")

    @property
    def num_bytes(self) -> int:
        return self._before + wire_bytes(self._host, "in") - self._base

    def hold(self) -> None:
        """A device is about to go; `go_on` once it has."""
        self._before = self.num_bytes

    def go_on(self) -> None:
        self._base = wire_bytes(self._host, "in")


@dataclass
class Excuses:
    """Of one command: how it may end, and how much may have been sent for nothing."""

    codes: set[int]
    num_bytes: int = 0


class Faults:
    def __init__(self, site: RelaySite, dest: str, random_: random.Random, longest_s: float) -> None:
        self._site, self._dest, self._random, self._longest_s = site, dest, random_, longest_s
        self.meter = Meter(site)
        self.excuses = Excuses({0})
        self.kinds: dict[str, Callable[[], str]] = {
            "silence": self.silence,
            "no sshd": self.no_sshd,
            "sessions": self.sessions,
            "reset": self.reset,
            "full": self.full,
            "reboot of the target": self.reboot_target,
            "reboot of the source": self.reboot_source,
            "agents": self.agents,
            "operator": self.operator,
            "slow leg": self.slow_leg,
            "touched": self.touched,
        }

    def do(self, kind: str, process) -> str:
        """Gives a line about what was done."""
        self.process = process
        self.excuses.num_bytes += IN_FLIGHT_BYTES + HANDSHAKES_BYTES
        return f"{kind}: {self.kinds[kind]()}"

    def begin(self) -> None:
        """A new command."""
        self.excuses.codes = {0}
        self.excuses.num_bytes += HANDSHAKES_BYTES

    def silence(self) -> str:
        host, duration_s = self._host("kpro6", "ct129", "jump"), self._duration()
        self.excuses.codes |= {3}
        with host.link_down():
            time.sleep(duration_s)
        return f"{host.name}, {duration_s:.1f} s"

    def no_sshd(self) -> str:
        host, duration_s = self._host("kpro6", "ct129"), min(5.0, self._duration())
        self.excuses.codes |= {3}
        sessions = host.below_sshd()
        with host.sshd_down():
            _kill(host, sessions)
            time.sleep(duration_s)
        return f"{host.name}, {duration_s:.1f} s"

    def sessions(self) -> str:
        host = self._host("kpro6", "ct129", "jump")
        self.excuses.codes |= {3}
        return f"{host.name}, {host.kill_sessions()} of them"

    def reset(self) -> str:
        host, duration_s = self._host("kpro6", "ct129"), min(3.0, self._duration())
        self.excuses.codes |= {3}
        with host.tcp_reset():
            time.sleep(duration_s)
        return f"{host.name}, {duration_s:.1f} s"

    def full(self) -> str:
        host = self._site.target
        filler = shlex.quote(f"{self._site.workdir(host)}/filler")
        self.excuses.codes |= {4}
        host.exec(f"head -c 5G /dev/zero >{filler}", check=False, timeout_s=60.0)
        try:
            wait_until(lambda: self.process.poll() is not None, "it goes on without room", 120.0)
        finally:
            host.exec(f"rm -f {filler}")
        return f"ended with {self.process.poll()}"

    def reboot_target(self) -> str:
        host = self._site.target
        self.excuses.codes |= {3}
        # What the journal has, and did not call synced, may be gone after a fall of the machine.
        lost = self._num_unsynced()
        host.reboot()
        self.excuses.num_bytes += lost * CHUNK_BYTES
        return f"{lost} chunks not synced"

    def reboot_source(self) -> str:
        self.excuses.codes |= {3}
        self._site.source.reboot()
        return "up again"

    def agents(self) -> str:
        host = self._host("kpro6", "ct129")
        agents = self._site.agents(host)
        some = self._random.sample(agents, self._random.randint(min(1, len(agents)), len(agents)))
        _kill(host, some)
        self.excuses.codes |= {3}
        return f"{host.name}, {len(some)} of {len(agents)}"

    def operator(self) -> str:
        number = self._random.choice([signal.SIGKILL, signal.SIGINT])
        self.process.send_signal(number)
        self.excuses.codes |= {-9, 130}
        self.process.wait(timeout=90)
        return f"{number.name}: {self.process.returncode}"

    def slow_leg(self) -> str:
        host, rtt_s, duration_s = self._host("kpro6", "ct129"), self._random.uniform(0.02, 0.3), self._duration()
        self.excuses.codes |= {3}
        with host.delay(rtt_s):
            time.sleep(min(5.0, duration_s))
            self.meter.hold()
        self.meter.go_on()
        return f"{host.name}, {rtt_s * 1000:.0f} ms"

    def touched(self) -> str:
        """The source's file is another one now, of the same content: all of it is read and sent again."""
        host = self._site.source
        path = f"{self._site.place(host)}/model.safetensors"
        host.exec(["touch", path])
        self.excuses.codes |= {5}
        self.excuses.num_bytes += int(host.exec(["stat", "-c", "%s", path]).out)
        return "model.safetensors"

    def _host(self, *names: str):
        return self._site.lab.hosts[self._random.choice(names)]

    def _duration(self) -> float:
        return self._random.uniform(1.0, self._longest_s)

    def _num_unsynced(self) -> int:
        try:
            text = outside(self._site.target, f"{self._site.part(self._site.target, self._dest)}/journal").read_text()
        except FileNotFoundError:
            return 0
        marks = [int(line.split()[1]) for line in text.splitlines() if line.startswith("synced ")]
        return sum(" " not in line for line in text[marks[-1] if marks else 0 :].splitlines())


def _kill(host: Host, processes) -> None:
    for process in processes:
        # It may end by itself before it is its turn.
        with suppress(LabError):
            host.signal(process, signal.SIGKILL)
