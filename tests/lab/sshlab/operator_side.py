"""The operator's machine as the command finds it: who calls dflashctl and ssh, from where, and with what."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sshlab.host import Done, run

ROOT = Path(__file__).resolve().parents[3]
NOT_INHERITED = ("DFLASHCTL_", "SSH_", "XDG_")


@dataclass(frozen=True)
class Operator:
    folder: Path
    ssh_config: Path
    """Its known_hosts lies beside it."""
    hosts_file: Path
    network: str | None
    """File of the network namespace; None: this process's own."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def known_hosts(self) -> Path:
        return self.ssh_config.with_name("known_hosts")

    @property
    def env(self) -> dict[str, str]:
        """Of commands: what DFLASHCTL_* and the tests' own agent would change is not there."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        return {
            **kept,
            "HOME": str(self.home),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'remote'}",
            "DFLASHCTL_SSH_CONFIG": str(self.ssh_config),
            "DFLASHCTL_HOSTS": str(self.hosts_file),
        }

    def cli(
        self, *args: str, stdin: bytes | str = b"", env: dict[str, str] | None = None, timeout_s: float = 60.0
    ) -> Done:
        """`dflashctl ARGS`, run to its end in the operator's home folder."""
        return self.run([sys.executable, "-m", "dflashctl", *args], stdin=stdin, env=env, timeout_s=timeout_s)

    def start_cli(self, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The same, running on: its pid is the command's own, output in pipes. The fixture ends what is left."""
        return self.start([sys.executable, "-m", "dflashctl", *args], env=env)

    def ssh(
        self,
        host: str,
        *command: str,
        options: Sequence[str] = (),
        stdin: bytes | str = b"",
        timeout_s: float = 30.0,
    ) -> Done:
        """The system's ssh client."""
        argv = [*self.ssh_argv(host, options), *command]
        return self.run(argv, stdin=stdin, timeout_s=timeout_s)

    def ssh_argv(self, host: str, options: Sequence[str] = ()) -> list[str]:
        """A command for the host may follow. It asks nobody, and gives up after 5 s."""
        usual = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        return ["ssh", "-F", str(self.ssh_config), *options, *usual, host]

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        env: dict[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Done:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        argv, variables = self._inside(argv), {**self.env, **(env or {})}
        return run(argv, stdin=given, env=variables, cwd=str(self.home), timeout_s=timeout_s)

    def start(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        self.started.append(
            subprocess.Popen(
                self._inside(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.env, **(env or {})},
                cwd=self.home,
            )
        )
        return self.started[-1]

    def end_started(self) -> None:
        """SIGKILL what `start` and `start_cli` began, and close its pipes."""
        for process in self.started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    # What was written to one that had ended is lost.
                    with suppress(BrokenPipeError):
                        pipe.close()
        self.started.clear()

    def _inside(self, argv: Sequence[str]) -> list[str]:
        # Without -p and --fork nsenter becomes the command: its pid is the command's.
        return list(argv) if self.network is None else ["nsenter", f"--net={self.network}", "--", *argv]
