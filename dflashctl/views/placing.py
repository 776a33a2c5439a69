"""Where the stages of a planned run will be, in words."""

from dflashctl.stages.train.placing import Placing
from dflashctl.views.palette import binary
from dflashctl_remote.spec.placement import COLOCATED


def placing_rows(placing: Placing) -> tuple[tuple[str, str], ...]:
    """A name and what it is, a row each."""
    where = _colocated(placing) if placing.layout == COLOCATED else _split(placing)
    shares = placing.num_hosts * placing.num_processes * placing.num_drafters
    if shares > 1:
        where += f"; each takes {_count(placing.batches_per_share, 'batch', 'batches')} of a step"
    memory = (
        f"estimated {binary(placing.estimated_drafter_bytes)} for a drafter's weights, gradients and optimizer, "
        f"{binary(placing.estimated_states_bytes)} for hidden states on their way; not counted: the target, and what a "
        "step computes"
    )
    return (("placement", where), ("in flight", _in_flight(placing)), ("memory", memory))


def _colocated(placing: Placing) -> str:
    if placing.num_hosts * placing.num_processes == 1:
        return "colocated: target and drafter on one device"
    processes = (
        f"{_count(placing.num_processes, 'process', 'processes')}, target and drafter in each on a GPU of its own"
    )
    if placing.num_hosts == 1:
        return f"colocated: {processes}"
    return f"colocated on {placing.num_hosts} hosts, by torchrun on each (docs/scaling.md): {processes}"


def _split(placing: Placing) -> str:
    targets = _count(placing.num_targets, "target stage", "target stages") + _on(placing.target_gpus)
    drafters = _count(placing.num_drafters, "drafter", "drafters") + _on(placing.drafter_gpus)
    return f"{placing.layout}: {targets}, {drafters}"


def _on(gpus: tuple[int, ...]) -> str:
    """Numbers among the run's own GPUs, each once."""
    return f" on GPU {', '.join(map(str, dict.fromkeys(gpus)))}" if gpus else ""


def _in_flight(placing: Placing) -> str:
    if placing.states_ahead == 0:
        return "one batch: the stages take turns"
    rows = _count(placing.rows_ahead, "packed row", "packed rows")
    batches = _count(placing.states_ahead, "batch", "batches")
    return f"up to {rows} and {batches} of hidden states wait between the stages"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
