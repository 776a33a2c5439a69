"""The bundle's name, which is its content; written into every manifest and run.json."""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import dflashctl_remote

PACKAGE = "dflashctl_remote"
SUFFIXES = (".py", ".sh")
"""What runs. Anything else in the package, a README or a cache, is neither counted nor shipped."""


def bundle_root() -> Path:
    """The folder that goes on PYTHONPATH: the parent of the package dflashctl_remote."""
    (package,) = dflashctl_remote.__path__
    return Path(package).resolve().parent


@cache
def bundle_sha() -> str:
    """sha256 over the sorted names and contents of the bundle's files; times and caches don't count."""
    return sha_of_bundle(bundle_root())


def sha_of_bundle(root: Path) -> str:
    """The same for a bundle that lies elsewhere."""
    return sha_of_files(bundle_files(root))


def sha_of_files(files: Iterable[tuple[str, bytes]]) -> str:
    """The same for files that were read already."""
    digest = hashlib.sha256()
    for name, content in files:
        digest.update(name.encode() + b"\0")
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def bundle_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Each file's path below `root`, with slashes, and its content, in one order everywhere."""
    found = {
        path.relative_to(root).as_posix(): path
        for path in (root / PACKAGE).rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    }
    for name in sorted(found):
        yield name, found[name].read_bytes()
