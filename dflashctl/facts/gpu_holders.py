"""The GPUs of a host and who holds them, as `hosts check` shows them. Pure: gpu_holders.sh asks.

What a start may take is `gpus.py`'s business. Processes of others are told, and never touched.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dflashctl.facts.doctor import shown
from dflashctl.facts.finding import Finding, Level, Told

IDLE_BYTES = 2**30
"""What a driver and a display may hold of a GPU that nobody works on."""
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Holder:
    """A process that has a GPU open."""

    pid: int
    is_visible: bool
    """False: nvidia-smi names a process that is not in this /proc: another namespace's, or hidden."""
    user: str = ""
    command: str = ""
    run: str = ""
    """Name of the run or server of ours that it belongs to; empty: a stranger."""
    computes: bool = False
    """nvidia-smi says so; else it only has the device open, as daemons have that never use it."""


@dataclass(frozen=True)
class HeldGpu:
    index: str
    uuid: str
    name: str
    total_bytes: int | None
    """None, here and below: the driver does not tell."""
    used_bytes: int | None
    """By whomever."""
    driver: str
    compute_capability: str
    leased_by: str = ""
    """Name of a run of the same work folder."""
    is_lease_live: bool = False
    holders: tuple[Holder, ...] = ()


def read_held_gpus(told: Told) -> tuple[HeldGpu, ...]:
    """Of tell_gpu_holders. Lines that are no row of a table are left out: see `gpu_findings`."""
    leases = {uuid: rest for uuid, _, rest in (line.partition(" ") for line in told.all("lease"))}
    runs = _runs_by_marker(told)
    gpus = []
    for line in told.all("gpu"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) not in (6, 7) or not cells[1].startswith("GPU-"):
            continue
        index, uuid, name, total, used, driver, *capability = cells
        life, _, owner = leases.get(uuid, "").partition(" ")
        gpus.append(
            HeldGpu(
                index=index,
                uuid=uuid,
                name=shown(name),
                total_bytes=_mebibytes(total),
                used_bytes=_mebibytes(used),
                driver="" if driver.startswith("[") else driver,
                compute_capability=capability[0] if capability and not capability[0].startswith("[") else "",
                leased_by=_run_name(owner.partition(" ")[2]) if life else "",
                is_lease_live=life == "live",
                holders=_holders(uuid, told, runs),
            )
        )
    return tuple(gpus)


def gpu_findings(told: Told, gpus: tuple[HeldGpu, ...]) -> Iterator[Finding]:
    """One line a GPU, or one that says why there is none."""
    if told.has("gpu_problem"):
        yield _problem(shown(told.one("gpu_problem")))
    elif not told.has("nvidia_smi"):
        devices = told.all("gpu_device")
        if devices:
            text = f"{len(devices)} devices /dev/nvidia* and no nvidia-smi: neither UUIDs nor memory can be told"
            yield Finding("GPUs", "bad", text, "install the driver's tools, or mount nvidia-smi into the container")
        else:
            yield Finding("GPUs", "note", "none: no nvidia-smi and no /dev/nvidia*; jobs run on the CPU")
    elif not gpus:
        yield Finding(
            "GPUs", "unknown", f"nvidia-smi tells none that can be read: {shown(told.one('gpu')) or 'nothing'}"
        )
    else:
        drivers = ", ".join(sorted({gpu.driver for gpu in gpus if gpu.driver})) or "of a version that it does not tell"
        yield Finding("driver", "ok" if any(gpu.driver for gpu in gpus) else "unknown", f"NVIDIA {drivers}")
    for gpu in gpus:
        level, text = _state(gpu, sees_all=told.one("uid") == "0")
        yield Finding(f"GPU {gpu.index}", level, f"{gpu.name}, {_memory(gpu)}: {text} ({gpu.uuid})")


def _problem(said: str) -> Finding:
    if "version mismatch" in said:
        cure = (
            "the driver was updated under the running kernel module: reboot the machine (a container: match the host)"
        )
    elif said.startswith("exit code 137"):
        # Of `timeout -s KILL`.
        cure = "the driver hangs: look at dmesg for Xid or NVRM lines; mostly only a reboot of the machine helps"
        return Finding("GPUs", "bad", "nvidia-smi gave no answer and was ended", cure)
    elif "Insufficient Permissions" in said:
        cure = "give the user the right to /dev/nvidia* (group video or render)"
    else:
        cure = "run nvidia-smi there, and look at dmesg for Xid or NVRM lines"
    return Finding("GPUs", "bad", f"nvidia-smi fails: {said}", cure)


def _state(gpu: HeldGpu, *, sees_all: bool) -> tuple[Level, str]:
    """Never called free unless it is known that little of it is used and that nobody computes on it."""
    is_idle = gpu.used_bytes is not None and gpu.used_bytes <= IDLE_BYTES
    holders = [holder for holder in gpu.holders if holder.computes or holder.run or not is_idle]
    runs = sorted({holder.run for holder in holders if holder.run})
    strangers = [holder for holder in holders if not holder.run]
    parts = []
    if gpu.leased_by:
        parts.append(f"leased by run {gpu.leased_by}" + ("" if gpu.is_lease_live else ", of which no process is left"))
    parts += [f"held by {run} of ours" for run in runs if run != gpu.leased_by]
    if strangers:
        parts.append(f"held by {', '.join(map(_named, strangers))}")
    elif gpu.used_bytes is None and not holders:
        return "unknown", "; ".join([*parts, "the driver does not tell whether it is used"])
    elif not is_idle and not holders:
        parts.append("held by processes not visible from here")
    if not parts:
        opens = ", ".join(map(_named, gpu.holders))
        free = "free" if sees_all else "free, as far as this user sees"
        return "ok", f"{free} (open in {opens})" if opens else free
    is_ours = gpu.is_lease_live and set(runs) <= {gpu.leased_by} and len(parts) == 1
    return "ok" if is_ours else "note", "; ".join(parts)


def _named(holder: Holder) -> str:
    if not holder.is_visible:
        return f"pid {holder.pid} (not visible from here)"
    return f"pid {holder.pid} of {holder.user} ({holder.command})"


def _memory(gpu: HeldGpu) -> str:
    used = "unknown" if gpu.used_bytes is None else f"{gpu.used_bytes / 2**30:.1f}"
    total = "unknown" if gpu.total_bytes is None else f"{gpu.total_bytes / 2**30:.1f}"
    return f"{used} of {total} GiB used"


def _holders(uuid: str, told: Told, runs: dict[str, str]) -> tuple[Holder, ...]:
    """Those that nvidia-smi names, and those that have its device file open where it is known which that is."""
    rows = [[cell.strip() for cell in line.split(",")] for line in told.all("gpu_app")]
    apps = {int(row[1]) for row in rows if len(row) >= 2 and row[0] == uuid and row[1].isdigit()}
    minors = [line.split() for line in told.all("gpu_minor")]
    numbers = {minor[1] for minor in minors if len(minor) == 2 and minor[0] == uuid}
    opens = {int(pid) for pid, number in (line.split() for line in told.all("gpu_open")) if number in numbers}
    return tuple(_holder(pid, told, runs, computes=pid in apps) for pid in sorted(apps | opens))


def _holder(pid: int, told: Told, runs: dict[str, str], *, computes: bool) -> Holder:
    for line in told.all("process"):
        fields = line.split(" ", 4)
        if fields[0] == str(pid) and len(fields) >= 4:
            run = "" if fields[3] == "-" else runs.get(fields[3], _run_name(fields[3]))
            command = shown(fields[4]) if len(fields) > 4 else "?"
            return Holder(pid, is_visible=True, user=shown(fields[2]), command=command, run=run, computes=computes)
    return Holder(pid, is_visible=False, computes=computes)


def _runs_by_marker(told: Told) -> dict[str, str]:
    fields = [line.split(" ", 3) for line in told.all("lease")]
    return {line[2]: _run_name(line[3]) for line in fields if len(line) == 4 and line[2] != "-"}


def _run_name(folder: str) -> str:
    """A supervised run's marker is a number; that of anything else of ours is its folder."""
    name = shown(folder.rstrip("/").rpartition("/")[2])
    return f"a run ({name[:8]})" if re.fullmatch(r"[0-9a-f]{16,}", name) else name or "a start that wrote down no name"


def _mebibytes(cell: str) -> int | None:
    """None for `[N/A]` and `[Insufficient Permissions]`."""
    return int(cell) * MEBIBYTE if cell.isdigit() else None
