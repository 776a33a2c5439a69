"""Any file or folder as what a relay moves."""

import contextlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from dflashctl.errors import ConfigError
from dflashctl.operations.relay.agent import Agent, hashing_s
from dflashctl.operations.relay.tree import Known, Place, Tree
from dflashctl.operations.relay.wanted import Wanted

STORES = ("s3://", "hf://")


@dataclass(frozen=True)
class Location:
    """HOST:PATH, a path of this machine, or the address of a store."""

    host: str
    """Empty for a store."""
    path: str

    @property
    def is_store(self) -> bool:
        return not self.host

    def absolute(self) -> str:
        """Text that means the same wherever it is typed."""
        if self.is_store or self.host != "local":
            return str(self)
        # As the agents do: of ~NAME they know nothing. A slash at its end has a meaning.
        path = os.path.expanduser(self.path) if self.path == "~" or self.path.startswith("~/") else self.path
        return f"local:{os.path.abspath(path).rstrip('/')}{'/' if self.path.endswith('/') else ''}"

    def __str__(self) -> str:
        return self.path if self.is_store or self.host == "local" else f"{self.host}:{self.path}"


def parse_location(text: str, hosts: frozenset[str]) -> Location:
    """Raises ConfigError for a host that is not known, or a path on one that is relative."""
    if text.startswith(STORES):
        return Location("", text)
    head, colon, path = text.partition(":")
    if not colon or "/" in head:
        if not text:
            raise ConfigError("a relay needs a path, found nothing")
        return Location("local", text)
    if head not in hosts:
        import difflib

        near = difflib.get_close_matches(head, hosts, n=1)
        raise ConfigError(
            f"{text!r}: host {head} is not in hosts.yaml",
            hint=f"did you mean {near[0]}:{path}?" if near else "dflashctl hosts list; ./ before a name with a colon",
        )
    if head != "local" and not path.startswith(("/", "~/")) and path != "~":
        raise ConfigError(f"{text!r}: a path on {head} must be absolute or below ~/")
    return Location(head, path)


@dataclass
class PathJob:
    """A relay of one path. What is there under the final name is never written over unasked."""

    source: Location
    dest: Location
    is_into: bool = False
    """The destination is a folder that the source's own name goes into."""
    replace: bool = False
    encode: str = "auto"
    num_lanes: int | None = None
    is_there: bool = False
    _before: tuple[object] | None = None
    """What was there at the first try, and may go."""

    def choose(self, chief: Agent, keeper: Agent) -> Wanted | None:
        path = self.dest.path
        if self.is_into or path.endswith("/"):
            name = self.source.path.rstrip("/").rpartition("/")[2]
            if name in ("", "~", ".", ".."):
                raise ConfigError(f"{self.source} has no name of its own", hint="give the destination's whole path")
            path = f"{path.rstrip('/')}/{name}"
        there = self._refuse_within_itself(chief, keeper, path)
        if keeper.ask("look", {"dest": path})["kind"] != "nothing" and not self.replace:
            self._compare(chief, keeper, path)
            return None
        if there is not None and self._before not in (None, (there,)):
            # Another has its name by now: most likely an earlier try, whose last word was lost.
            with contextlib.suppress(ConfigError):
                self._compare(chief, keeper, path)
                return None
        self._before = self._before or (there,)
        return Wanted(
            source=self.source.path,
            dest=path,
            is_checkpoint=False,
            replace=self.replace,
            encode=self.encode,
            num_lanes=self.num_lanes,
            about={"kind": "path", "from": self.source.host, "source": self.source.path},
        )

    def prepare(self, chief: Agent, keeper: Agent, tree: Tree) -> tuple[Tree, Known, Mapping[str, str]]:
        if self.source.host != self.dest.host:
            return tree, Known(), {}
        # On one host nothing has to leave it.
        whole = {(file.path, ""): Place("", 0, f"{tree.root}/{file.path}", 0) for file in tree.files}
        return tree, Known(whole=whole), {}

    def _refuse_within_itself(self, chief: Agent, keeper: Agent, path: str) -> object:
        """Two names of hosts may be one machine, and share folders: so they are told apart by what they are on it.

        Gives what tells the destination from all else there; None if nothing is there.
        """
        source = chief.ask("where", {"path": self.source.path, "is_followed": True})
        dest = keeper.ask("where", {"path": path, "is_followed": False})
        # Nothing tells machines other than Linux apart.
        if self.source.host != self.dest.host and (source[-1] or ["unknown"])[0] == "unknown":
            return dest[0]
        if dest[0] is not None and dest[0] in source[0 if self.replace else 1 :]:
            raise ConfigError(f"{self.source} is in {shlex.quote(path)}, and would be gone with it")
        if source[0] is not None and source[0] in dest[1:]:
            raise ConfigError(f"{shlex.quote(path)} is in {self.source}, and would become a part of itself")
        return dest[0]

    def _compare(self, chief: Agent, keeper: Agent, path: str) -> None:
        """Whether it is the same, file by file. Raises ConfigError if not."""
        asked = {"is_checkpoint": False, "with_state": False}
        ours = chief.ask("scan", {"path": self.source.path, **asked}, timeout_s=600.0)
        theirs = keeper.ask("scan", {"path": path, **asked}, timeout_s=600.0)
        shape = [
            [(f[0], f[1]) for f in told["files"]] if not told["is_file"] else told["files"][0][1]
            for told in (ours, theirs)
        ]
        if shape[0] == shape[1] and sorted(ours["links"]) == sorted(theirs["links"]):
            digests = [
                agent.ask(
                    "hash",
                    {"root": told["root"], "paths": [file[0] for file in told["files"]]},
                    timeout_s=hashing_s(sum(file[1] for file in told["files"])),
                )
                for agent, told in ((chief, ours), (keeper, theirs))
            ]
            if digests[0] == digests[1]:
                self.is_there = True
                return
        raise ConfigError(
            f"{shlex.quote(path)} on {self.dest.host} is there already, and is not the same",
            hint="--replace puts the new one in its place",
        )


def refuse_both_stores(source: Location, dest: Location) -> None:
    if source.is_store and dest.is_store:
        raise ConfigError(f"{source} and {dest} are both stores: one end of a relay is a host, or this machine")
    if dest.path.startswith("hf://"):
        raise ConfigError("a Hugging Face repository can only be read from here", hint="hf upload")
