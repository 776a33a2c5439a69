"""How fast a relay is, against what people do without one: `make bench-relay`.

Three hosts in network namespaces (tests/lab), tmpfs at both ends. All arms of a scenario take turns in each round;
every destination is new, every result's sha256 is compared while no clock runs. All that runs here shares the cores,
and CPU seconds are those of the whole machine: load from elsewhere shows. Longer than most files: a list of scenarios.
"""

import argparse
import io
import json
import os
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "remote"), str(ROOT / "tests" / "lab")]

import dflashctl  # noqa: E402
from dflashctl.transport.machine import describe_machine  # noqa: E402
from dflashctl.transport.ssh_connection import CIPHERS  # noqa: E402
from sshlab import Done, Host, Lab, means  # noqa: E402
from sshlab.raw_stream import has_iperf3, raw_seconds  # noqa: E402

SCP_RATIO, PIPE_SHARE, LINE_SHARE, SLOW_SCP_RATIO, SLOW_SHARE, SMALL_RATIO = 1.1, 0.85, 0.95, 2.0, 0.85, 5.0
MOST_MEMORY_BYTES, MOST_SENT = 300e6, 0.6
LINK_BITS_PER_S, RTT_S, NUM_SMALL_FILES = 1e9, 0.05, 10_000
MIB = 1 << 20
GCM = ["-c", "aes128-gcm@openssh.com"]
LIMIT_S = 600.0
STEPS, EVERY_STEPS = 60, 15

# On a host: a checkpoint of so many MiB of bf16, noise (random bytes) or weights (normal, 0.02); prints the sha256.
MAKE_CHECKPOINT = """
import hashlib, json, os, struct, sys, time
import numpy as np
folder, num_mib, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.makedirs(folder)
dice, step, digest = np.random.default_rng(5), 16 << 20, hashlib.sha256()
sizes = [min(step, (num_mib << 20) - at) for at in range(0, num_mib << 20, step)]
header = {f"layers.{i}.weight": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [i * step, i * step + size]}
          for i, size in enumerate(sizes)}
text = json.dumps(header).encode()
with open(folder + "/model.safetensors", "wb") as file:
    def put(data):
        digest.update(data)
        file.write(data)
    put(struct.pack("<Q", len(text)) + text)
    for size in sizes:
        if kind == "noise":
            put(dice.bytes(size))
        else:
            bits = (dice.standard_normal(size // 2, dtype=np.float32) * np.float32(0.02)).view(np.uint32)
            put(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes())
    num_bytes = file.tell()
files = [{"path": "model.safetensors", "size_bytes": num_bytes, "sha256": digest.hexdigest()}]
with open(folder + "/manifest.json", "w") as file:
    json.dump({"schema_version": 1, "kind": "checkpoint", "created_at_s": time.time(), "bundle_sha": "bench",
               "files": files, "about": {"step": 1}}, file)
"""
MAKE_SMALL_FILES = """
import os, random, sys
dice = random.Random(5)
for i in range(int(sys.argv[2])):
    folder = f"{sys.argv[1]}/{i // 100:03d}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/file-{i:05d}", "wb") as file:
        file.write(dice.randbytes(dice.randrange(1024, 4097)))
"""


@dataclass(frozen=True)
class Told:
    """What an arm says of itself. The runner's clock counts where it gives no seconds."""

    seconds: float | None = None
    moving_s: float | None = None
    """A relay's own clock: lanes opened, all moved, verified, published; not the start of the command and its looks."""
    sent_bytes: int | None = None


@dataclass(frozen=True)
class Sample:
    seconds: float
    cpu_s: float
    load: float
    moving_s: float | None
    sent_bytes: int | None


@dataclass(frozen=True)
class Arm:
    name: str
    size_bytes: int
    act: Callable[[], Told]
    check: Callable[[], None] = lambda: None
    """Raises if what came is not what was sent."""
    clean: Callable[[], None] = lambda: None


@dataclass
class Result:
    """Of a scenario."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    claims: dict[str, bool] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def seconds(self, arm: str) -> float:
        return statistics.median(sample.seconds for sample in self.samples[arm])

    def moving_s(self, arm: str) -> float:
        return statistics.median(sample.moving_s or sample.seconds for sample in self.samples[arm])

    def bytes_per_s(self, arm: str, *, is_moving: bool = False) -> float:
        return self.sizes[arm] / (self.moving_s(arm) if is_moving else self.seconds(arm))

    def rows(self) -> list[str]:
        return [self._row(arm) for arm in self.samples]

    def _row(self, arm: str) -> str:
        samples = self.samples[arm]
        seconds = [sample.seconds for sample in samples]
        text = f"  {arm:34} {self.sizes[arm] / 1e6:6.0f} MB  median {statistics.median(seconds):6.2f} s"
        text += f"  min {min(seconds):6.2f}  max {max(seconds):6.2f}  {self.bytes_per_s(arm) / 1e6:6.1f} MB/s"
        text += f"  cpu {statistics.median(sample.cpu_s for sample in samples):6.2f} s"
        text += f"  load {statistics.median(sample.load for sample in samples):4.1f}"
        if samples[0].moving_s is not None:
            text += f"  moving {self.moving_s(arm):6.2f} s, {self.bytes_per_s(arm, is_moving=True) / 1e6:6.1f} MB/s"
        if samples[0].sent_bytes is not None:
            text += f"  sent/size {samples[0].sent_bytes / self.sizes[arm]:.3f}"
        return text


class Bench:
    """The hosts with something to move, and the ways to move it."""

    def __init__(self, lab: Lab, folder: Path, spool: Path, rounds: int) -> None:
        self.lab, self.rounds, self.spool = lab, rounds, spool
        self.operator = lab.operator(folder)
        self.config = str(self.operator.ssh_config)
        self.name = folder.name
        self._sha256s: dict[str, str] = {}

    def workdir(self, host: str) -> str:
        return f"{self.lab.hosts[host].home()}/{self.name}"

    def weights(self, host: str, run: str, step: int = 1) -> str:
        return f"{self.workdir(host)}/runs/{run}/checkpoints/step-{step:08d}/model.safetensors"

    def run(self, argv: Sequence[str]) -> Done:
        """In the operator's network, to its end. Raises subprocess.SubprocessError if that is a bad one."""
        done = self.operator.run(argv, timeout_s=LIMIT_S)
        if done.code != 0:
            raise subprocess.SubprocessError(f"{argv}: exit code {done.code}: {done.err[-2000:]}")
        return done

    def told_nothing(self, argv: Sequence[str]) -> Told:
        self.run(argv)
        return Told()

    def relay(self, *words: str) -> Told:
        done = self.run([sys.executable, "-m", "dflashctl", "relay", *words, "--json"])
        told = json.loads(done.out)
        return Told(moving_s=told["elapsed_s"], sent_bytes=told["sent_bytes"])

    def warm(self, *hosts: str) -> None:
        """The bundle is where it is wanted, programs are in memory."""
        for host in hosts:
            self.lab.hosts[host].write(f"{self.workdir(host)}/tiny", "tiny")
            self.relay("path", f"{host}:{self.workdir(host)}/tiny", f"{self.operator.home}/tiny-{host}", "--replace")
            self.relay("path", f"{self.operator.home}/tiny-{host}", f"{host}:{self.workdir(host)}/back", "--replace")

    def make_checkpoint(self, host: str, run: str, num_mib: int, kind: str = "noise") -> None:
        path = self.weights(host, run)
        argv = [sys.executable, "-c", MAKE_CHECKPOINT, os.path.dirname(path), str(num_mib), kind]
        self.lab.hosts[host].exec(argv, timeout_s=LIMIT_S)
        self._sha256s[run] = self.sha256(host, path)

    def sha256(self, host: str, path: str) -> str:
        return self.lab.hosts[host].exec(["sha256sum", path], timeout_s=LIMIT_S).out.split()[0]

    def remove(self, host: str, *paths: str) -> None:
        self.lab.hosts[host].exec(["rm", "-rf", "--", *paths], timeout_s=LIMIT_S)

    def has_all(self, run: str, host: str, path: str) -> None:
        found = self.sha256(host, path)
        if found != self._sha256s[run]:
            raise ValueError(f"{host}:{path} has sha256 {found}, wanted {self._sha256s[run]}")

    # ---- arms of one checkpoint

    def ours(self, name: str, run: str, num_mib: int, source: str, target: str, *more: str) -> Arm:
        dest = self.weights(target, run)

        def check() -> None:
            self.has_all(run, target, dest)
            self.lab.hosts[target].read(f"{os.path.dirname(dest)}/manifest.json")

        return Arm(
            name,
            num_mib * MIB,
            lambda: self.relay("ckpt", run, "--from", source, "--to", target, *more),
            check,
            lambda: self.remove(target, f"{self.workdir(target)}/runs/{run}"),
        )

    def theirs(self, name: str, run: str, num_mib: int, target: str, argv: Sequence[str]) -> Arm:
        dest = self.plain(target)
        return Arm(
            name,
            num_mib * MIB,
            lambda: self.told_nothing(argv),
            lambda: self.has_all(run, target, dest),
            lambda: self.remove(target, dest),
        )

    def plain(self, host: str) -> str:
        """Where others put the weights."""
        return f"{self.lab.hosts[host].home()}/came.safetensors"

    def scp(self, run: str, source: str, target: str, *options: str) -> list[str]:
        ends = [f"{source}:{self.weights(source, run)}", f"{target}:{self.plain(target)}"]
        return ["scp", "-F", self.config, "-3", "-q", *options, *ends]

    def pipe(self, run: str, source: str, target: str) -> list[str]:
        ssh = shlex.join(["ssh", "-F", self.config, *GCM])
        read = f"{ssh} {source} {shlex.quote(shlex.join(['cat', self.weights(source, run)]))}"
        write = f"{ssh} {target} {shlex.quote(f'cat > {shlex.quote(self.plain(target))}')}"
        return ["bash", "-c", f"set -o pipefail; {read} | {write}"]

    def two_hops(self, run: str, source: str, target: str) -> list[str]:
        rsync = ["rsync", "-W", "-e", shlex.join(["ssh", "-F", self.config, *GCM])]
        spool = str(self.spool / "spooled")
        here = shlex.join([*rsync, f"{source}:{self.weights(source, run)}", spool])
        there = shlex.join([*rsync, spool, f"{target}:{self.plain(target)}"])
        return ["bash", "-c", f"{here} && {there} && rm {shlex.quote(spool)}"]

    def raw(self, name: str, host: str, num_mib: int, *, is_from: bool) -> Arm:
        def act() -> Told:
            return Told(raw_seconds(self.operator, self.lab.hosts[host], num_mib * MIB, is_from_host=is_from))

        return Arm(name, num_mib * MIB, act)

    def take_turns(self, *arms: Arm) -> Result:
        """So often as was asked for, each time another one begins."""
        result = Result({arm.name: [] for arm in arms}, {arm.name: arm.size_bytes for arm in arms})
        for number in range(self.rounds):
            first = number % len(arms)
            for arm in (*arms[first:], *arms[:first]):
                arm.clean()
                cpu_s, began_s = cpu_seconds(), time.perf_counter()
                told = arm.act()
                seconds, cpu_s = time.perf_counter() - began_s, cpu_seconds() - cpu_s
                load = os.getloadavg()[0]
                arm.check()
                arm.clean()
                sample = Sample(told.seconds or seconds, cpu_s, load, told.moving_s, told.sent_bytes)
                result.samples[arm.name].append(sample)
        return result


# ---- scenarios


def unlimited(bench: Bench) -> Result:
    """3 GiB, as a drafter of 1.6 billion bf16 weights, that nothing makes smaller, over links as fast as they are."""
    num_mib, far_mib, ours, pipe, scp = 3072, 512, "relay ckpt", "ssh aes128-gcm cat | cat", "scp -3"
    bench.warm("ct129", "jump", "kpro6")
    bench.make_checkpoint("ct129", "big", num_mib)
    bench.make_checkpoint("kpro6", "far", far_mib)
    ends, far = ("big", "ct129", "jump"), ("far", "kpro6", "ct129")
    result = bench.take_turns(
        bench.theirs(scp, "big", num_mib, "jump", bench.scp(*ends)),
        bench.theirs("scp -3 aes128-gcm", "big", num_mib, "jump", bench.scp(*ends, *GCM)),
        bench.theirs("rsync -W aes128-gcm, two hops", "big", num_mib, "jump", bench.two_hops(*ends)),
        bench.theirs(pipe, "big", num_mib, "jump", bench.pipe(*ends)),
        bench.ours(ours, "big", num_mib, "ct129", "jump"),
        bench.theirs(f"kpro6: {pipe}", "far", far_mib, "ct129", bench.pipe(*far)),
        bench.ours(f"kpro6: {ours}", "far", far_mib, "kpro6", "ct129"),
    )
    faster, share = result.seconds(scp) / result.seconds(ours), result.seconds(pipe) / result.seconds(ours)
    far_share = result.seconds(f"kpro6: {pipe}") / result.seconds(f"kpro6: {ours}")
    result.remarks.append(f"kpro6 -> ct129, through the jump host: {far_share:.2f} x the pipe's rate")
    result.claims[f"{faster:.2f} x scp -3 with its defaults; wanted {SCP_RATIO}"] = faster >= SCP_RATIO
    result.claims[f"{share:.2f} x the pipe's rate, verified; wanted {PIPE_SHARE}"] = share >= PIPE_SHARE
    for host in ("ct129", "kpro6"):
        bench.remove(host, f"{bench.workdir(host)}/runs")
    return result


def gigabit(bench: Bench) -> Result:
    """3.46 GB, as a drafter for Qwen3.6-27B, over two legs of 1 Gbit/s: as they are, and as bf16 weights."""
    num_mib, raw_mib, as_they_are, fewer = 3300, 1024, "relay ckpt --encode no", "relay ckpt, bf16 weights"
    legs = {"ct129": "raw TCP, ct129 -> operator", "jump": "raw TCP, operator -> jump"}
    bench.warm("ct129", "jump")
    bench.make_checkpoint("ct129", "noise", num_mib)
    bench.make_checkpoint("ct129", "weights", num_mib, "weights")
    with ExitStack() as stack:
        for host in legs:
            stack.enter_context(bench.lab.hosts[host].rate(LINK_BITS_PER_S))
        result = bench.take_turns(
            *(bench.raw(name, host, raw_mib, is_from=host == "ct129") for host, name in legs.items()),
            bench.theirs("ssh aes128-gcm cat | cat", "noise", num_mib, "jump", bench.pipe("noise", "ct129", "jump")),
            bench.ours(as_they_are, "noise", num_mib, "ct129", "jump", "--encode", "no"),
            bench.ours(fewer, "weights", num_mib, "ct129", "jump"),
        )
    line = min(result.bytes_per_s(name) for name in legs.values())
    shares = {arm: [result.bytes_per_s(arm, is_moving=moving) / line for moving in (True, False)]
              for arm in (as_they_are, fewer)}  # fmt: skip
    tool = "iperf3" if has_iperf3() else "a TCP stream"
    result.remarks.append(f"line rate, by {tool}: {line / 1e6:.1f} MB/s, the lower of both legs")
    for arm, wanted in ((as_they_are, LINE_SHARE), (fewer, 1.0)):
        moving, whole = shares[arm]
        text = f"{arm}: {whole:.3f} x line rate by the whole command; wanted {wanted} (while it moves: {moving:.3f})"
        result.claims[text] = whole >= wanted
    bench.remove("ct129", f"{bench.workdir('ct129')}/runs")
    return result


def distant(bench: Bench) -> Result:
    """1 GiB, and a round trip of 50 ms to the source."""
    num_mib, ours, scp, raw = 1024, "relay ckpt", "scp -3", "raw TCP, ct129 -> operator"
    bench.warm("ct129", "jump")
    bench.make_checkpoint("ct129", "big", num_mib)
    with bench.lab.hosts["ct129"].delay(RTT_S):
        result = bench.take_turns(
            bench.theirs(scp, "big", num_mib, "jump", bench.scp("big", "ct129", "jump")),
            bench.raw(raw, "ct129", num_mib, is_from=True),
            bench.ours(ours, "big", num_mib, "ct129", "jump"),
        )
    faster = result.seconds(scp) / result.seconds(ours)
    moving = result.bytes_per_s(ours, is_moving=True) / result.bytes_per_s(raw)
    share = result.bytes_per_s(ours) / result.bytes_per_s(raw)
    text = f"{faster:.2f} x scp -3, wanted {SLOW_SCP_RATIO}; or {share:.2f} x the raw stream by the whole command "
    text += f"(while it moves: {moving:.2f}), wanted {SLOW_SHARE}"
    result.claims[text] = faster >= SLOW_SCP_RATIO or share >= SLOW_SHARE
    bench.remove("ct129", f"{bench.workdir('ct129')}/runs")
    return result


def small(bench: Bench) -> Result:
    """10,000 files of 1 to 4 KiB."""
    source, came = bench.lab.hosts["ct129"], bench.lab.hosts["jump"]
    bench.warm("ct129", "jump")
    tree, dest = f"{bench.workdir('ct129')}/small", f"{came.home()}/small"
    source.exec([sys.executable, "-c", MAKE_SMALL_FILES, tree, str(NUM_SMALL_FILES)], timeout_s=LIMIT_S)
    wanted = digest_of_tree(source, tree)
    size_bytes = int(source.exec(["sh", "-c", 'find "$1" -type f -printf "%s\\n" | awk "{s+=\\$1} END {print s}"',
                                  "sh", tree]).out)  # fmt: skip

    def check() -> None:
        if digest_of_tree(came, dest) != wanted:
            raise ValueError(f"jump:{dest} is not the tree that was sent")

    scp = ["scp", "-F", bench.config, "-3", "-q", "-r", f"ct129:{tree}", f"jump:{dest}"]
    acts: dict[str, Callable[[], Told]] = {
        "scp -3 -r": lambda: bench.told_nothing(scp),
        "relay path": lambda: bench.relay("path", f"ct129:{tree}", f"jump:{dest}"),
    }
    arms = [Arm(name, size_bytes, act, check, lambda: bench.remove("jump", dest)) for name, act in acts.items()]
    result = bench.take_turns(*arms)
    faster = result.seconds("scp -3 -r") / result.seconds("relay path")
    result.claims[f"{faster:.1f} x scp -3 -r; wanted {SMALL_RATIO}"] = faster >= SMALL_RATIO
    bench.remove("ct129", tree)
    return result


def memory(bench: Bench) -> Result:
    """Of this machine, while 1 GiB is relayed: the most that the command had, and its ssh children."""
    num_mib = 1024
    bench.warm("ct129", "jump")
    bench.make_checkpoint("ct129", "big", num_mib)
    arm = bench.ours("relay ckpt", "big", num_mib, "ct129", "jump")
    most: list[dict[int, tuple[str, int]]] = []

    def act() -> Told:
        process = bench.operator.start_cli("relay", "ckpt", "big", "--from", "ct129", "--to", "jump", "--json")
        seen: dict[int, tuple[str, int]] = {}
        while process.poll() is None:
            for pid in (process.pid, *below(process.pid)):
                seen.update(high_water(pid))
            time.sleep(0.05)
        told = json.loads(process.communicate()[0])
        bench.operator.end_started()
        most.append({pid: (("dflashctl" if pid == process.pid else name), kib) for pid, (name, kib) in seen.items()})
        return Told(moving_s=told["elapsed_s"], sent_bytes=told["sent_bytes"])

    result = bench.take_turns(Arm(arm.name, arm.size_bytes, act, arm.check, arm.clean))
    own_bytes = max(kib * 1024 for seen in most for name, kib in seen.values() if name == "dflashctl")
    children = [[kib * 1024 for name, kib in seen.values() if name != "dflashctl"] for seen in most]
    in_all_bytes = max(sum(sizes) for sizes in children) + own_bytes
    num, one = max(len(sizes) for sizes in children), max(max(sizes) for sizes in children)
    result.remarks.append(f"{num} children (ssh), the largest {one / 1e6:.0f} MB; at their peaks together with the "
                          f"command {in_all_bytes / 1e6:.0f} MB, shared pages counted for each")  # fmt: skip
    text = f"peak memory of the command {own_bytes / 1e6:.0f} MB, with its children {in_all_bytes / 1e6:.0f} MB; "
    result.claims[f"{text}allowed {MOST_MEMORY_BYTES / 1e6:.0f} MB"] = in_all_bytes <= MOST_MEMORY_BYTES
    bench.remove("ct129", f"{bench.workdir('ct129')}/runs")
    return result


def training(bench: Bench) -> Result:
    """Checkpoints of a real run, one after the other: the demo's drafter, in bf16 (as on a GPU) and in fp32."""
    result = Result()
    bench.warm("ct129", "jump")
    for dtype in ("bfloat16", "float32"):
        steps = train(bench, dtype)
        told = {step: relay_step(bench, dtype, step) for step in steps}
        shares = {step: sent / size for step, (sent, size) in told.items()}
        text = ", ".join(f"step {step}: {share:.3f}" for step, share in shares.items())
        size_bytes = told[steps[-1]][1]
        result.remarks.append(f"{dtype}, {size_bytes / 1e6:.2f} MB each, sent/size: {text}")
        later = steps[1:]
        share = sum(told[step][0] for step in later) / sum(told[step][1] for step in later)
        if dtype == "bfloat16":
            result.claims[f"{dtype}: {share:.3f} of the size sent after the first; wanted {MOST_SENT}"] = (
                share <= MOST_SENT
            )
        else:
            result.remarks.append(f"{dtype}: {share:.3f} of the size sent after the first")
    return result


SCENARIOS: dict[str, Callable[[Bench], Result]] = {
    "unlimited": unlimited,
    "gigabit": gigabit,
    "distant": distant,
    "small": small,
    "memory": memory,
    "training": training,
}


def train(bench: Bench, dtype: str) -> list[int]:
    """Trains here, and puts the run on ct129. Gives its steps with a checkpoint."""
    assets, home = Path(dflashctl.__file__).parent / "assets", bench.operator.home
    data = {"target": str(assets / "demo_target"), "input": str(assets / "demo_data/responses-train.jsonl.gz")}
    spec = {
        "target": str(assets / "demo_target"),
        "dataset": "dataset",
        "num_steps": STEPS,
        "device": "cpu",
        "dtype": dtype,
        "drafter": {
            "tap_layers": [0, 1, 2],
            "block_size": 8,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 64,
        },
        "batch": {"tokens_per_batch": 512, "max_length_tokens": 512},
        "checkpoint": {"every_steps": EVERY_STEPS, "keep": 100},
    }
    config = home / "run.yaml"
    config.write_text(yaml.safe_dump({"data": {"tokenize": data}, "train": spec}))
    ours = [sys.executable, "-m", "dflashctl"]
    if not (home / "dataset").exists():
        bench.run([*ours, "data", "tokenize", "-c", str(config), "--output", "dataset"])
    bench.run([*ours, "train", "start", "-c", str(config), "--run-id", dtype])
    place = home / "dflashctl-work/runs" / dtype / "checkpoints"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(place, "checkpoints")
    there = f"{bench.workdir('ct129')}/runs/{dtype}"
    bench.lab.hosts["ct129"].exec(f"mkdir -p {there} && tar -x -C {there}", stdin=packed.getvalue())
    return sorted(int(folder.name.removeprefix("step-")) for folder in place.glob("step-*"))


def relay_step(bench: Bench, run: str, step: int) -> tuple[int, int]:
    """Bytes sent, and of the files."""
    words = ["relay", "ckpt", f"{run}@{step}", "--from", "ct129", "--to", "jump", "--encode", "always", "--json"]
    told = json.loads(bench.run([sys.executable, "-m", "dflashctl", *words]).out)
    ends = [bench.sha256(host, bench.weights(host, run, step)) for host in ("ct129", "jump")]
    if ends[0] != ends[1]:
        raise ValueError(f"{run}@{step} did not come as it was sent")
    return told["sent_bytes"], told["total_bytes"]


# ---- measured


def cpu_seconds() -> float:
    """Of all processes of this machine since its boot."""
    values = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")


def below(pid: int) -> list[int]:
    """Children of any thread, and theirs."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(word) for word in children.read_text().split()]
        except OSError:
            continue
        for child in pids:
            found += [child, *below(child)]
    return found


def high_water(pid: int) -> dict[int, tuple[str, int]]:
    """Its name and the most KiB that it ever had; nothing if it has ended."""
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return {}
    return {pid: (lines["Name"].strip(), int(lines["VmHWM"].split()[0]))} if "VmHWM" in lines else {}


def digest_of_tree(host: Host, folder: str) -> str:
    text = 'cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum'
    return host.exec(["sh", "-c", text, "sh", folder], timeout_s=LIMIT_S).out


def cipher(bench: Bench, *options: str) -> str:
    told = bench.operator.run(["ssh", "-v", "-F", bench.config, *options, "ct129", "true"]).err
    names = [line.split("cipher: ")[1].split()[0] for line in told.splitlines() if "server->client cipher: " in line]
    return names[-1] if names else "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", metavar="SCENARIO", nargs="+", choices=SCENARIOS, help=", ".join(SCENARIOS))
    parser.add_argument("--json", type=Path, help="write all samples here")
    arguments = parser.parse_args()
    allowed = means()
    print(f"{describe_machine()}; {allowed}; {arguments.rounds} rounds")
    if allowed.mode != "namespaces":
        print("links of their own need namespaces, and so root")
        return 2
    shm = Path("/dev/shm")
    results = {}
    with Lab(allowed.mode) as lab, lab.in_operator(), ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory(dir=shm if shm.is_dir() and is_spool else None))
                   for is_spool in (False, True)]  # fmt: skip
        bench = Bench(lab, Path(folders[0]), Path(folders[1]), arguments.rounds)
        print(f"ciphers: ssh and scp {cipher(bench)}; relay {cipher(bench, '-c', ','.join(CIPHERS))}", flush=True)
        for name in arguments.only or SCENARIOS:
            print(f"\n{name}: {SCENARIOS[name].__doc__}", flush=True)
            results[name] = result = SCENARIOS[name](bench)
            print("\n".join([*result.rows(), *(f"  {remark}" for remark in result.remarks)]))
            for claim, holds in result.claims.items():
                print(f"  {'holds' if holds else 'MISSED'}: {claim}", flush=True)
    if arguments.json is not None:
        told = {"machine": str(describe_machine()), "scenarios": {n: asdict(r) for n, r in results.items()}}
        arguments.json.write_text(json.dumps(told, indent=1))
    return 0 if all(holds for result in results.values() for holds in result.claims.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
