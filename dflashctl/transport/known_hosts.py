"""Who a host must prove to be: OpenSSH's known_hosts files. Pure but for the files; knows no connection."""

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REVOKED, AUTHORITY = "@revoked", "@cert-authority"


@dataclass(frozen=True)
class HostKey:
    type: str
    """ssh-ed25519, ssh-rsa, ..."""
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen -l writes it."""
        digest = hashlib.sha256(self.blob).digest()
        return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


@dataclass(frozen=True)
class Line:
    file: str
    number: int
    """Counts from 1."""
    marker: str
    key: HostKey
    is_exact: bool
    """Under the very name; else under the address without its port."""


@dataclass(frozen=True)
class Verdict:
    kind: Literal["known", "new", "changed", "revoked", "authority"]
    line: Line | None = None
    """The one that decided."""


def lines_of(name: str, files: tuple[str, ...]) -> tuple[Line, ...]:
    """What the files say of a host, in their order. Files that are not there say nothing; raises OSError for others."""
    bare = _bare(name)
    found = []
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        for number, raw in enumerate(text.splitlines(), 1):
            parsed = _parse(raw)
            if parsed is None:
                continue
            marker, patterns, key = parsed
            is_exact = _matches(name, patterns)
            if is_exact or (bare is not None and _matches(bare, patterns)):
                found.append(Line(file, number, marker, key, is_exact))
    return tuple(found)


def is_revoked(key: HostKey, file: str) -> bool:
    """Whether a file of public keys, one a line, has this one. Raises OSError, and ValueError for a binary list."""
    text = Path(file).read_bytes()
    if text.startswith(b"SSHKRL"):
        raise ValueError(f"{file} is a binary list")
    lines = (line.split() for line in text.decode("utf-8", "replace").splitlines())
    return any(words[1:2] == [base64.b64encode(key.blob).decode("ascii")] for words in lines)


def judge(key: HostKey, lines: tuple[Line, ...]) -> Verdict:
    """`lines`: of this host. A host known by other keys than the one that it shows has changed, whatever the types."""
    for line in lines:
        if line.marker == REVOKED and line.key == key:
            return Verdict("revoked", line)
    plain = [line for line in lines if not line.marker]
    for line in plain:
        if line.key == key:
            return Verdict("known", line)
    exact = [line for line in plain if line.is_exact]
    if exact:
        return Verdict("changed", next((line for line in exact if line.key.type == key.type), exact[0]))
    authority = next((line for line in lines if line.marker == AUTHORITY and line.is_exact), None)
    return Verdict("new") if authority is None else Verdict("authority", authority)


def known_types(lines: tuple[Line, ...]) -> tuple[str, ...]:
    """Types of key that the host is known by, each once."""
    return tuple(dict.fromkeys(line.key.type for line in lines if not line.marker))


def add(name: str, key: HostKey, file: str, *, hashes: bool) -> Verdict:
    """Keep a key at first use, if nobody else has meanwhile: what holds then. Raises OSError."""
    path = Path(file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        now = judge(key, lines_of(name, (file,)))
        if now.kind != "new":
            return now
        size_bytes = os.fstat(descriptor).st_size
        cut = b"" if size_bytes == 0 or os.pread(descriptor, 1, size_bytes - 1) == b"\n" else b"\n"
        who = _hashed(name, os.urandom(20)) if hashes else name
        line = cut + f"{who} {key.type} {base64.b64encode(key.blob).decode('ascii')}\n".encode()
        if os.write(descriptor, line) != len(line):
            raise OSError(f"{file} could not be written whole")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return judge(key, lines_of(name, (file,)))


def _parse(raw: str) -> tuple[str, str, HostKey] | None:
    fields = raw.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3:
        return None
    try:
        return marker, fields[0], HostKey(fields[1], base64.b64decode(fields[2], validate=True))
    except (binascii.Error, ValueError):
        return None


def _matches(name: str, patterns: str) -> bool:
    if patterns.startswith("|1|"):
        salt = patterns.split("|")[2]
        try:
            return hmac.compare_digest(_hashed(name, base64.b64decode(salt)), patterns)
        except (binascii.Error, ValueError, TypeError):
            return False
    is_match = False
    for pattern in patterns.lower().split(","):
        if _is_like(name.lower(), pattern.removeprefix("!")):
            if pattern.startswith("!"):
                return False
            is_match = True
    return is_match


def _is_like(name: str, pattern: str) -> bool:
    """Only * and ? are special: brackets stand for themselves."""
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), name) is not None


def _hashed(name: str, salt: bytes) -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode('ascii')}|{base64.b64encode(digest).decode('ascii')}"


def _bare(name: str) -> str | None:
    """`[host]:port` without its port."""
    found = re.fullmatch(r"\[(.+)\]:\d+", name)
    return found[1] if found else None
