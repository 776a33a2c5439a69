"""Evaluations that were made: reading their reports back."""

from pathlib import Path

from pydantic import ValidationError

from dflashctl.errors import ArtifactError
from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.evaluate import EvalReport
from dflashctl_remote.spec.manifest import read_manifest


def read_report(path: Path) -> EvalReport:
    """From a complete evaluation's folder, or a report.json itself. Raises ArtifactError."""
    try:
        if path.is_dir():
            read_manifest(path, "evaluation")
            path = path / "report.json"
        return EvalReport.model_validate_json(path.read_bytes())
    except BundleError as error:
        raise ArtifactError(error.message, hint=error.hint or "dflashctl eval run") from error
    except OSError as error:
        raise ArtifactError(f"no evaluation at {path}: {error.strerror}", hint="dflashctl eval run") from error
    except ValidationError as error:
        raise ArtifactError(f"{path} is not an evaluation's report: {error.errors()[0]['msg']}") from error
