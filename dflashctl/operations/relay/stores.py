"""What relays from and to a store that runs nothing (S3, a hub) have in common: its end is here, in threads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.transfer import Moved
from dflashctl.operations.relay.tree import Tree

NUM_LANES = 4
"""A store answers late: so many pieces are under way at once, 8 MiB each, or a part."""
SHA_S = 900.0
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Brought:
    """A tree that came from a store, or went to one."""

    moved: Moved
    num_unproven: int = 0
    """Files whose sha256 nobody had told before: proven by size and by the store's own word alone."""


def sha256s_in(manifest: str) -> Mapping[str, str] | None:
    """By path, if it is a manifest of ours: other trees may have a file of that name, too."""
    try:
        return {str(entry["path"]): str(entry["sha256"]) for entry in json.loads(manifest)["files"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def moved_of(dest: str, tree: Tree, progress: Progress, num_tries: int) -> Moved:
    seen = progress.snapshot()
    return Moved(
        dest=dest,
        total_bytes=tree.total_bytes,
        sent_bytes=seen.sent_bytes,
        kept_bytes=seen.kept_bytes,
        num_files=len(tree.files),
        num_lanes=seen.num_lanes,
        num_tries=num_tries,
        elapsed_s=seen.elapsed_s,
        rtt_s=(0.0, 0.0),
        hows=seen.hows,
    )


def begin(progress: Progress, tree: Tree, kept_bytes: int, num_due: int) -> None:
    with progress.lock:
        progress.total_bytes, progress.done_bytes = tree.total_bytes, kept_bytes
        progress.kept_bytes = kept_bytes if not progress.sent_bytes else progress.kept_bytes
        progress.phase, progress.num_lanes = "moving", min(NUM_LANES, max(1, num_due))
    progress.begin()
