"""The bundle's name, which is its content; written into every manifest and run.json."""

import hashlib
from functools import cache
from pathlib import Path

import dflashctl_remote


def bundle_root() -> Path:
    """The folder that goes on PYTHONPATH: the parent of the package dflashctl_remote."""
    (package,) = dflashctl_remote.__path__
    return Path(package).resolve().parent


@cache
def bundle_sha() -> str:
    """sha256 over the sorted names and contents of the bundle's Python files; times and caches don't count."""
    return sha_of_bundle(bundle_root())


def sha_of_bundle(root: Path) -> str:
    """The same for a bundle that lies elsewhere."""
    digest = hashlib.sha256()
    for path in sorted((root / "dflashctl_remote").rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
