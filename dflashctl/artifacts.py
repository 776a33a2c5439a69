"""What stages hand on to one another, and where a work folder keeps it. Nothing is started or written here."""

import difflib
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dflashctl.defaults import DEFAULT_WORKDIR, LOCAL
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.records import ServerRecord
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.manifest import MANIFEST_NAME, Manifest, parse_manifest, read_manifest
from dflashctl_remote.spec.process import ProcessToken

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class RunRef:
    """A training run's folder: run.json, events.jsonl, log, checkpoints/."""

    run_id: str
    folder: Path
    """On the host."""
    host: str = LOCAL
    options: str = ""
    """What must be typed after a command to find it from here; empty: as the host and the folder say."""

    @property
    def record_path(self) -> Path:
        return self.folder / "run.json"

    @property
    def events_path(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def log_path(self) -> Path:
        return self.folder / "log"

    @property
    def stop_path(self) -> Path:
        return self.folder / "stop.requested"

    @property
    def token_path(self) -> Path:
        return self.folder / "token.json"

    def token(self) -> ProcessToken | None:
        """Who the run's newest process is; None before the first is there. Raises ArtifactError."""
        if not self.token_path.is_file():
            return None
        try:
            return ProcessToken.model_validate_json(self.token_path.read_bytes())
        except ValidationError as error:
            raise ArtifactError(f"{self.token_path} cannot be read as a process's token") from error

    def command(self, verb: str) -> str:
        """What to type to do something with this run from here: `dflashctl train resume RUN`."""
        where = workdir_option(self.folder.parent.parent) if self.host == LOCAL else f" --host {self.host}"
        return f"dflashctl train {verb} {self.run_id}{self.options or where}"

    def checkpoints(self) -> tuple["CheckpointRef", ...]:
        """The complete ones, oldest first."""
        found = (
            CheckpointRef(folder, int(folder.name.removeprefix("step-")), self.run_id)
            for folder in (self.folder / "checkpoints").glob("step-*")
            if (folder / MANIFEST_NAME).is_file() and re.fullmatch(r"step-[0-9]+", folder.name)
        )
        return tuple(sorted(found, key=lambda ref: ref.step or 0))


@dataclass(frozen=True)
class CheckpointRef:
    folder: Path
    step: int | None
    run_id: str | None
    why: str = ""
    """What it was chosen by, where a name left that open."""

    @property
    def label(self) -> str:
        """As people name it: RUN@STEP, else the folder's name."""
        return f"{self.run_id}@{self.step}" if self.run_id is not None else self.folder.name

    def manifest(self) -> Manifest:
        """Raises ArtifactError if the folder is not a complete checkpoint."""
        try:
            return read_manifest(self.folder, "checkpoint")
        except BundleError as error:
            raise ArtifactError(error.message, hint=error.hint) from error


@dataclass(frozen=True)
class Best:
    index: int
    why: str


def best_of(abouts: Sequence[Mapping[str, Any]]) -> Best | None:
    """Of the highest tau that a validation measured at its step; of the lowest training loss only if none was measured.

    Takes the `about` of manifests, oldest first; of equals the newest. None if no figure is there.
    """
    taus, losses = _figures(abouts, "tau"), _figures(abouts, "loss")
    if taus:
        index = max(taus, key=lambda i: (taus[i], i))
        return Best(index, f"the best of {len(taus)} with a measured tau ({taus[index]:.2f})")
    if losses:
        index = min(losses, key=lambda i: (losses[i], -i))
        return Best(index, f"the lowest training loss ({losses[index]:.3f}), since no tau was measured")
    return None


def _figures(abouts: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
    """By index. One that went astray has a loss that is no number."""
    found = {i: about.get(name) for i, about in enumerate(abouts)}
    return {i: float(value) for i, value in found.items() if isinstance(value, int | float) and math.isfinite(value)}


@dataclass(frozen=True)
class DatasetRef:
    folder: Path

    def info(self) -> DatasetInfo:
        """Raises ArtifactError if the folder is not a complete dataset."""
        return self._info(lambda: read_manifest(self.folder, "dataset"))

    def info_of(self, manifest: str) -> DatasetInfo:
        """The same from the text of its manifest, wherever the folder lies."""
        return self._info(lambda: parse_manifest(manifest, self.folder, "dataset"))

    def _info(self, read: Callable[[], Manifest]) -> DatasetInfo:
        try:
            return DatasetInfo.model_validate(read().about)
        except BundleError as error:
            raise ArtifactError(error.message, hint=error.hint or "dflashctl data tokenize") from error
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise ArtifactError(
                f"{self.folder}/{MANIFEST_NAME} is not a dataset's of this version: {key}: {first['msg']}",
                hint="dflashctl data tokenize",
            ) from error


@dataclass(frozen=True)
class ServerRef:
    """A server's folder: server.json, spec.json, events.jsonl, log."""

    name: str
    folder: Path

    @property
    def record_path(self) -> Path:
        return self.folder / "server.json"

    @property
    def events_path(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def log_path(self) -> Path:
        return self.folder / "log"

    def command(self, verb: str) -> str:
        """What to type to do something with this server from here: `dflashctl deploy down --server NAME`."""
        return f"dflashctl deploy {verb} --server {self.name}{workdir_option(self.folder.parent.parent)}"

    def record(self) -> ServerRecord | None:
        """None if it was never started; raises ArtifactError if it cannot be read."""
        if not self.record_path.is_file():
            return None
        try:
            return ServerRecord.model_validate_json(self.record_path.read_bytes())
        except ValidationError as error:
            raise ArtifactError(f"{self.record_path} is not a server's record of this version") from error


@dataclass(frozen=True)
class Workdir:
    """A folder that runs, jobs and evaluations are kept in."""

    path: Path

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def benchmarks(self) -> Path:
        return self.path / "benchmarks"

    def server(self, name: str) -> ServerRef:
        """The place of a server by name, there or not. Raises ConfigError if the name is no name."""
        if not RUN_ID.fullmatch(name):
            raise ConfigError(f"{name!r} cannot be a server's name: letters, digits, dot, dash, underscore")
        return ServerRef(name, self.path / "servers" / name)

    def known_server(self, name: str) -> ServerRef:
        """A server that was started once; raises ConfigError naming the nearest, or those that there are."""
        ref = self.server(name)
        if ref.record_path.is_file():
            return ref
        known = [server.name for server in self.servers()]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there: {', '.join(known) or 'none; dflashctl deploy up'}"
        raise ConfigError(f"there is no server {name} in {self.path}", hint=hint)

    def servers(self) -> tuple[ServerRef, ...]:
        """Those that were ever started, by name."""
        found = sorted((self.path / "servers").glob("*/server.json"))
        return tuple(ServerRef(path.parent.name, path.parent) for path in found)

    def runs(self) -> tuple[RunRef, ...]:
        """Oldest first, by name."""
        return tuple(
            RunRef(record.parent.name, record.parent) for record in sorted((self.path / "runs").glob("*/run.json"))
        )

    def new_run(self, run_id: str) -> RunRef:
        """The place of a run by name, there or not. Raises ConfigError if the name is no name."""
        if not RUN_ID.fullmatch(run_id):
            raise ConfigError(
                f"{run_id!r} cannot be a run's name: a letter or digit, then at most 99 of letters, digits, dot, dash, "
                "underscore"
            )
        return RunRef(run_id, self.path / "runs" / run_id)

    def run(self, run_id: str) -> RunRef:
        """A run that exists; raises ConfigError naming those that do."""
        ref = self.new_run(run_id)
        if not ref.record_path.is_file():
            known = ", ".join(run.run_id for run in self.runs()) or "none"
            raise ConfigError(f"there is no run {run_id} in {self.path} (there: {known})", hint="dflashctl train list")
        return ref

    def checkpoint(self, name: str) -> CheckpointRef:
        """RUN, RUN@STEP, RUN@best, RUN@latest, or a folder.

        Raises ConfigError, or ArtifactError if it is not complete.
        """
        if "/" in name or (Path(name).is_dir() and not (self.path / "runs" / name).is_dir()):
            return CheckpointRef(Path(name).resolve(), None, None)
        run_id, _, which = name.partition("@")
        run = self.run(run_id)
        complete = run.checkpoints()
        if not complete:
            raise ArtifactError(f"run {run_id} has no complete checkpoint yet", hint=run.command("watch"))
        if which in ("", "latest"):
            return complete[-1]
        if which == "best":
            best = best_of([ref.manifest().about for ref in complete])
            if best is None:
                raise ArtifactError(f"no checkpoint of run {run_id} says how good it is, so none is best")
            return replace(complete[best.index], why=best.why)
        for ref in complete:
            if re.fullmatch(r"[0-9]+", which) and ref.step == int(which):
                return ref
        steps = ", ".join(str(ref.step) for ref in complete)
        raise ConfigError(f"run {run_id} has no checkpoint {which!r}: complete are {steps}, and `latest`, `best`")


def workdir_option(workdir: Path) -> str:
    """As it must be typed from here; nothing for the default."""
    here = Path.cwd()
    if workdir == DEFAULT_WORKDIR.absolute():
        return ""
    shown = workdir.relative_to(here) if workdir.is_relative_to(here) else workdir
    return f" --workdir {shlex.quote(str(shown))}"
