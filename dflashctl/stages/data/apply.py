"""What the data jobs left: reading it back."""

from pathlib import Path

from pydantic import ValidationError

from dflashctl.errors import ArtifactError
from dflashctl_remote.spec.data import InspectReport


def read_inspection(path: Path) -> InspectReport:
    """Raises ArtifactError."""
    try:
        return InspectReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ArtifactError(f"{path} cannot be read as an inspection: {error.errors()[0]['msg']}") from error
