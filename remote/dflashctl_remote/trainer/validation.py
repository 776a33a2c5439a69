"""Validation in a run: the same held-out rows, anchors and prompts each time; loss and accuracies teacher-forced, tau
free-running, and the parity gate between the two.

Changes nothing of the run: no gradient, no generator, no module's mode. Other threads may run the target meanwhile, and
nobody may change the drafter. Axis: T tokens.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dflashctl_remote.data.chat import ChatTokenizer, tokenizer_sha256
from dflashctl_remote.data.loader import BatchPlan
from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.data.split import choose, first_prompt, split, with_prompts_of
from dflashctl_remote.drafter.anchors import Anchors, sample_anchors
from dflashctl_remote.drafter.model import Drafter, FrozenEnds
from dflashctl_remote.drafter.objective import AttentionName
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.evaluate.causes import Gate, check_parity
from dflashctl_remote.evaluate.decode import Decoded, speculative_greedy
from dflashctl_remote.evaluate.interval import tau_interval
from dflashctl_remote.evaluate.lookup import accepted_per_step, own_text_draft
from dflashctl_remote.evaluate.parity import AsStepped, text_of
from dflashctl_remote.evaluate.repetition import repeated_share
from dflashctl_remote.evaluate.report import pooled_tau, steps_without_repeats
from dflashctl_remote.evaluate.teacher_forced import Totals, score
from dflashctl_remote.evaluate.template import TemplateFinding, compare_template
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import Validated
from dflashctl_remote.spec.validation import ValidationSpec
from dflashctl_remote.target.load import Target


class Abandoned(Exception):
    """A stop was asked for in the middle of a validation."""


class Validatable(Protocol):
    """What a run lends to its validations."""

    @property
    def drafter(self) -> Drafter: ...

    @property
    def target(self) -> Target: ...

    @property
    def ends(self) -> FrozenEnds:
        """The target's embedding and head on the drafter's device; the target itself where both are on one."""

    @property
    def attention(self) -> AttentionName: ...


@dataclass(frozen=True)
class HeldOut:
    """What is validated on."""

    spec: ValidationSpec
    rows: tuple[PackedRow, ...]
    anchors: tuple[Anchors, ...]
    """Of each row."""
    prompts: tuple[tuple[int, ...], ...]
    excluded: np.ndarray
    """Documents of the training dataset that must not be trained on."""
    template: TemplateFinding | None
    notices: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.rows


def hold_out(
    spec: ValidationSpec,
    dataset: Dataset,
    target: Path,
    *,
    tokens_per_batch: int,
    max_length_tokens: int,
    num_anchors: int,
    max_positions: int,
) -> HeldOut:
    """Choose what is validated on; rows and anchors have the shapes of the training's.

    `target` is the target's folder, `max_positions` what it takes. Raises BadInput for a validation dataset of another
    tokenizer.
    """
    shortest = min(max_length_tokens, tokens_per_batch)
    notices: list[str] = []
    if spec.dataset is not None:
        source = _open(spec.dataset, target)
        documents = choose(source, max_documents=spec.num_documents, max_length_tokens=shortest, seed=spec.seed)
        excluded = with_prompts_of(dataset, source, documents)
        if len(excluded):
            notices.append(f"{len(excluded)} documents with prompts of {spec.dataset} are not trained on")
    else:
        source = dataset
        parts = split(
            dataset,
            share=spec.held_out_share,
            max_documents=spec.num_documents,
            max_length_tokens=shortest,
            seed=spec.seed,
        )
        documents, excluded = parts.held_out, parts.excluded
        if len(documents):
            notices.append(
                f"{len(documents)} of {len(dataset)} documents are held out for validation, {len(excluded)} with "
                "those of the same prompts"
            )
    if not len(documents):
        notices.append("nothing is validated: no document is held out (validation.held_out_share, validation.dataset)")
        return HeldOut(spec, (), (), (), excluded, None, tuple(notices))
    others = np.setdiff1d(np.arange(len(source)), documents)
    plan = BatchPlan(
        source, tokens_per_batch=tokens_per_batch, max_length_tokens=max_length_tokens, seed=spec.seed, excluded=others
    )
    rows = tuple(plan.row(batch) for batch in range(min(spec.num_rows, plan.packing().num_rows)))
    anchors = tuple(sample_anchors(row, num_anchors=num_anchors, seed=spec.seed, batch=i) for i, row in enumerate(rows))
    prompts = dict.fromkeys(first_prompt(source, int(index)) for index in documents)
    fitting = [prompt for prompt in prompts if prompt and len(prompt) + spec.max_new_tokens <= max_positions]
    template = _template(target, source)
    if template is None:
        notices.append(f"{target} has no chat template that takes one message: the parity gate leaves templates out")
    elif not template.is_alike:
        notices.append(template.says)
    return HeldOut(spec, rows, anchors, tuple(fitting[: spec.num_prompts]), excluded, template, tuple(notices))


@torch.no_grad()
def validate(
    run: Validatable, held_out: HeldOut, *, step: int, is_asked_to_stop: Callable[[], bool] = lambda: False
) -> Validated:
    """One validation of the drafter as it is.

    Raises Abandoned at the next row or prompt once `is_asked_to_stop`: a stop has a grace, and this may take long.
    """
    started_s = time.perf_counter()
    path = AsStepped(run.drafter, run.ends, run.target, run.attention)
    totals = Totals(run.drafter.config.block_size)
    for row, anchors in zip(held_out.rows, held_out.anchors, strict=True):
        score(path, row, anchors, totals)
        _go_on(is_asked_to_stop)
    size = run.drafter.config.block_size
    answers: list[Decoded] = []
    for prompt in held_out.prompts:
        _go_on(is_asked_to_stop)
        answers.append(_decode(run, prompt, held_out.spec.max_new_tokens))
    steps = [answer.accepted_per_step for answer in answers]
    gate = Gate(
        run.drafter,
        run.ends,
        run.target,
        path,
        row_tokens=len(held_out.rows[0].input_ids_T),
        num_anchors=len(held_out.anchors[0]),
    )
    texts = [
        text_of(prompt, answer.tokens, answer.accepted_per_step, answer.proposals_per_step, block_size=size)
        for prompt, answer in zip(held_out.prompts, answers, strict=True)
    ]
    tau, interval = pooled_tau(steps), tau_interval(steps)
    plain = pooled_tau(steps_without_repeats(a.tokens, a.accepted_per_step) for a in answers)
    lookup = pooled_tau(
        accepted_per_step(own_text_draft, prompt, answer.tokens, block_size=size)
        for prompt, answer in zip(held_out.prompts, answers, strict=True)
    )
    return Validated(
        step=step,
        loss=totals.loss,
        accuracy_by_slot=totals.accuracy_by_slot,
        num_rows=len(held_out.rows),
        tau=tau.tau if tau.num_verify_steps else None,
        tau_low=interval[0] if interval else None,
        tau_high=interval[1] if interval else None,
        tau_without_repeats=plain.tau if plain.num_verify_steps else None,
        tau_of_lookup=lookup.tau if lookup.num_verify_steps else None,
        repeated_token_share=repeated_share([answer.tokens for answer in answers]),
        num_prompts=len(answers),
        num_verify_steps=tau.num_verify_steps,
        parity=check_parity(gate, texts, template=held_out.template),
        seconds_s=time.perf_counter() - started_s,
    )


def is_due(
    spec: ValidationSpec,
    *,
    step: int,
    num_steps: int,
    checkpoint_every_steps: int,
    spent_s: float,
    last_s: float,
    elapsed_s: float,
) -> bool:
    """Whether to validate after this step.

    `spent_s`: by validations so far, `last_s` by the last of them, `elapsed_s` since training began, theirs included.
    """
    if step == num_steps:
        return True
    if spec.every_steps is not None:
        return step % spec.every_steps == 0
    return step % checkpoint_every_steps == 0 and spent_s + last_s <= spec.max_time_share * elapsed_s


def _go_on(is_asked_to_stop: Callable[[], bool]) -> None:
    if is_asked_to_stop():
        raise Abandoned


def _decode(run: Validatable, prompt: tuple[int, ...], max_new_tokens: int) -> Decoded:
    return speculative_greedy(
        run.target,
        _OnItsDevice(run.drafter, run.ends),
        prompt,
        tap_layers=run.drafter.config.tap_layers,
        block_size=run.drafter.config.block_size,
        max_new_tokens=max_new_tokens,
        eos_token_ids=frozenset(run.target.shape.eos_token_ids),
    )


class _OnItsDevice(DraftSession):
    """Takes the target's states to the drafter's device, which may be another GPU."""

    def __init__(self, drafter: Drafter, ends: FrozenEnds) -> None:
        super().__init__(drafter, ends)
        self._device = drafter.fc.weight.device

    def extend(self, taps_TF: Tensor) -> None:
        super().extend(taps_TF.to(self._device))


def _open(folder: str, target: Path) -> Dataset:
    dataset = Dataset.open(Path(folder))
    if dataset.info.tokenizer_sha256 != tokenizer_sha256(target):
        raise BadInput(
            f"{folder} was made with the tokenizer of {dataset.info.target}, not of {target}",
            hint="run `dflashctl data tokenize` for this target, or leave validation.dataset out",
        )
    return dataset


def _template(target: Path, dataset: Dataset) -> TemplateFinding | None:
    """None where the target has no chat template."""
    try:
        chat = ChatTokenizer.open(target)
    except BadInput:
        return None
    return compare_template(chat, dataset)
