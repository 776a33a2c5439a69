"""hf://org/name@revision/path: what of a Hugging Face repository is meant, and where that hub is. Asks nobody."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from dflashctl.errors import ConfigError

SCHEME = "hf://"
DEFAULT_HUB = "https://huggingface.co"
HUB_VARIABLE = "HF_ENDPOINT"
TOKEN_VARIABLE = "HF_TOKEN"
KINDS = {"models": "model", "datasets": "dataset"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
# These revisions hold a slash: https://huggingface.co/docs/huggingface_hub/package_reference/hf_uris
_REFS = re.compile(r"refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_FORM = "write hf://org/name, hf://org/name@revision/folder or hf://datasets/org/name"


@dataclass(frozen=True)
class HubPlace:
    kind: str
    """`model` or `dataset`."""
    repository: str
    """org/name."""
    revision: str | None
    """A branch, a tag, a commit; None: the default branch."""
    path: str
    """Of a folder or a file in it; empty: everything."""

    @property
    def page(self) -> str:
        """Below the address of the hub, for people."""
        return self.repository if self.kind == "model" else f"datasets/{self.repository}"

    def __str__(self) -> str:
        revision = "" if self.revision is None else "@" + self.revision
        return f"{SCHEME}{self.page}{revision}{'/' + self.path if self.path else ''}"


@dataclass(frozen=True)
class Hub:
    endpoint: str
    """No slash at its end."""
    token_variable: str
    token: str | None = field(repr=False)

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc

    def is_home_of(self, url: str) -> bool:
        """Same scheme, name and port: where the token may go."""
        return origin(url) == origin(self.endpoint)


def origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return (parts.scheme, (parts.hostname or "").lower(), port)


def parse_place(url: str) -> HubPlace:
    """Raises ConfigError, which repeats nothing that could be a secret pasted in front of an @."""
    if not url.startswith(SCHEME):
        raise ConfigError(f"wanted an address that begins with {SCHEME}", hint=_FORM)
    rest = url[len(SCHEME) :]
    kind = "model"
    first, _, others = rest.partition("/")
    if first in KINDS:
        kind, rest = KINDS[first], others
    org, _, rest = rest.partition("/")
    head, slash, path = rest.partition("/")
    name, at, revision = head.partition("@")
    if first in ("spaces", "buckets", "kernels"):
        raise ConfigError(f"{SCHEME}{first}/... cannot be read: only models and datasets can", hint=_FORM)
    if not _is_name(org) or not _is_name(name):
        raise ConfigError("the hf:// address names no repository as org/name", hint=_FORM)
    if at and (special := _REFS.match(revision + slash + path)):
        rest = (revision + slash + path)[special.end() :]
        revision, path = special[0], rest.removeprefix("/")
    if at and not revision:
        raise ConfigError(f"{SCHEME}{org}/{name}@ names no revision", hint=_FORM)
    path = path.rstrip("/")
    if path and not is_safe_path(path):
        raise ConfigError(f"{path!r} is no path inside of {org}/{name}", hint=_FORM)
    return HubPlace(kind, f"{org}/{name}", unquote(revision) if at else None, path)


def find_hub(env: Mapping[str, str], endpoint: str | None, token_variable: str) -> Hub:
    """The hub named by `endpoint`, by HF_ENDPOINT, or the public one; with the token of that variable, if it is set.

    The token that `hf auth login` keeps in a file is not looked for. Raises ConfigError.
    """
    address = (endpoint or env.get(HUB_VARIABLE) or DEFAULT_HUB).rstrip("/")
    parts = urlsplit(address)
    if not _is_address(address):
        raise ConfigError(
            "the address of the hub is not one like https://huggingface.co, without user and query",
            hint=f"correct it, or unset {HUB_VARIABLE} for {DEFAULT_HUB}",
        )
    token = env.get(token_variable, "").strip() or None
    if token is None and token_variable != TOKEN_VARIABLE:
        raise ConfigError(
            f"the hub's token is to come from {token_variable}, which is not set here",
            hint=f"export {token_variable}, or name another variable",
        )
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        # httpx would put it into the text of an error.
        raise ConfigError(
            f"what {token_variable} holds is no token", hint="it is one word of letters and digits, hf_..."
        )
    if token is not None and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise ConfigError(
            f"the token in {token_variable} would go to {parts.netloc} over plain http, readable on the way",
            hint=f"use https, or unset {token_variable} for what is public",
        )
    return Hub(address, token_variable, token)


def is_safe_path(path: str) -> bool:
    """Relative, with forward slashes, inside of its folder, and one that a disk and a terminal can take."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    # Among what is not printable are spaces of other alphabets, which names may have.
    plain = not any(ord(sign) < 32 or ord(sign) == 127 or sign == "\\" for sign in path)
    return plain and all(part not in ("", ".", "..") for part in path.split("/"))


def _is_address(text: str) -> bool:
    try:
        scheme, name, _ = origin(text)
    except ValueError:
        return False
    return scheme in ("http", "https") and bool(name) and not any(sign in text for sign in "@?# ")


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and ".." not in text and "--" not in text
