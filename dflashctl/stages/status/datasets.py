"""Datasets as subjects: those in the work folder, and those that its runs name."""

from pathlib import Path

from pydantic import ValidationError

from dflashctl.artifacts import Workdir
from dflashctl.errors import DflashctlError
from dflashctl.facts.runs import read_record
from dflashctl.stages.status.fact import Fact, Subject
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.manifest import MANIFEST_NAME, Manifest, read_manifest


def dataset_subjects(workdir: Workdir) -> tuple[Subject, ...]:
    """By path."""
    named = _named_by_runs(workdir)
    here = {path.parent for path in workdir.path.glob(f"*/{MANIFEST_NAME}") if not _is_something_else(path)}
    return tuple(_dataset(folder, _name(folder, workdir)) for folder in sorted(named | here))


def _name(folder: Path, workdir: Workdir) -> str:
    return str(folder.relative_to(workdir.path) if folder.is_relative_to(workdir.path) else folder)


def _dataset(folder: Path, name: str) -> Subject:
    path = str(folder / MANIFEST_NAME)
    try:
        manifest = read_manifest(folder, "dataset")
        info = DatasetInfo.model_validate(manifest.about)
    except BundleError as error:
        return Subject("dataset", name, _no_dataset(path, error.message), ())
    except ValidationError as error:
        first = error.errors()[0]
        why = f"it is not of this version: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        return Subject("dataset", name, _no_dataset(path, why), ())
    at_s = manifest.created_at_s

    def counted(name: str, text: str, value: int, unit: str) -> Fact:
        return Fact(name, text, "measured", path, at_s, value, unit)

    share = info.num_supervised_tokens / max(1, info.num_tokens)
    size = f"{info.num_documents:,} documents, {info.num_tokens:,} tokens"
    facts = [
        counted("size", size, info.num_tokens, "tokens"),
        counted("trained on", f"{100 * share:.1f} % of the tokens", info.num_supervised_tokens, "tokens"),
    ]
    if info.num_skipped_rows:
        facts.append(counted("left out", f"{info.num_skipped_rows:,} bad rows", info.num_skipped_rows, "rows"))
    return Subject("dataset", name, Fact("state", "complete", "reported", path, at_s, "complete"), tuple(facts))


def _no_dataset(path: str, why: str) -> Fact:
    return Fact("state", "no complete dataset", "reported", path, value="unreadable", warning=why)


def _named_by_runs(workdir: Workdir) -> set[Path]:
    """A run whose record cannot be read says so itself."""
    found = set()
    for ref in workdir.runs():
        try:
            found.add(Path(read_record(ref).train.dataset))
        except DflashctlError:
            continue
    return found


def _is_something_else(manifest: Path) -> bool:
    """A checkpoint, responses: no dataset, and nothing wrong with it."""
    try:
        return Manifest.model_validate_json(manifest.read_bytes()).kind != "dataset"
    except (OSError, ValidationError):
        return False
