"""Looks after the target: who may write there, what has come, that it is what was sent, and when it gets its name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from dflashctl_remote.relay.agent import STALL_S, Line, Refused, expand, leads_out, reason, watch, within
from dflashctl_remote.relay.chief import MANIFEST, SHARED, is_complete
from dflashctl_remote.relay.disk import (
    boot_id,
    exchange,
    is_linked,
    make_file,
    mebibytes,
    missing_folders,
    remove,
    sync_all,
    used_bytes,
)
from dflashctl_remote.relay.received import PART, lists, note_received, prune
from dflashctl_remote.relay.tensors import sha256_of_ranges

SPARE_BYTES = 64 << 20
"""Left free, of a small disk a twentieth, so that whoever else writes there does not meet the full disk."""
WRITERS_S = STALL_S + 30
"""Writers of a link that was cut end by themselves within this time."""
PIECE_BYTES = 1 << 18
MOST_TOLD = 512
SYNC_S = 4.0
TURN = "turn-"
"""Beginning of a link in the part folder to itself, by which the writers of one try come in."""


class Keeper:
    def __init__(self, line: Line) -> None:
        self.line = line
        self.dest = ""
        self.part = ""
        self.parent = -1
        self.may_replace = False
        self.made: list[str] = []
        """Folders above the target that were not there before, the deepest first."""
        self.sizes: dict[str, int] = {}
        self.due: queue.Queue[tuple[str, int] | None] = queue.Queue()
        self.digests: dict[str, Any] = {}
        self.at: dict[str, int] = {}
        self.is_over = threading.Event()

    def answer(self, fields: dict[str, Any], asked: Any) -> None:
        questions: dict[str, Callable[[Any], Any]] = {
            **SHARED,
            "look": lambda asked: look(expand(asked["dest"])),
            "open": self.open,
            "reach": self.reach,
            "ranges": lambda asked: self.hash_ranges(asked["path"], asked["ranges"]),
            "writers": lambda asked: self.wait_for_writers(),
            "publish": self.publish,
            "prune": lambda asked: prune(expand(asked["workdir"]), asked["run"], asked["keep"], set(asked["spare"])),
            "list": lambda asked: lists(expand(asked["workdir"])),
            "forget": lambda asked: self.forget(set(asked["keys"])),
            "drop": lambda asked: self.drop(),
        }
        self.line.reply(questions, fields["op"], asked)

    def reach(self, asked: list[tuple[str, int]]) -> None:
        """Up to here the bytes of a file have come, so up to here they can be hashed."""
        for path, to in asked:
            self.due.put((path, to))

    def open(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Takes the target for this relay; tells what an earlier one has left of it, or who is at work."""
        self.dest = os.path.abspath(expand(asked["dest"]))
        parent, name = os.path.split(self.dest)
        if not name:
            raise Refused("path", f"{self.dest} is no place for a relay")
        paths = [within(path) for path, _, _, _ in asked["files"]]
        for path in (*asked["dirs"], *(link for link, _ in asked["links"])):
            within(path)
        for path, said in asked["links"]:
            if leads_out(path, said):
                raise Refused("link", f"{path} is a symbolic link out of its folder (to {said})")
        refuse_nested([*paths, *(link for link, _ in asked["links"]), *asked["texts"]], asked["dirs"])
        self.made = self.made or missing_folders(parent)
        try:
            os.makedirs(parent, exist_ok=True)
        except FileExistsError:
            raise Refused("path", f"{parent} is no folder") from None
        for folder in self.made:
            # They are not the relay's own: whoever may read what is published has to come there.
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o755)
        if self.parent >= 0:
            os.close(self.parent)
        self.parent = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not self.take(parent, name):
            return {"busy": True}
        self.may_replace = bool(asked["replace"])
        self.refuse_if_taken()
        self.part = os.path.join(parent, "." + name + PART)
        return {"busy": False, **self.prepare(asked, parent)}

    def refuse_if_taken(self) -> None:
        if os.path.lexists(self.dest) and not self.may_replace:
            raise Refused("exists", f"{self.dest} is there already")

    def take(self, parent: str, name: str) -> bool:
        """Whether no other relay writes into that folder. The lock is the folder itself: nothing is left in it."""
        try:
            fcntl.flock(self.parent, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if not stat.S_ISDIR(os.fstat(self.parent).st_mode):
                raise Refused("lock", f"{parent}: its file system locks no files ({reason(error)})") from None
            # Network file systems lock no folders.
            os.close(self.parent)
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
            self.parent = os.open(os.path.join(parent, "." + name + ".relay-lock"), flags, 0o600)
            return self.take(parent, name)
        # Somebody may have removed the folder that was locked.
        return is_linked(self.parent)

    def prepare(self, asked: dict[str, Any], parent: str) -> dict[str, Any]:
        tree = os.path.join(self.part, "tree")
        os.makedirs(tree, exist_ok=True)
        for name in ("journal", "writers"):
            os.close(os.open(os.path.join(self.part, name), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self.wait_for_writers()
        done = self.keep_what_counts(asked["files"], tree)
        need = int(asked["need_bytes"])
        there = used_bytes(tree)
        free = os.statvfs(parent)
        free_bytes = free.f_bavail * free.f_frsize
        spare = min(SPARE_BYTES, free.f_blocks * free.f_frsize // 20)
        if need > there and need - there + spare > free_bytes:
            self.tidy()
            raise Refused(
                "space",
                f"{parent} has {mebibytes(free_bytes)} free, and {mebibytes(need - there)} are still to come"
                f" ({mebibytes(spare)} are left to others)",
            )
        for path in asked["dirs"]:
            os.makedirs(os.path.join(tree, path), exist_ok=True)
        for folder in {os.path.dirname(path) for path, _, _, _ in asked["files"]}:
            os.makedirs(os.path.join(tree, folder), exist_ok=True)
        for path, size, _, _ in asked["files"]:
            make_file(os.path.join(tree, path), size)
            self.sizes[path] = size
        with open(os.path.join(self.part, "about.json.new"), "w", encoding="utf-8") as file:
            json.dump({**asked["about"], "dest": self.dest, "need_bytes": need}, file)
        os.replace(file.name, os.path.join(self.part, "about.json"))
        threading.Thread(target=self.hash_all, daemon=True).start()
        threading.Thread(target=self.sync_on, daemon=True).start()
        part = self.begin_turn()
        return {"part": part, "dest": self.dest, "done": done, "there_bytes": there, "free_bytes": free_bytes}

    def keep_what_counts(self, files: list[Any], tree: str) -> list[str]:
        """Of an earlier relay: chunks are known by what they hold; files that nobody wants any more are removed."""
        wanted = {path for path, _, _, _ in files}
        for folder, folders, names in os.walk(tree, topdown=False):
            for name in (*names, *folders):
                full = os.path.join(folder, name)
                if os.path.isdir(full) and not os.path.islink(full):
                    # Those that are wanted are made anew.
                    with contextlib.suppress(OSError):
                        os.rmdir(full)
                elif os.path.islink(full) or os.path.relpath(full, tree) not in wanted:
                    os.unlink(full)
        with open(os.path.join(self.part, "journal"), "rb") as journal:
            text = journal.read()
        is_same_boot = text.startswith(b"boot " + boot_id().encode() + b"\n")
        if not is_same_boot:
            # What was not on the disk when the machine went down may be gone, whatever the journal says.
            marks = [int(line[7:]) for line in text.split(b"\n")[:-1] if line.startswith(b"synced ")]
            text = text[: marks[-1] if marks else 0]
        keys = [line.decode("ascii", "replace") for line in text.split(b"\n")[:-1] if b" " not in line]
        if not is_same_boot:
            self.write_journal(keys, is_synced=True)
        elif not text.endswith(b"\n"):
            # A line that was cut off must not swallow the next one.
            self.write_journal(keys, is_synced=False)
        return keys

    def write_journal(self, keys: list[str], *, is_synced: bool) -> None:
        path = os.path.join(self.part, "journal")
        text = "\n".join(["boot " + boot_id(), *keys, ""])
        with open(path + ".new", "w", encoding="ascii", errors="replace") as journal:
            journal.write(text)
            if is_synced:
                journal.write(f"synced {len(text)}\n")
            journal.flush()
            os.fsync(journal.fileno())
        os.replace(path + ".new", path)

    def forget(self, keys: set[str]) -> dict[str, Any]:
        """These chunks did not come as they were sent."""
        with open(os.path.join(self.part, "journal"), "rb") as journal:
            lines = journal.read().decode("ascii", "replace").split("\n")[:-1]
        kept = [line for line in lines if " " not in line and line not in keys]
        self.write_journal(kept, is_synced=False)
        return {"kept": len(kept)}

    def sync_on(self) -> None:
        """What has come is on the disk every few seconds, and the journal says how much of it."""
        path = os.path.join(self.part, "journal")
        before = 0
        while not self.is_over.wait(SYNC_S):
            try:
                size = os.stat(path).st_size
                if size == before:
                    continue
                sync_all(self.parent)
                # Not made anew, should it be gone by now.
                journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                try:
                    os.write(journal, b"synced %d\n" % size)
                finally:
                    os.close(journal)
                before = os.stat(path).st_size
            except OSError:
                # No room, or published by now.
                continue

    def hash_all(self) -> None:
        """Reads back what has come, behind those that write. One file after the other, as they are told of."""
        room = bytearray(PIECE_BYTES)
        view = memoryview(room)
        # Those of small files go together: each message wakes the operator.
        told: list[tuple[str, str, str]] = []
        while True:
            if told and (self.due.empty() or len(told) >= MOST_TOLD):
                self.line.say(told, sha=1)
                told = []
            item = self.due.get()
            if item is None:
                return
            path, to = item
            try:
                digest = self.hash_on(path, to, view)
            except OSError as error:
                told.append((path, "", reason(error)))
            else:
                told += [(path, digest, "")] if digest else []

    def hash_on(self, path: str, to: int, view: memoryview) -> str:
        """The sha256, if that was the end of the file."""
        at = self.at.get(path, 0)
        digest = self.digests[path] if at else hashlib.sha256()
        descriptor = os.open(os.path.join(self.part, "tree", path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while at < to:
                got = os.preadv(descriptor, [view[: min(PIECE_BYTES, to - at)]], at)
                if not got:
                    raise OSError(errno.EIO, "it became shorter while it was read back")
                digest.update(view[:got])
                at += got
        finally:
            os.close(descriptor)
        self.at[path], self.digests[path] = at, digest
        return digest.hexdigest() if at == self.sizes[path] else ""

    def hash_ranges(self, path: str, ranges: list[tuple[int, int]]) -> list[str]:
        """Of what has come of a file, read back."""
        watch(900)
        descriptor = os.open(os.path.join(self.part, "tree", within(path)), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return list(sha256_of_ranges(descriptor, [(offset, length) for offset, length in ranges]))
        finally:
            os.close(descriptor)

    def wait_for_writers(self) -> dict[str, Any]:
        """Until nobody writes any more: whoever did has closed his connection, or will end by himself."""
        descriptor = os.open(os.path.join(self.part, "writers"), os.O_RDWR | os.O_CLOEXEC)
        try:
            for _ in range(WRITERS_S * 20):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.end_turns()
                    return {"alone": True}
                except OSError:
                    watch(60)
                    time.sleep(0.05)
        finally:
            os.close(descriptor)
        raise Refused("writers", f"somebody still writes to {self.part}")

    def begin_turn(self) -> str:
        """The way in for the writers of this try alone."""
        path = os.path.join(self.part, TURN + os.urandom(8).hex())
        try:
            os.symlink(".", path)
        except OSError:
            # Some file systems have no links.
            return self.part
        return path

    def end_turns(self) -> None:
        """While nobody writes: whoever was told of a try and has not come yet finds no file any more."""
        for name in os.listdir(self.part):
            if name.startswith(TURN):
                os.unlink(os.path.join(self.part, name))

    def publish(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Everything to the disk, then the final name: nobody ever sees a half."""
        self.is_over.set()
        tree = os.path.join(self.part, "tree")
        for path, text in asked["texts"].items():
            full = os.path.join(tree, within(path))
            with open(full, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                file.write(text)
            os.chmod(full, 0o644)
        for path, _, mode, mtime_ns in asked["files"]:
            full = os.path.join(tree, path)
            os.chmod(full, stat.S_IMODE(mode) & 0o777 | stat.S_IRUSR)
            if mtime_ns:
                os.utime(full, ns=(mtime_ns, mtime_ns))
        for path, said in asked["links"]:
            os.symlink(said, os.path.join(tree, within(path)))
        for folder, _, _ in os.walk(tree):
            os.chmod(folder, 0o755)
        watch(600)
        sync_all(self.parent)
        made = os.path.join(tree, asked["only"]) if asked["only"] else tree
        # Others may have put something there meanwhile.
        self.refuse_if_taken()
        old = self.part + ".old"
        if not os.path.lexists(self.dest):
            os.rename(made, self.dest)
        elif not exchange(made, self.dest):
            remove(old)
            os.rename(self.dest, old)
            os.rename(made, self.dest)
        os.fsync(self.parent)
        # It is published, whatever becomes of the rest.
        with contextlib.suppress(OSError):
            remove(old)
            remove(self.part)
        with contextlib.suppress(OSError):
            if asked["workdir"]:
                note_received(expand(asked["workdir"]), {**asked["about"], "dest": self.dest, "at_s": time.time()})
        return {"dest": self.dest}

    def drop(self) -> dict[str, Any]:
        """Forget what has come so far."""
        if self.part:
            self.remove_all()
        return {"dropped": bool(self.part)}

    def tidy(self) -> None:
        """Nothing has come yet: then nothing is left behind."""
        if self.part and not used_bytes(os.path.join(self.part, "tree")):
            self.remove_all()

    def remove_all(self) -> None:
        remove(self.part)
        for folder in self.made:
            # Others may have put something there.
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def end(self) -> None:
        self.is_over.set()
        self.due.put(None)


def look(dest: str) -> dict[str, Any]:
    """What is at a place: nothing, a file, a folder; complete by its manifest or not."""
    kind = "folder" if os.path.isdir(dest) else ("file" if os.path.lexists(dest) else "nothing")
    manifest = None
    if kind == "folder" and is_complete(dest):
        with open(os.path.join(dest, MANIFEST), encoding="utf-8", errors="surrogateescape") as file:
            manifest = file.read(64 << 20)
    return {"dest": os.path.abspath(dest), "kind": kind, "manifest": manifest}


def refuse_nested(names: list[str], dirs: list[str]) -> None:
    """A file twice, or beneath what is a file or a link, could only be meant to get out."""
    leaves = set(names)
    if len(leaves) != len(names) or leaves & set(dirs):
        raise Refused("path", "the source names a file twice")
    for path in (*names, *dirs):
        above = os.path.dirname(path)
        while above:
            if above in leaves:
                raise Refused("path", f"{path!r} lies beneath {above!r}, which is no folder")
            above = os.path.dirname(above)
