"""What the bundle raises when the user, the data or the machine is at fault.

BundleError
|- BadInput           a file or value that the user gave             exit 2
|- ArtifactIncomplete a folder without manifest                      exit 5
|- ArtifactCorrupt    a file that differs from its manifest          exit 5
|- TrainingFailed     loss not finite, disk full while saving        exit 4
"""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BundleError(Exception):
    """One sentence for the user, what to do next, and the exit code of the process."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadInput(BundleError):
    exit_code = 2


class ArtifactIncomplete(BundleError):
    exit_code = 5


class ArtifactCorrupt(BundleError):
    exit_code = 5


class TrainingFailed(BundleError):
    exit_code = 4


def is_disk_full(error: Exception) -> bool:
    """Whether a write failed for lack of room; safetensors gives the system's error only as text."""
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    return any(f"(os error {number})" in str(error) for number in DISK_FULL)
