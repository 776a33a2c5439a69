"""Looks after the source: what there is, whether it is complete, and that it stays while it is relayed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

from dflashctl_remote.relay.agent import Line, Refused, expand, leads_out, watch, within
from dflashctl_remote.relay.disk import boot_id
from dflashctl_remote.relay.tensors import read_table, sha256_of_ranges, width_of

MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 64 << 20
STEP = "step-"
PINS = "relay/pins"
STATE = "state/"
MOST_DEPTH = 200
"""Of folders in folders: what removes and counts them calls itself for each."""


class Chief:
    def __init__(self, line: Line) -> None:
        self.line = line
        self.pin: str | None = None
        self.pin_lock = -1

    def answer(self, fields: dict[str, Any], asked: Any) -> None:
        questions: dict[str, Callable[[Any], Any]] = {
            **SHARED,
            "pin": lambda asked: self.make_pin(asked["root"], asked["workdir"], asked["files"]),
            "ended": lambda asked: has_ended(expand(asked["workdir"]), asked["run"]),
        }
        self.line.reply(questions, fields["op"], asked)

    def make_pin(self, root: str, workdir: str, files: list[str]) -> dict[str, Any]:
        """Hard links to every file, so that pruning takes nothing away; those that others left behind are removed."""
        place = os.path.join(expand(workdir), PINS)
        try:
            os.makedirs(place, exist_ok=True)
            sweep(place)
            folder = os.path.join(place, f"{os.getpid()}-{os.urandom(4).hex()}")
            os.mkdir(folder)
            self.pin_lock = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.pin_lock, fcntl.LOCK_EX)
            self.pin = folder
            for path in files:
                inside = os.path.join(folder, "files", path)
                os.makedirs(os.path.dirname(inside), exist_ok=True)
                os.link(os.path.join(root, path), inside, follow_symlinks=False)
        except OSError as error:
            self.end()
            return {"root": root, "pinned": False, "why": error.strerror or str(error)}
        return {"root": os.path.join(folder, "files"), "pinned": True}

    def end(self) -> None:
        if self.pin is not None:
            shutil.rmtree(self.pin, ignore_errors=True)
            self.pin = None
        if self.pin_lock >= 0:
            os.close(self.pin_lock)
            self.pin_lock = -1


def sweep(place: str) -> None:
    """Pins whose lock is free belong to nobody that lives."""
    for name in os.listdir(place):
        path = os.path.join(place, name, "lock")
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(os.path.join(place, name), ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def version_of(found: os.stat_result) -> list[int]:
    """Size, time of the last change in nanoseconds, inode: equal as long as nobody has written."""
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def is_complete(path: str) -> bool:
    return os.path.isfile(os.path.join(expand(path), MANIFEST))


def find(workdir: str, run: str | None) -> dict[str, Any]:
    """The runs of a work folder, newest first, and of one of them the checkpoints with what tells which is best."""
    place = os.path.join(workdir, "runs")
    runs: list[tuple[str, float]] = []
    for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
        steps = steps_of(os.path.join(place, name))
        # Pruned meanwhile: then it is as if it had never been.
        with contextlib.suppress(FileNotFoundError):
            if steps:
                runs.append((name, os.stat(os.path.join(place, name, "checkpoints", steps[-1][1], MANIFEST)).st_mtime))
    runs.sort(key=lambda row: -row[1])
    chosen = run if run is not None else (runs[0][0] if runs else None)
    answer: dict[str, Any] = {
        "workdir": workdir,
        "runs": runs,
        "run": chosen,
        "exists": False,
        "steps": [],
        "unfinished": [],
    }
    if chosen is None:
        return answer
    folder = os.path.join(place, within(chosen))
    answer["exists"] = os.path.isdir(folder)
    for step, name in steps_of(folder):
        path = os.path.join(folder, "checkpoints", name)
        answer["steps"].append([step, path, read_manifest(path)])
    complete = [step for step, _, _ in answer["steps"]]
    answer["unfinished"] = [step for step, _ in steps_in(folder) if step not in complete]
    return answer


def has_ended(workdir: str, run: str) -> bool:
    """By the record of its end, which a resumed run has not."""
    return os.path.exists(os.path.join(workdir, "runs", within(run), "exit.json"))


def steps_of(folder: str) -> list[tuple[int, str]]:
    """The complete ones."""
    return [(step, name) for step, name in steps_in(folder) if is_complete(os.path.join(folder, "checkpoints", name))]


def steps_in(folder: str) -> list[tuple[int, str]]:
    """Folders of a run that are named as checkpoints, by step."""
    place = os.path.join(folder, "checkpoints")
    names = os.listdir(place) if os.path.isdir(place) else []
    return sorted((step, name) for name in names if (step := step_of(name)) is not None)


def step_of(name: str) -> int | None:
    """Of a checkpoint's folder; None for any other name."""
    digits = name[len(STEP) :]
    # Alone, isdigit is also true of digits that int() does not take.
    return int(digits) if name.startswith(STEP) and digits.isascii() and digits.isdigit() else None


def read_manifest(path: str) -> str | None:
    """Its text; None if there is none."""
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            text = file.read(MOST_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(text) > MOST_MANIFEST_BYTES:
        raise Refused("corrupt", f"{path}/{MANIFEST} is too large for a manifest")
    return text.decode("utf-8", "surrogateescape")


def scan(path: str, is_checkpoint: bool, with_state: bool) -> dict[str, Any]:
    """The table of files, with what must not change while they are read."""
    root = os.path.abspath(path)
    if not os.path.lexists(root):
        raise Refused("missing", f"{root}: there is no such file or folder")
    try:
        return scan_what_is_there(root, is_checkpoint, with_state)
    except FileNotFoundError as error:
        raise Refused("missing", f"{error.filename} vanished while it was looked at") from None


def scan_what_is_there(root: str, is_checkpoint: bool, with_state: bool) -> dict[str, Any]:
    if is_checkpoint:
        return with_need(scan_checkpoint(root, with_state))
    real = os.path.realpath(root)
    if os.path.isfile(real):
        folder, name = os.path.split(real)
        one = {"root": folder, "is_file": True, "files": [row(folder, name)], "dirs": [], "links": [], "manifest": None}
        return with_need(one)
    tree: dict[str, Any] = {"root": real, "is_file": False, "files": [], "dirs": [], "links": []}
    walk(real, tree)
    tree["files"].sort()
    # Complete folders are verified against their own account, too. Others may have anything of that name.
    own = [size for path, size, *_ in tree["files"] if path == MANIFEST]
    tree["manifest"] = read_manifest(real) if own and own[0] <= MOST_MANIFEST_BYTES else None
    return with_need(tree)


def with_need(tree: dict[str, Any]) -> dict[str, Any]:
    """Beside it, how much room its files take: holes take none."""
    used = [os.stat(os.path.join(tree["root"], one[0])) for one in tree["files"]]
    tree["need_bytes"] = sum(min(found.st_size, found.st_blocks * 512) for found in used)
    return tree


def scan_checkpoint(root: str, with_state: bool) -> dict[str, Any]:
    if not os.path.isdir(root):
        raise Refused("missing", f"{root}: there is no such checkpoint")
    text = read_manifest(root)
    if text is None:
        raise Refused("incomplete", f"{root} has no {MANIFEST}: it was never finished")
    try:
        entries = [(str(entry["path"]), int(entry["size_bytes"])) for entry in json.loads(text)["files"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise Refused("corrupt", f"{root}/{MANIFEST} cannot be read as a manifest") from None
    files = []
    for name, size in entries:
        if not with_state and within(name).startswith(STATE):
            continue
        path = os.path.join(root, within(name))
        if os.path.realpath(path) != os.path.join(os.path.realpath(root), name) or not os.path.isfile(path):
            raise Refused("corrupt", f"{root}: {name} is in the manifest and no file of that folder")
        if os.stat(path).st_size != size:
            raise Refused("corrupt", f"{root}: {name} has {os.stat(path).st_size} bytes, the manifest says {size}")
        files.append(row(root, name))
    return {"root": root, "is_file": False, "files": files, "dirs": [], "links": [], "manifest": text}


def walk(root: str, tree: dict[str, Any]) -> None:
    """Folders stand before what is in them."""
    due = [""]
    while due:
        below = due.pop()
        watch(120)
        if below.count("/") >= MOST_DEPTH:
            raise Refused("kind", f"{root}/{below[:100]}... lies deeper than {MOST_DEPTH} folders")
        with os.scandir(os.path.join(root, below)) as entries:
            for entry in entries:
                path = below + "/" + entry.name if below else entry.name
                if entry.is_symlink():
                    tree["links"].append([path, safe_link(root, path)])
                elif entry.is_dir():
                    tree["dirs"].append(path)
                    due.append(path)
                elif entry.is_file():
                    tree["files"].append(row(root, path))
                else:
                    raise Refused("kind", f"{root}/{path} is neither file, folder nor link")


def where(path: str, *, is_followed: bool) -> list[list[Any] | None]:
    """What tells it from all else on this machine, then the same of each folder above it; None of what is not there.

    `is_followed`: a link is what it leads to.
    """
    full = os.path.abspath(path)
    real = os.path.realpath(full)
    if not is_followed:
        real = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
    chain: list[list[Any] | None] = []
    while True:
        try:
            found = os.lstat(real)
            chain.append([boot_id(), found.st_dev, found.st_ino])
        except (FileNotFoundError, NotADirectoryError):
            chain.append(None)
        above = os.path.dirname(real)
        if above == real:
            return chain
        real = above


def safe_link(root: str, path: str) -> str:
    """What a link says, if that stays in the tree."""
    full = os.path.join(root, path)
    said = os.readlink(full)
    # Other links on the way may lead elsewhere than the letters do.
    if leads_out(path, said) or not (os.path.realpath(full) + "/").startswith(root.rstrip("/") + "/"):
        raise Refused("link", f"{root}/{path} is a symbolic link out of its folder (to {said})")
    return said


def row(root: str, path: str) -> list[Any]:
    """Path, size, mtime, inode, mode, and for tensors where each lies: [width, offset, size, name, dtype]."""
    full = os.path.join(root, path)
    if not path.endswith(".safetensors"):
        found = os.stat(full)
        return [path, *version_of(found), stat.S_IMODE(found.st_mode), []]
    descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        table = read_table(descriptor, found.st_size) or ()
        tensors = [[width_of(one.dtype), one.offset, one.size, one.name, one.dtype] for one in table]
    finally:
        os.close(descriptor)
    return [path, *version_of(found), stat.S_IMODE(found.st_mode), tensors]


def hash_files(root: str, paths: list[str]) -> list[str]:
    digests = []
    for path in paths:
        full = os.path.join(root, path)
        try:
            digests.append(hash_file(full))
        except FileNotFoundError:
            raise Refused("missing", f"{full} is gone") from None
    return digests


def hash_file(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            watch(120)
            piece = file.read(1 << 20)
            if not piece:
                return digest.hexdigest()
            digest.update(piece)


def hash_tensors(path: str, names: list[str] | None, sample_bytes: int | None) -> dict[str, Any]:
    """Of tensors of a safetensors file {name: [sha256, offset, size, dtype]}, the sha256 of at most so many bytes.

    Of no such file, none.
    """
    try:
        descriptor = os.open(expand(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    try:
        table = read_table(descriptor, os.fstat(descriptor).st_size) or ()
        chosen = [one for one in table if names is None or one.name in set(names)]
        watch(900)
        ranges = [(one.offset, min(one.size, sample_bytes or one.size)) for one in chosen]
        digests = sha256_of_ranges(descriptor, ranges)
    finally:
        os.close(descriptor)
    return {one.name: [digest, one.offset, one.size, one.dtype] for one, digest in zip(chosen, digests)}  # noqa: B905  3.8 has no strict


SHARED: dict[str, Callable[[Any], Any]] = {
    "rtt": lambda asked: {},
    "find": lambda asked: find(expand(asked["workdir"]), asked["run"]),
    "scan": lambda asked: scan(expand(asked["path"]), asked["is_checkpoint"], asked["with_state"]),
    "where": lambda asked: where(expand(asked["path"]), is_followed=asked["is_followed"]),
    "hash": lambda asked: hash_files(asked["root"], asked["paths"]),
    "tensors": lambda asked: hash_tensors(asked["path"], asked["names"], asked["sample_bytes"]),
}
"""Questions that both ends answer, by name."""
