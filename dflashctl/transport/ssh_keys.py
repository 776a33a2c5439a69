"""Keys to log in with, in OpenSSH's order, and what became of each. Asks nobody for a passphrase: that is the agent's.

Loads paramiko: imported only where a connection is opened.
"""

import base64
import binascii
import socket
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    load_ssh_public_identity,
)
from paramiko import Message, PKey, SSHException
from paramiko.agent import AgentKey, AgentSSH

from dflashctl.transport.ssh_config import Hop
from dflashctl.transport.ssh_config_reader import home

AGENT_S = 5.0
SIGN_S = 20.0
"""Some agents ask for a touch."""
USUAL = frozenset(f"id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa"))
"""Tried in ~/.ssh if ssh_config names no others."""
_MAGIC = b"openssh-key-v1\0"


@dataclass(frozen=True)
class Candidate:
    key: PKey
    where: str
    """For people: a path, or the agent's comment."""


class Agent(AgentSSH):
    """A running ssh-agent, by its socket; without keys if nobody answers there."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self.failure = ""
        if path is None:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(AGENT_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
            connection.settimeout(SIGN_S)
        except (OSError, SSHException) as error:
            connection.close()
            self.failure = f"the agent at {path} does not answer ({error})"

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


class Keys:
    """`candidates` gives keys to try, one after the other; `refusals` says why others could not be."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self.refusals: list[str] = []

    def candidates(self) -> Generator[Candidate, None, None]:
        """First the agent's that a file names, then its others, then those of files alone."""
        agent = Agent(self._hop.agent)
        try:
            if agent.failure:
                self.refusals.append(agent.failure)
            held = {key.blob: key for key in agent.get_keys()}
            named = [(path, _public_blob(Path(path))) for path in self._hop.identity_files]
            blobs = [blob for _, blob in named]
            for path, blob in named:
                if blob in held:
                    yield from self._with_certificates(held[blob], f"{path} (in the agent)", path)
            if not self._hop.has_only_those:
                for blob, key in held.items():
                    if blob not in blobs:
                        yield Candidate(key, f"{key.comment or key.get_name()} (in the agent)")
            for path, blob in named:
                if blob not in held and (own := self._load(Path(path))) is not None:
                    yield from self._with_certificates(own, path, path)
        finally:
            agent.close()

    def _load(self, path: Path) -> PKey | None:
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            if not (path.name in USUAL and path.parent == home() / ".ssh"):
                self.refusals.append(f"{path} is not there")
            return None
        except OSError as error:
            self.refusals.append(f"{path} cannot be read ({error.strerror})")
            return None
        if _is_encrypted(text):
            self.refusals.append(f"{path} has a passphrase and is not in the agent (ssh-add {path})")
            return None
        try:
            return PKey.from_path(path)
        except (SSHException, ValueError, TypeError, KeyError, OSError) as error:
            self.refusals.append(f"{path} is no key that can be used here ({error})")
            return None

    def _with_certificates(self, key: PKey | AgentKey, where: str, path: str) -> Iterator[Candidate]:
        """A key with the certificate that was issued for it, then the key alone."""
        for file in (*self._hop.certificate_files, f"{path}-cert.pub"):
            if not Path(file).is_file():
                continue
            signed = _signed(key, file)
            if signed is not None:
                yield Candidate(signed, f"{where} with {file}")
        key.public_blob = None
        yield Candidate(key, where)


def _signed(key: PKey | AgentKey, file: str) -> PKey | AgentKey | None:
    """The key with that certificate; None if it belongs to another."""
    try:
        certificate = load_ssh_public_identity(Path(file).read_bytes())
        if not isinstance(certificate, SSHCertificate):
            return None
        own = certificate.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        if base64.b64decode(own.split()[1]) != key.asbytes():
            return None
        key.load_certificate(file)
    except (SSHException, UnsupportedAlgorithm, ValueError, OSError):
        return None
    return key


def _public_blob(path: Path) -> bytes | None:
    """Which key a file is about: told by the .pub beside it, or by the open part of a private key."""
    for file in (Path(f"{path}.pub"), path):
        try:
            text = file.read_bytes()
        except OSError:
            continue
        words = text.split()
        if len(words) >= 2 and words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
            try:
                return base64.b64decode(words[1], validate=True)
            except binascii.Error:
                continue
        if (parts := _opened(text)) is not None:
            return parts[1]
    return None


def _is_encrypted(text: bytes) -> bool:
    if (parts := _opened(text)) is not None:
        return parts[0] != b"none"
    return b"ENCRYPTED" in text[:400]


def _opened(text: bytes) -> tuple[bytes, bytes] | None:
    """Cipher and public key of a private key in OpenSSH's own format; None if it is in another."""
    begin, _, rest = text.partition(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    if begin.strip() or not rest:
        return None
    try:
        raw = base64.b64decode(b"".join(rest.partition(b"-----END")[0].split()), validate=True)
        if not raw.startswith(_MAGIC):
            return None
        message = Message(raw[len(_MAGIC) :])
        cipher, _, _, count = message.get_string(), message.get_string(), message.get_string(), message.get_int()
        return (cipher, message.get_string()) if count == 1 else None
    except (binascii.Error, struct.error):
        return None
