"""The two arms prompt by prompt: speed-up, acceptance, and whether they say the same."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dflashctl.engines.base import SpecCounters
from dflashctl.stages.bench import figures
from dflashctl.stages.bench.account import Arm, RequestRecord
from dflashctl.stages.bench.evidence import Evidence, counted
from dflashctl.stages.bench.plan import SINGLE
from dflashctl.stages.bench.report import (
    CategoryFigures,
    Difference,
    Equality,
    PromptFigures,
    Repetition,
    StepCost,
)
from dflashctl_remote.evaluate.repetition import repeated_mask

NO_CATEGORY = "none"


def prompt_figures(evidence: Evidence, category_of: Mapping[str, str | None]) -> tuple[PromptFigures, ...]:
    """At one request at a time; empty if that was not asked for."""
    tpots: dict[str, dict[Arm, dict[int, float]]] = {}
    for request in (r for r in evidence.requests if r.load == SINGLE and r.error is None):
        of_prompt = tpots.setdefault(request.prompt_id, {"baseline": {}, "speculative": {}})
        tpot = figures.tpot_s(request)
        if tpot is not None:
            of_prompt[request.arm][request.repeat] = tpot
    taus = _counters_by_prompt(evidence)
    return tuple(
        _prompt(prompt_id, category_of.get(prompt_id), arms, taus.get(prompt_id, []))
        for prompt_id, arms in tpots.items()
    )


def category_figures(prompts: Sequence[PromptFigures], evidence: Evidence) -> tuple[CategoryFigures, ...]:
    """Empty where the prompts have no categories."""
    names = sorted({prompt.category or NO_CATEGORY for prompt in prompts})
    if names in ([], [NO_CATEGORY]):
        return ()
    taus = _counters_by_prompt(evidence)
    out = []
    for name in names:
        members = [prompt for prompt in prompts if (prompt.category or NO_CATEGORY) == name]
        speedups = [prompt.speedup for prompt in members if prompt.speedup is not None]
        parts = [part for prompt in members for part in taus.get(prompt.prompt_id, [])]
        out.append(
            CategoryFigures(
                category=name,
                num_prompts=len(members),
                speedup=figures.geometric_mean(speedups) if speedups else None,
                tau=figures.pooled_tau(parts),
            )
        )
    return tuple(out)


def equality(evidence: Evidence) -> Equality | None:
    """None if no prompt was answered by both arms. A text's index counts characters."""
    baseline = {request.key[1:]: request for request in evidence.answered("baseline")}
    pairs = [
        (baseline[request.key[1:]], request)
        for request in evidence.answered("speculative")
        if request.key[1:] in baseline
    ]
    if not pairs:
        return None
    firsts: dict[str, RequestRecord] = {}
    again = []
    for request in baseline.values():
        first = firsts.setdefault(request.prompt_id, request)
        if first is not request:
            again.append((first, request))
    has_ids = all(one.token_ids is not None for pair in [*pairs, *again] for one in pair)
    differences = [
        Difference(load=spec.load, repeat=spec.repeat, prompt_id=spec.prompt_id, index=index)
        for base, spec in pairs
        if (index := _first_difference(base, spec, has_ids)) is not None
    ]
    return Equality(
        by="token ids" if has_ids else "text",
        num_compared=len(pairs),
        num_equal=len(pairs) - len(differences),
        differences=tuple(differences),
        num_baseline_compared=len(again),
        num_baseline_equal=sum(_first_difference(one, other, has_ids) is None for one, other in again),
    )


def repetition(evidence: Evidence) -> Repetition | None:
    """None without token ids. Tau without repeats needs to know what each step gave: a chunk each, if the numbers of
    chunks and of verify steps agree.
    """
    answers = [request for request in evidence.answered("speculative") if request.token_ids]
    num_tokens = sum(len(request.token_ids or ()) for request in answers)
    if not num_tokens:
        return None
    masks = [repeated_mask(request.token_ids or ()) for request in answers]
    return Repetition(
        repeated_token_share=sum(sum(mask) for mask in masks) / num_tokens,
        tau_without_repeats=_tau_without_repeats(evidence),
    )


def step_cost(evidence: Evidence) -> StepCost | None:
    """At one request at a time, over turns that were answered and counted; None if there is none in one of the arms."""
    spec_s, num_steps = 0.0, 0
    for turn in evidence.turns_of("speculative", SINGLE):
        seen = counted(turn)
        if seen is None or not evidence.is_clean(turn):
            continue
        seconds = [figures.decode_s(request) for request in evidence.requests_of(turn)]
        spec_s += sum(one for one in seconds if one is not None)
        num_steps += seen.num_drafts
    base = [(figures.decode_s(r), figures.num_decoded_tokens(r)) for r in evidence.answered("baseline", SINGLE)]
    base_s = sum(seconds for seconds, num in base if seconds is not None and num is not None)
    num_tokens = sum(num for seconds, num in base if seconds is not None and num is not None)
    cost = figures.step_cost(spec_s, num_steps, base_s, num_tokens)
    if cost is None:
        return None
    return StepCost(
        verify_step_s=spec_s / num_steps, plain_step_s=base_s / num_tokens, plain_steps_per_verify_step=cost
    )


def _prompt(
    prompt_id: str, category: str | None, arms: Mapping[Arm, Mapping[int, float]], parts: Sequence[SpecCounters]
) -> PromptFigures:
    base, spec = arms["baseline"], arms["speculative"]
    ratios = [base[repeat] / spec[repeat] for repeat in base if repeat in spec]
    seen = figures.pooled(parts)
    return PromptFigures(
        prompt_id=prompt_id,
        category=category,
        tpot_baseline_s=figures.geometric_mean(list(base.values())) if base else None,
        tpot_speculative_s=figures.geometric_mean(list(spec.values())) if spec else None,
        speedup=figures.geometric_mean(ratios) if ratios else None,
        tau=seen.tau,
        num_verify_steps=seen.num_drafts,
    )


def _counters_by_prompt(evidence: Evidence) -> dict[str, list[SpecCounters]]:
    """One request at a time is one prompt a turn: its counters are that prompt's."""
    out: dict[str, list[SpecCounters]] = defaultdict(list)
    for turn in evidence.turns_of("speculative", SINGLE):
        seen = counted(turn)
        if seen is not None and len(turn.prompt_ids) == 1:
            out[turn.prompt_ids[0]].append(seen)
    return out


def _first_difference(one: RequestRecord, other: RequestRecord, has_ids: bool) -> int | None:
    if has_ids:
        return figures.first_difference(one.token_ids or (), other.token_ids or ())
    return figures.first_difference(one.text, other.text)


def _tau_without_repeats(evidence: Evidence) -> float | None:
    """As `eval run` has it: tokens a step, over the steps that gave no repeated token."""
    num_steps = num_tokens = num_seen = num_chunks = 0
    for turn in evidence.turns_of("speculative", SINGLE):
        seen = counted(turn)
        if seen is None or not evidence.is_clean(turn):
            continue
        num_seen += seen.num_drafts
        for request in evidence.requests_of(turn):
            if request.token_ids is None or request.chunk_sizes_tokens is None:
                return None
            mask = repeated_mask(request.token_ids)
            position = figures.num_first_tokens(request)
            for size in request.chunk_sizes_tokens[1:]:
                num_chunks += 1
                if not any(mask[position : position + size]):
                    num_steps += 1
                    num_tokens += size
                position += size
    return num_tokens / num_steps if num_steps and num_chunks == num_seen else None
