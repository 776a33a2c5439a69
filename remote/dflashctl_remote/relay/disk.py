"""What a relay does to the disk of its target, file by file and as a whole; it knows nothing of relays."""

from __future__ import annotations

import ctypes
import os
import shutil


def make_file(path: str, size: int) -> None:
    """In a folder that is there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except PermissionError:
        # As it was published, if an earlier relay came so far: for reading alone.
        os.chmod(path, 0o600)
        descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size != size:
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def missing_folders(path: str) -> list[str]:
    """Of a path those folders that have to be made, the deepest first."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def is_linked(descriptor: int) -> bool:
    return os.fstat(descriptor).st_nlink > 0


def used_bytes(tree: str) -> int:
    total = 0
    for folder, _, names in os.walk(tree):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB" if num_bytes < 100 << 20 else f"{num_bytes >> 20} MiB"


def sync_all(descriptor: int) -> None:
    """The whole file system: one call for any number of files."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) == 0:
            return
    except (OSError, AttributeError):
        pass
    os.sync()


def exchange(one: str, other: str) -> bool:
    """Both names change places at once, where the file system can do that: nobody finds neither."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, swap = -100, 2
    return bool(rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), swap) == 0)


def remove(path: str) -> None:
    if not path or not os.path.lexists(path):
        return
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
