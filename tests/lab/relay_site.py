"""What the lab's tests of `relay` share: runs with checkpoints, and the truth about both ends from outside."""

import hashlib
import io
import json
import posixpath
import shlex
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from dflashctl.bundle import bundle_root
from dflashctl_remote.spec.manifest import write_manifest
from sshlab import Lab
from sshlab.host import Done, Host, run, wait_until
from sshlab.isolated import CLEAN

MIB = 1 << 20
CHUNK_BYTES = 8 * MIB


class RelaySite:
    """kpro6 has runs, ct129 wants them, and hosts.yaml says so."""

    def __init__(self, lab: Lab, folder: Path, **changes) -> None:
        self.lab, self.folder = lab, folder
        self.operator = lab.operator(folder, **changes)
        self.source, self.target = lab.hosts["kpro6"], lab.hosts["ct129"]
        hosts = yaml.safe_load(self.operator.hosts_file.read_text())
        hosts["relay"] |= {"source": "kpro6", "destination": "ct129"}
        self.operator.hosts_file.write_text(yaml.safe_dump(hosts))

    def workdir(self, host: Host) -> str:
        return f"{host.home()}/{self.folder.name}"

    def place(self, host: Host, run_name: str = "r1", step: int = 100) -> str:
        """Of a checkpoint."""
        return f"{self.workdir(host)}/runs/{run_name}/checkpoints/step-{step:08d}"

    def make(self, run_name: str = "r1", step: int = 100, *, size_mb: float = 1.0, seed: int = 0, **about) -> "Made":
        """A checkpoint on the source."""
        folder = make_checkpoint(self.folder / f"{run_name}-{step}", step, size_mb, seed=seed + step, **about)
        put(self.source, folder, self.place(self.source, run_name, step))
        return Made(run_name, step, digests_of(folder))

    def sabotage(self, host: Host, module: str, old: str, new: str) -> None:
        """The host's agents run from a bundle that lies: its interpreter puts that in the place of the real one."""
        text = (bundle_root() / "dflashctl_remote/relay" / module).read_text()
        assert old in text
        evil = f"{host.home()}/{self.folder.name}-evil"
        put(host, bundle_root() / "dflashctl_remote", f"{evil}/dflashctl_remote")
        host.write(f"{evil}/dflashctl_remote/relay/{module}", text.replace(old, new))
        # What it is given: -I -S -X utf8 -c PROGRAM BUNDLE ROLE SENTINEL
        lie = f'#!/bin/sh\nexec python3 "$1" "$2" "$3" "$4" "$5" "$6" {shlex.quote(evil)} "$8" "$9"\n'
        host.write(f"{evil}/python3", lie, mode=0o755)
        hosts = yaml.safe_load(self.operator.hosts_file.read_text())
        hosts["hosts"][host.name]["python"] = f"{evil}/python3"
        self.operator.hosts_file.write_text(yaml.safe_dump(hosts))

    def ckpt(self, *words: str, timeout_s: float = 120.0) -> Done:
        return self.operator.cli("relay", "ckpt", *words, timeout_s=timeout_s)

    def path(self, *words: str, timeout_s: float = 120.0) -> Done:
        return self.operator.cli("relay", "path", *words, timeout_s=timeout_s)

    def part(self, host: Host, dest: str) -> str:
        """Where what has come waits for its name."""
        return posixpath.join(posixpath.dirname(dest), f".{posixpath.basename(dest)}.relay-part")

    def num_full(self, dest: str) -> int:
        """Of a checkpoint of `make`: chunks of 8 MiB that the target has. Its first two are small."""
        return max(0, self.num_done(dest) - 2)

    def num_done(self, dest: str) -> int:
        """Chunks that the target's journal has, read from outside."""
        path = outside(self.target, f"{self.part(self.target, dest)}/journal")
        try:
            return sum(b" " not in line for line in path.read_bytes().split(b"\n")[:-1])
        except FileNotFoundError:
            return 0

    def wait_for_chunks(self, dest: str, number: int, timeout_s: float = 60.0) -> None:
        count = self.num_full if posixpath.basename(dest).startswith("step-") else self.num_done
        wait_until(lambda: count(dest) >= number, f"{number} chunks on the target", timeout_s)

    def pins(self) -> list[str]:
        """What keeps files of the source from going."""
        folder = outside(self.source, f"{self.workdir(self.source)}/relay/pins")
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def debris(self, host: Host, folder: str) -> list[str]:
        """Names that a relay would have made for itself."""
        done = host.exec(["find", folder, "-name", "*.relay-*"], check=False)
        return done.out.split()

    def agents(self, host: Host):
        return [
            process
            for process in host.processes()
            if process.state not in "ZX" and any("dflashctl_remote.relay.agent" in word for word in process.argv)
        ]


class Made:
    """A checkpoint, as it must come to lie on the target. sha256 by path."""

    def __init__(self, run_name: str, step: int, digests: Mapping[str, str]) -> None:
        self.run, self.step = run_name, step
        self.all = dict(digests)

    @property
    def for_serving(self) -> dict[str, str]:
        """Without the optimizer's state; the manifest is another one then."""
        return {
            path: sha for path, sha in self.all.items() if not path.startswith("state/") and path != "manifest.json"
        }


def make_checkpoint(
    folder: Path, step: int, size_mb: float, *, seed: int, with_state: bool = True, drift: float = 0.0, **about
) -> Path:
    """As the trainer leaves one: bf16 weights, config.json, the optimizer's state, the manifest last.

    `drift`: this share of the weights differs in the last bit from those of the same seed.
    """
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(seed)
    num_rows = max(1, round(size_mb * 1e6 / 2 / 512 / 4))
    tensors = {f"layers.{i}.weight": bf16(numbers, (num_rows, 512)) for i in range(4)}
    for values in tensors.values():
        np.bitwise_xor(values, np.random.default_rng(step).random(values.shape) < drift, out=values)
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 512, "step": step}))
    if with_state:
        (folder / "state").mkdir()
        (folder / "state/optimizer.bin").write_bytes(numbers.bytes(max(1000, round(size_mb * 1e5))))
    write_manifest(folder, "checkpoint", bundle_sha="0" * 12, about={"step": step, **about})
    return folder


def bf16(numbers: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Normal values; bfloat16 is the upper half of a float32."""
    return (numbers.standard_normal(shape, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Source: github.com/huggingface/safetensors, README, "Format"."""
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(values.tobytes() for values in tensors.values())])


def put(host: Host, folder: Path, place: str) -> None:
    """A folder of this machine onto a host, without what is under test."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".")
    host.exec(["mkdir", "-p", "--", place])
    host.exec(["tar", "-x", "-C", place], stdin=packed.getvalue(), timeout_s=60.0)


def outside(host: Host, path: str) -> Path:
    """A path of an isolated host as this machine can open it."""
    return Path(f"/proc/{host.init}/root{path}")


def digests_of(folder: Path) -> dict[str, str]:
    """sha256 by path of all files below a folder of this machine."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def digests_on(host: Host, place: str) -> dict[str, str]:
    """The same of a folder on a host, by that host's own sha256sum; empty if there is no such folder."""
    text = 'cd "$1" && find . -type f -print0 | xargs -0 -r sha256sum -z'
    done = host.exec(["/bin/sh", "-c", text, "sh", place], check=False, timeout_s=60.0)
    rows = [row.split("  ./", 1) for row in done.out.split("\0") if row]
    return {path: sha for sha, path in rows}


def listing(host: Host, place: str) -> str:
    """Everything below a folder of a host, but for the bundle: kind, size, time and name."""
    text = 'find "$1" -mindepth 1 -path "*/bundles" -prune -o -printf "%y %s %T@ %p -> %l\\n" | sort'
    return host.exec(["/bin/sh", "-c", text, "sh", place], check=False).out


def wire_bytes(host: Host, way: str) -> int:
    """What has gone over the host's own link since it is up. `way`: in or out."""
    done = run(["nsenter", f"--net={host.network}", "cat", "/proc/net/dev"], env=CLEAN, timeout_s=10.0)
    total = 0
    for line in done.out.splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() != "lo":
            total += int(counts.split()[0 if way == "in" else 8])
    return total


class Eye:
    """Looks at a final name all the time: nothing is there, or all of it. Anything else is remembered."""

    def __init__(self, host: Host, place: str, wanted: Mapping[str, str]) -> None:
        self._host, self._place, self._wanted = host, place, dict(wanted)
        self._over = threading.Event()
        self.num_looks = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> "Eye":
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        seen = None
        while not self._over.wait(0.005):
            folder = outside(self._host, self._place)
            try:
                if not folder.is_dir():
                    continue
                inode = folder.stat().st_ino
                if inode != seen:
                    found = digests_of(folder)
                    missing = {path for path, sha in self._wanted.items() if found.get(path) != sha}
                    # A host that goes down meanwhile shows nothing.
                    if missing and outside(self._host, self._place).is_dir():
                        self.wrong.append(f"{shlex.quote(self._place)} lacks {sorted(missing)}")
                    seen = inode
                self.num_looks += 1
            except OSError:
                continue
