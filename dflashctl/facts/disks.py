"""Where a host's runs and temporary files lie: is there room, may we write, and what sort of file system. Pure."""

import re
import shlex
from collections.abc import Iterator

from dflashctl.facts.doctor import shown
from dflashctl.facts.finding import Finding, Told

LEAST_BYTES = 2**30
ROOM_BYTES = 50 * 2**30
"""Two checkpoints of a 1.7 B drafter with their optimizer states, about 20 GB each."""
LEAST_FILES = 1000
NETWORK = ("nfs", "nfs4", "cifs", "smb2", "9p", "v9fs", "lustre", "gpfs", "ceph", "beegfs", "fuseblk", "fuse", "afs")
_FIGURES = re.compile(r"\s(\d+)\s+(\d+)\s+(-?\d+)\s+\d+%\s")
"""Total, used and free of a line of df -P; the device before them may hold spaces."""


def disk_findings(told: Told) -> Iterator[Finding]:
    """Of doctor_disks."""
    yield _workdir(told)
    yield _temporary(told)


def _workdir(told: Told) -> Finding:
    folder = told.one("workdir")
    name = shown(folder)
    if not told.has("workdir_writable"):
        above = shown(told.one("workdir_above"))
        text = f"{name} cannot be written (nor made in {above})" if above != name else f"{name} cannot be written"
        quoted = shlex.quote(folder)
        return Finding(
            "work folder", "bad", text, f"as its owner or root: mkdir -p {quoted}, chown; or another workdir:"
        )
    blocks, files = _figures(told.one("workdir_blocks")), _figures(told.one("workdir_files"))
    state = name if told.has("workdir_exists") else f"{name} (not there yet)"
    if blocks is None:
        return Finding("work folder", "unknown", f"{state}: df does not tell how much is free")
    total_bytes, free_bytes = blocks[0] * 1024, max(0, blocks[1] * 1024)
    text = f"{state}: {_gib(free_bytes)} of {_gib(total_bytes)} free"
    if free_bytes < LEAST_BYTES:
        cure = f"see what fills it: du -xh {shlex.quote(told.one('workdir_above'))} | sort -h | tail -n 20"
        return Finding("work folder", "bad", text, cure)
    if files is not None and files[0] > 0 and files[1] < LEAST_FILES:
        return Finding("work folder", "bad", f"{text}, but only {files[1]} files more fit", "remove small files there")
    remarks = list(_remarks(told.one("workdir_type"), free_bytes))
    return Finding("work folder", "note" if remarks else "ok", "; ".join([text, *remarks]))


def _remarks(kind: str, free_bytes: int) -> Iterator[str]:
    if free_bytes < ROOM_BYTES:
        yield "a checkpoint of a 1.7 B drafter takes 20 GB"
    if kind in NETWORK:
        yield f"{kind}: locks and renames are weaker on a network file system, a local disk is safer"
    elif kind in ("tmpfs", "ramfs"):
        yield f"{kind}: in memory, gone after a reboot"
    elif kind == "overlayfs":
        yield "overlayfs: gone with the container, unless a volume is mounted"


def _temporary(told: Told) -> Finding:
    folder, topic = shown(told.one("temporary")), "temporary"
    cure = "TMPDIR: another folder, under variables: of this host in hosts.yaml"
    if not told.has("temporary_writable") or not told.has("temporary_exists"):
        text = f"{folder} cannot be written: nothing of ours needs it, torch and triton do"
        return Finding(topic, "note", text, cure)
    blocks = _figures(told.one("temporary_blocks"))
    if blocks is None:
        return Finding(topic, "unknown", f"{folder}: df does not tell how much is free")
    free_bytes = max(0, blocks[1] * 1024)
    text = f"{folder}: {_gib(free_bytes)} free"
    return Finding(topic, "note", text, cure) if free_bytes < LEAST_BYTES / 4 else Finding(topic, "ok", text)


def _figures(line: str) -> tuple[int, int] | None:
    """Total and free, in the units of df."""
    found = _FIGURES.search(f" {line} ")
    return (int(found[1]), int(found[3])) if found else None


def _gib(num_bytes: int) -> str:
    gib = num_bytes / 2**30
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"
