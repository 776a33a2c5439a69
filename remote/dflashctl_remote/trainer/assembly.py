"""The stages of a run put together from its parts: what loads and sees, how states travel, what drafts."""

from dataclasses import replace

import torch

from dflashctl_remote.drafter.noise import context_noise
from dflashctl_remote.drafter.step import StepSums, drafter_step
from dflashctl_remote.spec.placement import PlacementSpec
from dflashctl_remote.trainer.batch import HiddenBatch
from dflashctl_remote.trainer.checkpoint import TrainerState
from dflashctl_remote.trainer.passage import Hand, Passage, SameGpu, ThroughHost
from dflashctl_remote.trainer.replicas import Draft
from dflashctl_remote.trainer.setup import Parts
from dflashctl_remote.trainer.source import InLine, InTurns, Pause, Source, Work


def open_source(parts: Parts, first_batch: int, *, pause: Pause = lambda stage, batch: None) -> Source:
    """The stages before the drafters, not started yet: a context."""
    spec = parts.spec
    work = Work(
        spec,
        parts.plan,
        parts.order,
        num_anchors=parts.num_anchors,
        tap_layers=parts.config.tap_layers,
        block_size=parts.config.block_size,
    )
    if spec.placement.states_ahead == 0:
        return InTurns(work, parts.targets[0], first_batch)
    return InLine(
        work,
        parts.targets,
        _passage(parts),
        first_batch,
        rows_ahead=spec.placement.rows_ahead,
        states_ahead=spec.placement.states_ahead,
        num_threads=spec.num_threads,
        pause=pause,
    )


def draft(parts: Parts) -> Draft:
    """What a drafter does with a batch: forward and backward; the gradients are added to those that are there."""
    spec = parts.spec

    def step(number: int, batch: HiddenBatch) -> StepSums:
        return drafter_step(
            parts.drafters[number],
            parts.ends[number],
            batch,
            spec.objective,
            attention=parts.attention,
            noise=context_noise(
                spec.objective,
                seed=spec.seed,
                sequence=batch.batch,
                num_batches=spec.num_steps * spec.optim.accumulation,
            ),
        )

    return step


def warm_up(parts: Parts, state: TrainerState) -> None:
    """One batch through everything from this one thread, and its gradients dropped.

    Kernels are compiled and tuned here, alone: two threads that tune at once measure one another.
    """
    spec = parts.spec.model_copy(update={"placement": PlacementSpec(states_ahead=0)})
    for number, target in enumerate(parts.targets):
        one = replace(parts, record=parts.record.model_copy(update={"train": spec}), targets=(target,))
        with open_source(one, state.batch) as source:
            batch = source.next()
            if number < len(parts.drafters) and batch.taps_TF.device == parts.drafters[number].fc.weight.device:
                draft(parts)(number, batch)
    for drafter in parts.drafters:
        drafter.zero_grad(set_to_none=True)
    if parts.device.type == "cuda":
        torch.cuda.synchronize()


def _passage(parts: Parts) -> Passage:
    targets = {target.device for target in parts.targets}
    drafters = [drafter.fc.weight.device for drafter in parts.drafters]
    if parts.device.type != "cuda":
        return Hand()
    if targets == set(drafters):
        return SameGpu(parts.device)
    placement = parts.spec.placement
    return ThroughHost(
        dict(enumerate(drafters)),
        num_slots=placement.states_ahead + placement.num_targets + 2,
        num_tokens=parts.spec.batch.tokens_per_batch,
        width=len(parts.config.tap_layers) * parts.config.hidden_size,
        dtype=parts.targets[0].dtype,
    )
