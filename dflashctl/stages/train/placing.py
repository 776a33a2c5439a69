"""Where the stages of a run will be, and what its drafters hold there: for the plan. Pure."""

from dataclasses import dataclass

from dflashctl.errors import ConfigError
from dflashctl_remote.spec.placement import COLOCATED, PlacementSpec, devices_of
from dflashctl_remote.spec.train import TrainSpec


@dataclass(frozen=True)
class Placing:
    layout: str
    num_hosts: int
    num_processes: int
    """Of each host."""
    target_gpus: tuple[int, ...]
    """Of each target stage, counted among the run's own GPUs; none: not known which, or on a CPU."""
    drafter_gpus: tuple[int, ...]
    num_targets: int
    """Of each process."""
    num_drafters: int
    batches_per_share: int
    """Of an optimizer step, that each process or drafter takes."""
    rows_ahead: int
    states_ahead: int
    estimated_drafter_bytes: int
    """Of each drafter: weights, gradients and optimizer, which the first alone has where there are several."""
    estimated_states_bytes: int
    """Hidden states of all batches that can be between the target stages and the drafters of a process."""


def place(
    spec: TrainSpec, *, num_gpus: int | None, num_drafter_parameters: int, num_taps: int, width: int, is_bf16: bool
) -> Placing:
    """`num_gpus`: that the run is given on each host; None: not known before it starts."""
    placement = spec.placement
    targets: tuple[int, ...] = ()
    drafters: tuple[int, ...] = ()
    if num_gpus and placement.layout != COLOCATED:
        targets, drafters = devices_of(placement, num_gpus)
    # A batch in the hand of each target stage and of each drafter, beside those that wait.
    num_batches = placement.states_ahead + placement.num_targets + placement.num_drafters
    state_bytes = num_taps * width * (2 if is_bf16 else 4)
    return Placing(
        layout=placement.layout,
        num_hosts=placement.nodes,
        num_processes=placement.ranks,
        target_gpus=targets,
        drafter_gpus=drafters,
        num_targets=placement.num_targets,
        num_drafters=placement.num_drafters,
        batches_per_share=spec.optim.accumulation // placement.num_shares,
        rows_ahead=placement.rows_ahead,
        states_ahead=placement.states_ahead,
        # bf16: weights and gradients, fp32 masters and two moments. fp32: weights are their own masters.
        estimated_drafter_bytes=num_drafter_parameters * 16,
        estimated_states_bytes=num_batches * spec.batch.tokens_per_batch * state_bytes,
    )


def refuse_too_few(placement: PlacementSpec, num_given: int) -> None:
    """GPUs that were named for a run must be enough for its placement. Raises ConfigError."""
    if placement.layout == COLOCATED and num_given < placement.ranks:
        raise ConfigError(
            f"{num_given} of the GPUs that {placement.ranks} ranks need were given with --gpu",
            hint=f"--gpu for each of {placement.ranks}, none for those that are free, or placement.ranks={num_given}",
        )
    if placement.layout != COLOCATED:
        try:
            devices_of(placement, num_given)
        except ValueError as error:
            raise ConfigError(
                f"{error}, given with --gpu", hint="give more of them, one for all stages, or another placement.layout"
            ) from error


def idle_gpus(placement: PlacementSpec, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of GPUs that the run has for itself and its placement does nothing with."""
    num_idle = len(gpus) - placement.num_gpus
    if num_idle <= 0:
        return ()
    what = "1 GPU is" if num_idle == 1 else f"{num_idle} GPUs are"
    which = f"ranks {placement.ranks}" if placement.layout == COLOCATED else f"layout {placement.layout}"
    return (f"{what} leased and idle: {which} uses {placement.num_gpus} of {len(gpus)}",)


def refuse_several_hosts(placement: PlacementSpec) -> None:
    """Before a start or a resume by these commands. Raises ConfigError."""
    if placement.nodes > 1:
        raise ConfigError(
            f"a run on {placement.nodes} hosts is started by torchrun on each of them, and this command starts one",
            hint="docs/scaling.md, `How a run grows`, has the command; --dry-run shows the run.json that it needs",
        )
