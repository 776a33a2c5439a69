"""Which GPUs a run is given. Pure."""

from dflashctl.errors import ConfigError
from dflashctl.facts.gpus import Gpu, Gpus

IDLE_BYTES = 2**30
"""What a driver and a display may hold of a GPU that nobody works on."""


def choose_gpus(host: str, gpus: Gpus, *, wanted: tuple[str, ...], num_wanted: int) -> tuple[str, ...]:
    """UUIDs: those that were asked for by UUID or index, else so many that nobody uses; none on a host without.

    Raises ConfigError for one that there is not, that another run has leased, or if too few are free.
    """
    if gpus.problem and (wanted or num_wanted):
        raise ConfigError(
            f"the GPUs of {host} could not be asked for: {gpus.problem}", hint=f"dflashctl hosts check {host}"
        )
    if wanted:
        return tuple(_named(host, gpus, name) for name in wanted)
    if not num_wanted or not gpus.all:
        return ()
    free = [gpu for gpu in gpus.all if _why_not(gpu) is None]
    if len(free) < num_wanted:
        reasons = "; ".join(f"{gpu.index}: {why}" for gpu in gpus.all if (why := _why_not(gpu)) is not None)
        what = "no GPU" if not free else f"only {len(free)} of {num_wanted} GPUs"
        raise ConfigError(
            f"{what} of {host} {'are' if free else 'is'} free ({reasons or 'it has no more'})",
            hint="--gpu UUID takes one all the same, if no run has leased it",
        )
    return tuple(gpu.uuid for gpu in free[:num_wanted])


def busy_gpus(host: str, gpus: Gpus, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of those that were asked for although somebody else uses them."""
    busy = [gpu for gpu in gpus.all if gpu.uuid in chosen and (gpu.used_bytes or 0) > IDLE_BYTES]
    return tuple(f"GPU {gpu.uuid} of {host}: {_why_not(gpu)}" for gpu in busy)


def _named(host: str, gpus: Gpus, name: str) -> str:
    found = [gpu for gpu in gpus.all if name in (gpu.uuid, gpu.index)]
    if not found:
        known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus.all) or "none"
        raise ConfigError(f"{host} has no GPU {name}; it has: {known}")
    if found[0].leased_by is not None:
        raise ConfigError(
            f"GPU {found[0].uuid} of {host} is leased by run {found[0].leased_by}",
            hint=f"dflashctl train stop {found[0].leased_by} --host {host}, or another --gpu",
        )
    return found[0].uuid


def _why_not(gpu: Gpu) -> str | None:
    if gpu.leased_by is not None:
        return f"leased by run {gpu.leased_by}"
    if gpu.used_bytes is None:
        return "the driver does not tell whether it is used"
    if gpu.used_bytes > IDLE_BYTES:
        return f"{gpu.used_bytes / 2**30:.1f} GiB in use by a process that is not ours"
    return None
