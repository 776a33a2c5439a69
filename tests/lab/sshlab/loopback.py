"""A host without isolation: an sshd on a loopback port, a home folder of its own, and this machine for the rest."""

import getpass
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sshlab.host import PATH, Done, Host, LabError, wait_until
from sshlab.processes import Process, descendants

HERE = Path(__file__).parent
ATTEMPTS = 5
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
# What sshd runs for every login: a shell in a home folder of its own, whatever was asked for.
LOGIN = """\
#!/bin/sh
export HOME='{home}' SHELL="$(cat '{folder}/shell')"
# As it would be without this script: bash reads .bashrc if no shell is above it.
unset SHLVL
cd
case "${{SSH_ORIGINAL_COMMAND-}}" in
  '') exec "$SHELL" ;;
  internal-sftp) exec {sftp} -d "$HOME" ;;
  *) exec "$SHELL" -c "$SSH_ORIGINAL_COMMAND" ;;
esac
"""


class LoopbackHost(Host):
    def __init__(self, name: str, lab: Path, public_key: str) -> None:
        self.name = name
        self.address = "127.0.0.1"
        self.user = getpass.getuser()
        self.public_key = public_key
        self._folder = lab / "loopback" / name
        self._home = self._folder / "home"
        self._home.mkdir(parents=True)
        (self._folder / "orders").mkdir()
        self._lab = lab
        self._write_login(lab)
        # Its errors are the test's: they are shown as they come.
        self._keeper = subprocess.Popen(
            [sys.executable, str(HERE / "loopback_keeper.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def boot(self, sshd_config: str) -> None:
        if os.getuid() == 0:
            # Where sshd drops its rights; made by the service where there is one.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._find_port(sshd_config)

    def power_off(self) -> None:
        """End all that runs there."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(timeout=20)

    def home(self, user: str | None = None) -> str:
        return str(self._home)

    def processes(self) -> tuple[Process, ...]:
        return descendants(self._keeper.pid)

    def jobs(self) -> tuple[Process, ...]:
        kept = {process.pid for process in self.below_sshd()}
        if self.sshd is not None:
            kept.add(self.sshd.pid)
        return tuple(process for process in self.processes() if process.pid not in kept)

    @property
    def sshd(self) -> Process | None:
        try:
            pid = int((self._folder / "sshd.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        process = self.process(pid)
        return None if process is None or process.state in "ZX" else process

    def start_sshd(self) -> None:
        """No effect if one listens."""
        if self.sshd is not None:
            return
        (self._folder / "sshd.pid").unlink(missing_ok=True)
        log = self._folder / "sshd.log"
        argv = ["/usr/sbin/sshd", "-D", "-f", str(self._folder / "sshd_config"), "-E", str(log)]
        # A folder of its own: the one before may be waited for only now.
        code = self._order(argv, Path(tempfile.mkdtemp(dir=self._folder / "orders")), {"PATH": PATH})
        wait_until(lambda: self.sshd is not None or code.exists(), f"{self.name}: sshd did not start")
        if self.sshd is None:
            raise LabError(f"{self.name}: sshd did not start: {log.read_text().strip()}")

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
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        variables = {"PATH": PATH, "HOME": self.home(), "USER": self.user, "LOGNAME": self.user, **(env or {})}
        with tempfile.TemporaryDirectory(dir=self._folder / "orders") as name:
            folder = Path(name)
            (folder / "stdin").write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
            code = self._order(argv, folder, variables)
            wait_until(code.exists, f"{self.name}: {command!r}", timeout_s)
            out, err = ((folder / part).read_bytes() for part in ("out", "err"))
            done = Done(int(code.read_text()), os.fsdecode(out), os.fsdecode(err))
        if check and done.code:
            raise LabError(f"{self.name}: {command!r} ended with {done.code}: {done.err.strip()}")
        return done

    @contextmanager
    def login_shell(self, shell: str, user: str | None = None) -> Iterator[None]:
        before = (self._folder / "shell").read_text()
        (self._folder / "shell").write_text(shell)
        try:
            yield
        finally:
            (self._folder / "shell").write_text(before)

    def _order(self, argv: list[str], folder: Path, env: dict[str, str]) -> Path:
        """Have a command run below the keeper. Returns the file that its exit code will be in."""
        (folder / "stdin").touch()
        code = folder / "code"
        files = {part: str(folder / part) for part in ("stdin", "out", "err", "code")}
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps({"argv": argv, "env": env, "cwd": self.home(), **files}).encode() + b"\n")
        self._keeper.stdin.flush()
        return code

    def _write_login(self, lab: Path) -> None:
        (self._folder / "authorized_keys").write_text((lab / "op/id_ed25519.pub").read_text())
        (self._folder / "shell").write_text("/bin/bash")
        sftp = next((path for path in SFTP_SERVERS if Path(path).exists()), "false")
        login = self._folder / "login"
        login.write_text(LOGIN.format(home=self._home, folder=self._folder, sftp=sftp))
        login.chmod(0o755)

    def _find_port(self, sshd_config: str) -> None:
        """A port that was free may be another's by the time that sshd wants it."""
        for attempt in range(ATTEMPTS):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            (self._folder / "sshd_config").write_text(
                f"{sshd_config}Port {self.port}\nListenAddress 127.0.0.1\nStrictModes no\n"
                f"HostKey {self._lab / 'keys' / self.name}\nPidFile {self._folder / 'sshd.pid'}\n"
                f"AuthorizedKeysFile {self._folder / 'authorized_keys'}\nForceCommand {self._folder / 'login'}\n"
                "Subsystem sftp internal-sftp\n"
            )
            try:
                self.start_sshd()
                return
            except LabError:
                if attempt == ATTEMPTS - 1:
                    raise
