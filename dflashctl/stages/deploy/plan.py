"""A server as a plan: which drafter, whether it fits, what will be started. Reads JSON files, starts nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dflashctl.artifacts import CheckpointRef, ServerRef, Workdir
from dflashctl.config.servers import ServerSpec
from dflashctl.engines.base import Launch, LaunchSite
from dflashctl.engines.registry import engine_of
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.targets import read_target_size
from dflashctl_remote.spec.drafter import DrafterConfig, check_fit
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.manifest import Manifest, verify
from dflashctl_remote.spec.process import MARKER

SPEC_NAME = "deploy.json"
"""In a server's folder: its ServerSpec, whatever the engine, so that one like it can be started."""


@dataclass(frozen=True)
class Drafter:
    """A checkpoint that was found to fit the target."""

    folder: Path
    label: str
    sha256: str | None
    """Of model.safetensors, from the manifest."""
    block_size: int


@dataclass(frozen=True)
class DeployPlan:
    spec: ServerSpec
    """Resolved: paths absolute."""
    server: ServerRef
    drafter: Drafter | None
    num_draft_tokens: int | None
    """K as it will run; None: no drafter."""
    model: str
    launch: Launch


def plan_deploy(spec: ServerSpec, workdir: Workdir, *, python: str, bundle_root: Path) -> DeployPlan:
    """Raises ConfigError or ArtifactError for what cannot be served: nothing is started to find out."""
    engine = engine_of(spec.engine)
    server = workdir.server(spec.name)
    target = str(Path(spec.target).expanduser().absolute())
    resolved = spec.model_copy(update={"target": target})
    drafter = None if spec.drafter is None else _drafter(spec.drafter, target, workdir)
    if drafter is None:
        read_target_size(target)
        if spec.num_draft_tokens is not None:
            raise ConfigError(f"server {spec.name} has no drafter, and num_draft_tokens is {spec.num_draft_tokens}")
    num_draft_tokens = None if drafter is None else spec.num_draft_tokens or drafter.block_size - 1
    if drafter is not None and num_draft_tokens is not None and num_draft_tokens >= drafter.block_size:
        raise ConfigError(
            f"num_draft_tokens is {num_draft_tokens}, and the drafter's block of {drafter.block_size} has room for "
            f"{drafter.block_size - 1} beside the anchor"
        )
    site = LaunchSite(python, bundle_root, server.folder)
    launch = engine.launch(resolved, None if drafter is None else drafter.folder, site)
    files = (*launch.files, (server.folder / SPEC_NAME, resolved.model_dump_json(indent=2) + "\n"))
    marked = Launch(launch.argv, (*launch.env, (MARKER, str(server.folder))), files, launch.needs_modules)
    return DeployPlan(resolved, server, drafter, num_draft_tokens, spec.served_name or spec.name, marked)


def spec_of(server: ServerRef) -> ServerSpec:
    """How the server was asked for when it was last started. Raises ArtifactError."""
    path = server.folder / SPEC_NAME
    try:
        return ServerSpec.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ArtifactError(
            f"{path} does not say how server {server.name} was started",
            hint=f"{server.command('down')}, and up again with this version",
        ) from error


def without_drafter(spec: ServerSpec, name: str) -> ServerSpec:
    """The same server decoding plainly, on any free port: the baseline of a benchmark."""
    return spec.model_copy(
        update={"name": name, "served_name": None, "drafter": None, "num_draft_tokens": None, "port": 0}
    )


def _drafter(name: str, target: str, workdir: Workdir) -> Drafter:
    checkpoint = workdir.checkpoint(name)
    manifest = _complete(checkpoint)
    config = _config_of(checkpoint)
    try:
        check_fit(config, read_target_size(target))
    except BundleError as error:
        raise ConfigError(f"{error.message} ({checkpoint.label} for {target})", hint=error.hint) from error
    weights = next((file.sha256 for file in manifest.files if file.path == "model.safetensors"), None)
    return Drafter(checkpoint.folder.absolute(), checkpoint.label, weights, config.block_size)


def _complete(checkpoint: CheckpointRef) -> Manifest:
    """Sizes only: the engine reads the bytes. Raises ArtifactError."""
    try:
        return verify(checkpoint.folder, "checkpoint", content=False)
    except BundleError as error:
        raise ArtifactError(error.message, hint=error.hint) from error


def _config_of(checkpoint: CheckpointRef) -> DrafterConfig:
    path = checkpoint.folder / "config.json"
    try:
        return DrafterConfig.from_zlab(json.loads(path.read_text(encoding="utf-8")))
    except BundleError as error:
        raise ArtifactError(f"{path}: {error.message}", hint=error.hint) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ArtifactError(f"{path} is not a drafter's config: {key}: {first['msg']}") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} cannot be read as a drafter's config: {error}") from error
