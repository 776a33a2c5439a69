"""A checkpoint as what a relay moves: which one, where it goes, what of it the target already has."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from dflashctl.artifacts import best_of
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.operations.relay.agent import Agent
from dflashctl.operations.relay.tree import Known, Place, SourceFile, Tree
from dflashctl.operations.relay.wanted import Wanted
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.manifest import Manifest, parse_manifest

SAMPLE_BYTES = 1 << 16
"""Of a tensor are compared first; only where these are equal is the whole of it read for it."""
NAME = re.compile(r"(?P<run>[^@]+)?(?:@(?P<which>latest|best|[0-9]+))?")


@dataclass(frozen=True)
class Checkpoint:
    """One of a run's, as it lies on a host."""

    run: str
    step: int
    path: str
    manifest: Manifest | None
    """None: it cannot be read, so it is of no use."""
    why: str = ""
    """What it was chosen by, where a name left that open."""

    @property
    def label(self) -> str:
        return f"{self.run}@{self.step}"

    def files(self) -> Mapping[str, str]:
        """sha256 by path."""
        return {} if self.manifest is None else {entry.path: entry.sha256 for entry in self.manifest.files}


@dataclass(frozen=True)
class Found:
    """The answer of a work folder."""

    workdir: str
    """Absolute there."""
    runs: tuple[str, ...]
    """With complete checkpoints, the one with the newest first."""
    run: str | None
    is_run_there: bool
    checkpoints: tuple[Checkpoint, ...]
    """Oldest first."""
    unfinished: tuple[int, ...] = ()
    """Steps whose folders have no manifest."""


def find(agent: Agent, workdir: str, run: str | None) -> Found:
    """Raises AgentRefused, HostUnreachable."""
    told = agent.ask("find", {"workdir": workdir, "run": run})
    checkpoints = tuple(
        Checkpoint(told["run"], int(step), path, _manifest(text, path)) for step, path, text in told["steps"]
    )
    runs = tuple(name for name, _ in told["runs"])
    return Found(told["workdir"], runs, told["run"], bool(told["exists"]), checkpoints, tuple(told["unfinished"]))


def parse_name(name: str | None) -> tuple[str | None, str]:
    """RUN, RUN@STEP, RUN@best, RUN@latest, or only what follows the @. Raises ConfigError."""
    parts = NAME.fullmatch(name or "")
    if parts is None:
        raise ConfigError(f"{name!r} names no checkpoint", hint="RUN, RUN@STEP, RUN@best or RUN@latest")
    return parts["run"], parts["which"] or "latest"


def choose(found: Found, which: str, host: str) -> Checkpoint:
    """Raises ConfigError if it is not there, ArtifactError if there is none that is complete."""
    if found.run is None:
        raise ArtifactError(
            f"no run in {found.workdir} on {host} has a complete checkpoint", hint=f"dflashctl train list --host {host}"
        )
    if not found.is_run_there:
        there = ", ".join(found.runs) or "none"
        raise ConfigError(
            f"there is no run {found.run} in {found.workdir} on {host} (with checkpoints: {there})",
            hint=f"dflashctl train list --host {host}",
        )
    usable = [one for one in found.checkpoints if one.manifest is not None]
    if not usable:
        raise ArtifactError(
            f"run {found.run} on {host} has no complete checkpoint",
            hint=f"dflashctl train watch {found.run} --host {host}",
        )
    if which == "latest":
        return usable[-1]
    if which == "best":
        return _best(usable, found.run, host)
    for one in usable:
        if one.step == int(which):
            return one
    steps = ", ".join(str(one.step) for one in usable)
    if int(which) in found.unfinished:
        raise ArtifactError(
            f"{found.run}@{which} on {host} has no manifest: it is being written, or was never finished",
            hint=f"complete are {steps}",
        )
    raise ConfigError(f"run {found.run} on {host} has no checkpoint {which}: complete are {steps}")


def _best(usable: list[Checkpoint], run: str, host: str) -> Checkpoint:
    best = best_of([one.manifest.about for one in usable if one.manifest is not None])
    if best is None:
        raise ArtifactError(f"no checkpoint of run {run} on {host} says how good it is, so none is best")
    return replace(usable[best.index], why=best.why)


@dataclass
class CheckpointJob:
    """A relay of one checkpoint. What was chosen at the first try stays chosen."""

    source_host: str
    target_host: str
    source_workdir: str
    target_workdir: str
    run: str | None
    which: str
    with_state: bool = False
    replace: bool = False
    encode: str = "auto"
    num_lanes: int | None = None
    chosen: Checkpoint | None = None
    dest: str = ""
    is_there: bool = False
    """On the target, complete and equal: nothing was left to do."""
    on_chosen: Callable[[Checkpoint], None] | None = None
    """Told once which it is."""
    _earlier: tuple[Checkpoint, ...] = ()
    _own: tuple[Checkpoint, ...] = ()

    def choose(self, chief: Agent, keeper: Agent) -> Wanted | None:
        """None: it is there. Raises ConfigError, ArtifactError."""
        found = find(chief, self.source_workdir, self.run)
        if self.chosen is None:
            self.chosen = choose(found, self.which, self.source_host)
            if self.on_chosen is not None:
                self.on_chosen(self.chosen)
        chosen = self.chosen
        if not any(one.path == chosen.path for one in found.checkpoints):
            raise ArtifactError(
                f"{chosen.label} is gone from {self.source_host}: it was pruned",
                hint="relay a newer one; dflashctl relay watch follows a run",
            )
        there = find(keeper, self.target_workdir, chosen.run)
        self._own = found.checkpoints
        self._earlier = tuple(one for one in there.checkpoints if one.manifest is not None and one.step != chosen.step)
        self.dest = f"{there.workdir}/runs/{chosen.run}/checkpoints/{chosen.path.rpartition('/')[2]}"
        look = keeper.ask("look", {"dest": self.dest})
        if look["manifest"] is not None and self._is_same(look["manifest"]):
            self.is_there = True
            return None
        return Wanted(
            source=chosen.path,
            dest=self.dest,
            is_checkpoint=True,
            with_state=self.with_state,
            replace=self.replace,
            encode=self.encode,
            num_lanes=self.num_lanes,
            about={
                "kind": "checkpoint",
                "from": self.source_host,
                "source": chosen.path,
                "run": chosen.run,
                "step": chosen.step,
                "with_state": self.with_state,
            },
        )

    def prepare(self, chief: Agent, keeper: Agent, tree: Tree) -> tuple[Tree, Known, Mapping[str, str]]:
        assert tree.manifest is not None
        manifest = _parsed(tree.manifest, tree.root)
        sha256s = {entry.path: entry.sha256 for entry in manifest.files}
        moved = {file.path for file in tree.files}
        if moved != set(sha256s):
            tree = replace(tree, manifest=_without_state(manifest, moved))
        tree = replace(tree, files=tuple(replace(file, content=sha256s[file.path]) for file in tree.files))
        return tree, self._known(chief, keeper, tree), {path: sha256s[path] for path in moved}

    def _is_same(self, text: str) -> bool:
        """Whether what is there has all that would be sent, byte for byte by its own account."""
        assert self.chosen is not None
        there = {entry.path: entry.sha256 for entry in _parsed(text, self.dest).files}
        wanted = self.chosen.files()
        return all(
            there.get(path) == sha for path, sha in wanted.items() if self.with_state or not path.startswith("state/")
        )

    def _known(self, chief: Agent, keeper: Agent, tree: Tree) -> Known:
        same: dict[tuple[str, str], Place] = {}
        base: dict[tuple[str, str], Place] = {}
        for file in tree.files:
            if file.tensors:
                self._compare(chief, keeper, tree.root, file, same, base)
        return Known(same, base=base)

    def _compare(
        self,
        chief: Agent,
        keeper: Agent,
        root: str,
        file: SourceFile,
        same: dict[tuple[str, str], Place],
        base: dict[tuple[str, str], Place],
    ) -> None:
        """Against the same file of every earlier checkpoint there, the nearest first."""
        assert self.chosen is not None
        step = self.chosen.step
        candidates = [one for one in self._earlier if file.path in one.files()]
        if not candidates:
            return
        candidates.sort(key=lambda one: abs(one.step - step))
        own = _tensors(chief, f"{root}/{file.path}", None, SAMPLE_BYTES)
        has_base = False
        for one in candidates:
            path = f"{one.path}/{file.path}"
            there = _tensors(keeper, path, None, SAMPLE_BYTES)
            alike = [
                name
                for name, (digest, _, size, dtype) in own.items()
                if (file.path, name) not in same
                and name in there
                and (there[name][0], *there[name][2:]) == (digest, size, dtype)
            ]
            if alike:
                with ThreadPoolExecutor(2) as threads:
                    ours, theirs = threads.map(
                        lambda pair, alike=alike: _tensors(pair[0], pair[1], alike, None),
                        ((chief, f"{root}/{file.path}"), (keeper, path)),
                    )
                for name in alike:
                    if name in ours and name in theirs and ours[name][0] == theirs[name][0]:
                        same[file.path, name] = Place("", 0, path, int(theirs[name][1]))
            twin = next((mine for mine in self._own if mine.step == one.step), None)
            if not has_base and twin is not None and twin.files().get(file.path) == one.files()[file.path]:
                for name, (_, offset, size, dtype) in there.items():
                    if name in own and own[name][2:] == [size, dtype]:
                        has_base = True
                        base[file.path, name] = Place(f"{twin.path}/{file.path}", int(offset), path, int(offset))


def _tensors(agent: Agent, path: str, names: Iterable[str] | None, sample_bytes: int | None) -> dict[str, Any]:
    asked = {"path": path, "names": None if names is None else list(names), "sample_bytes": sample_bytes}
    told: dict[str, Any] = agent.ask("tensors", asked, timeout_s=900.0)
    return told


def _manifest(text: str | None, path: str) -> Manifest | None:
    try:
        return None if text is None else _parsed(text, path)
    except ArtifactError:
        return None


def _parsed(text: str, path: str) -> Manifest:
    from pathlib import Path

    try:
        return parse_manifest(text, Path(path), "checkpoint")
    except BundleError as error:
        raise ArtifactError(error.message, hint=error.hint) from error


def _without_state(manifest: Manifest, moved: set[str]) -> str:
    """The manifest of what is moved; what was left behind, and of what, stands in it."""
    left = sorted(entry.path for entry in manifest.files if entry.path not in moved)
    kept = manifest.model_copy(
        update={
            "files": tuple(entry for entry in manifest.files if entry.path in moved),
            "about": {**manifest.about, "left_behind": left},
        }
    )
    return json.dumps(kept.model_dump(mode="json"), indent=2) + "\n"
