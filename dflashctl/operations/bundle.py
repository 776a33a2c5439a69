"""The bundle on a host: there by its content's name, or sent once, whole or not at all. What runs from it is not here.

`QUESTION` and `question_values` are for scripts of others that ask more than this at once; `read_bundle` reads
their answer.
"""

import base64
import gzip
import hashlib
import io
import secrets
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from dflashctl.bundle import bundle_root
from dflashctl.errors import ArtifactError, JobFailed, LinkLost
from dflashctl.transport.files import read_script, reason
from dflashctl.transport.shell import Answer, Script, Shell
from dflashctl_remote.spec.bundle import bundle_files, sha_of_files

SEND_S = 120.0
"""A quarter of a megabyte, over a slow link."""
NUM_TRIES = 3
SUPERVISOR = bundle_root() / "dflashctl_remote/supervisor"
_HERE = Path(__file__).parent
QUESTION = read_script(_HERE, "bundle_question.sh")
"""Functions of sh; `bundle_question` prints bundle=... and bundle_root=..."""


@dataclass(frozen=True)
class BundleState:
    """A host's answer."""

    presence: Literal["there", "absent", "damaged"]
    root: str


@dataclass(frozen=True)
class BundleOnHost:
    root: str
    """Absolute, on the host; goes on PYTHONPATH."""
    sha: str
    was_there: bool
    sent_bytes: int

    @property
    def supervisor(self) -> str:
        """Folder of the supervisor's scripts."""
        return f"{self.root}/dflashctl_remote/supervisor"


@dataclass(frozen=True)
class Bundle:
    """As it is here, read once."""

    files: tuple[tuple[str, bytes], ...]

    @classmethod
    def read(cls, root: Path | None = None) -> "Bundle":
        """That of this installation, or one that lies elsewhere."""
        return cls(tuple(bundle_files(root or bundle_root())))

    @cached_property
    def sha(self) -> str:
        return sha_of_files(self.files)

    @property
    def num_bytes(self) -> int:
        return sum(len(content) for _, content in self.files)

    def archive(self) -> bytes:
        """A tar.gz: the same bytes wherever and whenever it is made of the same files."""
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as squeezed,
            tarfile.open(fileobj=squeezed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for name, content in self.files:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode, entry.mtime = len(content), 0o444, 1
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()


def question_values(workdir: str, bundle: Bundle | None = None) -> tuple[tuple[str, str], ...]:
    """Values of the variables that `bundle_question` reads; `workdir` as in hosts.yaml."""
    bundle = bundle or Bundle.read()
    # What a host can compute by tools that it has: sha256 of the sorted output of sha256sum.
    lines = sorted(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in bundle.files)
    return (
        ("workdir", workdir),
        ("bundle_sha12", bundle.sha[:12]),
        ("bundle_digest", hashlib.sha256("".join(lines).encode()).hexdigest()),
        ("bundle_num_files", str(len(bundle.files))),
        ("bundle_num_bytes", str(bundle.num_bytes)),
    )


def read_bundle(answer: Answer) -> BundleState | None:
    """What `bundle_question` said, out of an answer that may say more; None if it said nothing."""
    told = _told(answer)
    presence, root = told.get("bundle"), told.get("bundle_root")
    if root is None or presence not in ("there", "absent", "damaged"):
        return None
    return BundleState(presence, root)  # type: ignore[arg-type]  # narrowed by the line above


def ensure_bundle(
    shell: Shell, workdir: str, *, bundle: Bundle | None = None, known: BundleState | None = None
) -> BundleOnHost:
    """See that the host has the bundle, by one question and, if it has not, one sending.

    `known`: its answer if it was asked already. Raises JobFailed if it cannot be put there, ArtifactError if it is
    damaged and a living run uses it, LinkLost if the link breaks again and again, HostUnreachable.
    """
    bundle = bundle or Bundle.read()
    for num_left in reversed(range(NUM_TRIES)):
        try:
            state = known or _ask(shell, workdir, bundle)
            if state.presence == "there":
                return BundleOnHost(state.root, bundle.sha, was_there=True, sent_bytes=0)
            return _send(shell, workdir, bundle)
        except LinkLost:
            # Whether it arrived is not known, so ask.
            known = None
            if not num_left:
                raise
    raise AssertionError("unreachable")


def _ask(shell: Shell, workdir: str, bundle: Bundle) -> BundleState:
    answer = shell.run(Script("ask for the bundle", QUESTION + "\nbundle_question\n", question_values(workdir, bundle)))
    state = read_bundle(answer)
    if state is None:
        raise JobFailed(
            f"{shell.name} was asked for the bundle and said nothing of use: {reason(answer)}",
            host=shell.name,
        )
    return state


def _send(shell: Shell, workdir: str, bundle: Bundle) -> BundleOnHost:
    archive = bundle.archive()
    script = Script(
        "send the bundle",
        "\n".join((read_script(SUPERVISOR, "proc.sh"), QUESTION, read_script(_HERE, "bundle.sh"))),
        (*question_values(workdir, bundle), ("nonce", secrets.token_hex(8))),
        # As a secret: nobody wants to read it.
        (("archive", base64.b64encode(archive).decode("ascii")),),
    )
    answer = shell.run(script, timeout_s=SEND_S)
    told = _told(answer)
    if answer.code == 0 and told.get("bundle") in ("there", "sent"):
        is_ours = told["bundle"] == "sent"
        return BundleOnHost(told["bundle_root"], bundle.sha, was_there=not is_ours, sent_bytes=len(archive))
    raise _failure(shell.name, workdir, bundle, answer)


def _failure(host: str, workdir: str, bundle: Bundle, answer: Answer) -> JobFailed | ArtifactError:
    told, what = _told(answer), f"bundle {bundle.sha[:12]}"
    why = told.get("why", "")
    if why.startswith("missing "):
        return JobFailed(
            f"{what} could not be unpacked on {host}: it has no {why.removeprefix('missing ')}",
            host=host,
            hint="install it there",
        )
    if why == "in use":
        return ArtifactError(
            f"{what} on {host} was changed or is incomplete, and run {told.get('user', '').rpartition('/')[2]}, "
            f"which lives, was started from it: left alone",
            hint="stop that run, then try again",
        )
    needed = bundle.num_bytes / 1e6
    free = told.get("free_kib", "")
    room = f"needs {needed:.1f} MB, {int(free) * 1024 / 1e6:.1f} MB free" if free else f"needs {needed:.1f} MB"
    # tar says last only that it failed.
    said = answer.err.strip().partition("\n")[0] or reason(answer)
    cause = "what arrived there is not what was sent" if why == "not as sent" else said
    return JobFailed(f"{what} could not be put into {workdir}/bundles on {host} ({room}): {cause}", host=host)


def _told(answer: Answer) -> dict[str, str]:
    lines = answer.out.decode("utf-8", "surrogateescape").splitlines()
    return {key: value for key, found, value in (line.partition("=") for line in lines) if found}
