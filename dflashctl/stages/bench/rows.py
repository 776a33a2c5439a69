"""The table: one row an arm and load."""

from collections.abc import Sequence

from dflashctl.stages.bench import figures
from dflashctl.stages.bench.account import ARMS, Arm, TurnRecord
from dflashctl.stages.bench.evidence import Evidence
from dflashctl.stages.bench.figures import Interval
from dflashctl.stages.bench.plan import Load
from dflashctl.stages.bench.report import Quantiles, Row

CURVE_AT = tuple(step / 20 for step in range(21))
Pace = tuple[int, float]
"""Tokens, and the seconds that they took."""


def rows(evidence: Evidence, loads: Sequence[Load], seed: int) -> tuple[Row, ...]:
    """Baseline first, then speculative, for each load that was begun."""
    begun = {request.load for request in evidence.requests}
    return tuple(_row(evidence, load, arm, seed) for load in loads if load.label in begun for arm in ARMS)


def _row(evidence: Evidence, load: Load, arm: Arm, seed: int) -> Row:
    is_open = load.rate_per_s is not None
    answered = evidence.answered(arm, load.label)
    turns = evidence.turns_of(arm, load.label)
    paces = [_pace(evidence, turn) for turn in turns]
    parts = evidence.counters(arm, load.label)
    seen = figures.pooled(parts)
    tpot = quantiles([figures.tpot_s(request) for request in answered])
    ratio, ratio_ci = _ratio(evidence, load.label, seed) if arm == "speculative" and not is_open else (None, None)
    queue = [request.sent_s - request.intended_s for request in answered] if is_open else []
    return Row(
        load=load.label,
        arm=arm,
        num_requests=len(answered),
        num_errors=sum(request.arm == arm and request.load == load.label for request in evidence.errors),
        num_output_tokens=sum(request.num_output_tokens or 0 for request in answered),
        wall_s=sum(turn.ended_s - turn.began_s for turn in turns),
        output_tokens_per_s=_rate(paces),
        output_tokens_per_s_ci=figures.bootstrap(paces, _rate, seed=seed),
        tokens_per_s_per_user=1 / tpot.p50 if tpot else None,
        ttft_s=quantiles([figures.ttft_s(request, is_open_loop=is_open) for request in answered]),
        tpot_s=tpot,
        chunk_gap_s=quantiles([gap for request in answered for gap in figures.chunk_gaps_s(request)]),
        e2e_s=quantiles([figures.e2e_s(request, is_open_loop=is_open) for request in answered]),
        queue_s=quantiles(queue),
        tau=seen.tau,
        tau_ci=figures.bootstrap(parts, figures.pooled_tau, seed=seed),
        acceptance_rate=seen.acceptance_rate,
        num_verify_steps=seen.num_drafts,
        throughput_ratio=ratio,
        throughput_ratio_ci=ratio_ci,
    )


def quantiles(values: Sequence[float | None]) -> Quantiles | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p90, p99, *curve = (figures.quantile(known, share) for share in (0.5, 0.9, 0.99, *CURVE_AT))
    return Quantiles(p50=p50, p90=p90, p99=p99, num_values=len(known), curve=tuple(curve))


def _pace(evidence: Evidence, turn: TurnRecord) -> Pace:
    return evidence.num_tokens(turn), turn.ended_s - turn.began_s


def _rate(paces: Sequence[Pace]) -> float | None:
    seconds = sum(pace[1] for pace in paces)
    num_tokens = sum(pace[0] for pace in paces)
    return num_tokens / seconds if seconds > 0 and num_tokens else None


def _ratio(evidence: Evidence, load: str, seed: int) -> tuple[float | None, Interval | None]:
    """Output tokens a second of the one arm / of the other, over the turns that both arms came to the end of."""
    paces: dict[Arm, dict[tuple[str, int, int], Pace]] = {"baseline": {}, "speculative": {}}
    for arm in ARMS:
        for turn in evidence.turns_of(arm, load):
            tokens, seconds = paces[arm].get(turn.pair, (0, 0.0))
            more_tokens, more_s = _pace(evidence, turn)
            paces[arm][turn.pair] = (tokens + more_tokens, seconds + more_s)
    pairs = [(paces["baseline"][key], pace) for key, pace in paces["speculative"].items() if key in paces["baseline"]]
    return _ratio_of(pairs), figures.bootstrap(pairs, _ratio_of, seed=seed)


def _ratio_of(pairs: Sequence[tuple[Pace, Pace]]) -> float | None:
    base, spec = _rate([pair[0] for pair in pairs]), _rate([pair[1] for pair in pairs])
    return None if base is None or spec is None else spec / base
