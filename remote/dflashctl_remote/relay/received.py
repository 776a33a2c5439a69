"""What relays have brought to a work folder, what they have begun there, and which of it may go again."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from dflashctl_remote.relay.agent import within
from dflashctl_remote.relay.chief import STEP, steps_in
from dflashctl_remote.relay.disk import remove, used_bytes

PART = ".relay-part"
"""Ending of the folder in which a tree waits for its name."""
RECEIVED = "relay/received.jsonl"


def note_received(workdir: str, told: dict[str, Any]) -> None:
    path = os.path.join(workdir, RECEIVED)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(json.dumps(told) + "\n")


def received(workdir: str) -> list[dict[str, Any]]:
    """What relays have brought to a work folder, oldest first."""
    try:
        with open(os.path.join(workdir, RECEIVED), encoding="utf-8") as file:
            return [told for told in map(parsed, file) if told is not None]
    except FileNotFoundError:
        return []


def parsed(line: str) -> dict[str, Any] | None:
    """None for one that was cut off, by a full disk, and whatever was written behind it."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) and isinstance(told.get("dest"), str) else None


def prune(workdir: str, run: str, keep: int, spare: set[str]) -> list[str]:
    """Removes checkpoints of a run that relays brought here, but the newest `keep`; gives the names of the removed."""
    place = os.path.join(workdir, "runs", within(run), "checkpoints")
    ours = {told["dest"] for told in received(workdir)}
    names = [name for _, name in steps_in(os.path.dirname(place))]
    removed = []
    for name in names[:-keep] if keep else []:
        path = os.path.join(place, name)
        if name not in spare and path in ours:
            aside = os.path.join(place, "." + name + ".pruned")
            os.rename(path, aside)
            remove(aside)
            removed.append(name)
    return removed


def lists(workdir: str) -> dict[str, Any]:
    return {"unfinished": unfinished(workdir), "received": received(workdir)}


def unfinished(workdir: str) -> list[dict[str, Any]]:
    """Relays below a work folder that have not come to their end."""
    found = []
    for folder, names, _ in os.walk(os.path.join(workdir, "runs")):
        for name in names:
            if name.endswith(PART):
                # One that is published by now is not unfinished.
                with contextlib.suppress(FileNotFoundError):
                    found.append(about(os.path.join(folder, name)))
        names[:] = [name for name in names if not name.startswith((".", STEP))]
    return found


def about(part: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    try:
        with open(os.path.join(part, "about.json"), encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        pass
    return {**told, "part": part, "there_bytes": used_bytes(os.path.join(part, "tree")),
            "changed_s": os.stat(os.path.join(part, "journal")).st_mtime}  # fmt: skip
