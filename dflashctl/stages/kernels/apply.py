"""What a check or a bench of the kernels left: reading it back, and what it comes to."""

from pathlib import Path

from pydantic import ValidationError

from dflashctl.errors import ArtifactError, DflashctlError, InvalidBenchmark, Regression
from dflashctl_remote.spec.kernels import KernelsReport


def read_kernels_report(path: Path) -> KernelsReport:
    """Raises ArtifactError."""
    try:
        return KernelsReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ArtifactError(f"{path} cannot be read as a report on kernels: {error.errors()[0]['msg']}") from error


def problem_of(report: KernelsReport, host: str) -> DflashctlError | None:
    """What to raise once the report was shown: failed checks, which also make a bench worth nothing."""
    if not report.failed:
        return None
    first = report.failed[0]
    said = (
        f"{len(report.failed)} of {len(report.checks)} checks of kernels failed on {host}, "
        f"the first {first.kernel}, {first.claim}: {first.detail}"
    )
    hint = "do not train there with these kernels; compare the versions above with constraints.txt"
    return InvalidBenchmark(said, hint=hint) if report.action == "bench" else Regression(said, hint=hint)
