"""What a plan for a training run must know of the host that it is to run on: asked by one script, changes nothing."""

from dataclasses import dataclass
from pathlib import Path

from dflashctl.artifacts import DatasetRef
from dflashctl.errors import ArtifactError, ConfigError, JobFailed
from dflashctl.facts.gpus import Gpus, read_gpus
from dflashctl.facts.host_runs import supervisor_functions
from dflashctl.targets import TargetSize, no_target, target_size_of
from dflashctl.transport.files import read_script
from dflashctl.transport.shell import Answer, Script, Shell
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.manifest import MANIFEST_NAME

ASK_S = 60.0
"""An interpreter on a cold network filesystem, and the driver of many GPUs, take their time."""


@dataclass(frozen=True)
class TrainSite:
    """Paths are the host's, absolute."""

    workdir: str
    target: str
    dataset: str
    target_size: TargetSize
    dataset_info: DatasetInfo
    run_exists: bool
    gpus: Gpus
    free_bytes: int | None
    answer: Answer
    """For what the caller asked beside, by text of its own."""


def train_site(
    shell: Shell,
    *,
    workdir: str,
    target: str,
    dataset: str,
    run_id: str,
    questions: str,
    values: tuple[tuple[str, str], ...],
) -> TrainSite:
    """`questions`: sh that asks more in the same breath, with the values that it reads.

    Raises ConfigError for a target or a path that is none, ArtifactError for a dataset that is not complete,
    HostUnreachable.
    """
    for name, path in (("train.target", target), ("train.dataset", dataset), ("the work folder", workdir)):
        if not path.startswith(("/", "~/")) and path != "~":
            raise ConfigError(f"{name} on host {shell.name} must be absolute or below ~/, found {path}")
    ours = read_script(Path(__file__).parent, "run_seen.sh", "gpus.sh", "train_site.sh")
    text = "\n".join((supervisor_functions("proc.sh", "lease.sh"), ours, questions))
    asked = (("target", target), ("dataset", dataset), ("run_id", run_id))
    answer = shell.run(Script("site", text, (*values, *asked)), timeout_s=ASK_S)
    lines = [line.partition("=")[::2] for line in answer.out.decode("utf-8", "surrogateescape").split("\n")]
    told = dict(lines)
    if answer.code != 0 or "dataset" not in told:
        raise JobFailed(f"{shell.name} could not be asked for a run's place: {answer.err.strip()}", host=shell.name)
    return TrainSite(
        workdir=told["workdir"],
        target=told["target"],
        dataset=told["dataset"],
        target_size=_target_size(shell.name, told),
        dataset_info=_dataset_info(shell.name, told),
        run_exists="run_exists" in told,
        gpus=read_gpus(lines),
        free_bytes=int(told["free_kib"]) * 1024 if told.get("free_kib", "").isdigit() else None,
        answer=answer,
    )


def _target_size(host: str, told: dict[str, str]) -> TargetSize:
    if "target_config" not in told:
        raise no_target(f"{told['target']} on {host}", told["target_config_problem"])
    return target_size_of(told["target_config"], Path(told["target"]) / "config.json")


def _dataset_info(host: str, told: dict[str, str]) -> DatasetInfo:
    folder = told["dataset"]
    if "dataset_manifest" in told:
        return DatasetRef(Path(folder)).info_of(told["dataset_manifest"])
    if "dataset_is_folder" not in told:
        raise ArtifactError(
            f"no dataset at {folder} on {host}: there is no such folder", hint="dflashctl data tokenize"
        )
    raise ArtifactError(
        f"{folder} on {host} is not a complete dataset: {MANIFEST_NAME}: {told['dataset_manifest_problem']}",
        hint="dflashctl data tokenize, or relay one that is complete",
    )
