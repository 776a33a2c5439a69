"""Whether the figures hold together. Each check is computed from what was recorded and says what it found."""

from collections.abc import Iterator, Sequence

from dflashctl.stages.bench import figures
from dflashctl.stages.bench.account import ARMS, Arm, ServerLabel
from dflashctl.stages.bench.evidence import Evidence, counted
from dflashctl.stages.bench.plan import SINGLE
from dflashctl.stages.bench.report import Check, Equality, Row, Verdict

GAP_TOLERANCE = 0.2
USAGE_TOLERANCE = 0.01
DRIFT_TOLERANCE = 0.1


def checks(evidence: Evidence, rows: Sequence[Row], equality: Equality | None) -> tuple[Check, ...]:
    return tuple(
        check
        for check in (
            _tau_bound(evidence, rows),
            _token_account(evidence),
            _gap_account(evidence),
            _usage_against_ids(evidence),
            _chunk_sizes(evidence),
            _cached_tokens(evidence),
            _own_traffic(evidence),
            _drift(evidence),
            _noise_floor(equality),
            _same_engine(evidence),
        )
    )


def invalid_because(
    evidence: Evidence, rows: Sequence[Row], equality: Equality | None, *, is_greedy: bool, dtypes: Sequence[str | None]
) -> Iterator[str]:
    """Why the benchmark proves nothing; none: it may be believed."""
    if evidence.errors:
        first = evidence.errors[0]
        yield (
            f"{len(evidence.errors)} of {len(evidence.requests)} requests failed; the first, {first.prompt_id} of the "
            f"{first.arm} arm: {first.error}"
        )
    seen = figures.pooled(evidence.counters("speculative"))
    if not seen.num_drafts:
        yield "the speculative arm counted no verify step: it decoded plainly, or its counters are not there"
    elif not seen.num_accepted_tokens:
        yield f"none of {seen.num_draft_tokens} drafts was accepted: tau is exactly 1"
    base = figures.pooled(evidence.counters("baseline"))
    if base.num_drafts:
        yield f"the baseline made {base.num_drafts} verify steps: it does not decode plainly"
    for arm in ARMS:
        if evidence.has_restart(arm):
            yield f"counters of the {arm} arm fell in mid-run: its server was started anew"
    is_exact = is_greedy and all(dtype == "float32" for dtype in dtypes)
    if equality is not None and is_exact and equality.num_equal < equality.num_compared:
        yield (
            f"{equality.num_compared - equality.num_equal} of {equality.num_compared} greedy outputs differ from the "
            "baseline's in float32, where they must be equal"
        )
    if not any(row.num_output_tokens for row in rows):
        yield "not a single output token was counted"


def _tau_bound(evidence: Evidence, rows: Sequence[Row]) -> Check:
    name = "tau is at most K + 1"
    num_drafts = evidence.segments[-1].servers["speculative"].num_draft_tokens
    taus = [row.tau for row in rows if row.arm == "speculative" and row.tau is not None]
    if num_drafts is None or not taus:
        return Check(name=name, verdict="not measured", text="no verify step was counted")
    bound = num_drafts + 1
    return _judged(name, max(taus) <= bound, f"highest {max(taus):.2f}, K + 1 = {bound}")


def _token_account(evidence: Evidence) -> Check:
    """Each request gives one token of its prompt's pass; each step its accepted drafts and one more."""
    name = "tokens add up"
    told = predicted = num_requests = num_steps = 0
    for turn in evidence.turns_of("speculative"):
        seen = counted(turn)
        requests = evidence.requests_of(turn)
        if seen is None or not evidence.is_clean(turn) or any(r.num_output_tokens is None for r in requests):
            continue
        num_requests += len(requests)
        num_steps += seen.num_drafts
        told += evidence.num_tokens(turn)
        predicted += len(requests) + seen.num_accepted_tokens + seen.num_drafts
    if not num_steps:
        return Check(name=name, verdict="not measured", text="no turn has both usage and counters")
    num_draft_tokens = evidence.segments[-1].servers["speculative"].num_draft_tokens or 0
    most_cut = num_requests * (num_draft_tokens + 1)
    over = predicted - told
    text = (
        f"usage {told:,}; requests + accepted + steps = {predicted:,}: {over:,} more, of which up to {most_cut:,} "
        "can be cut at the ends of answers"
    )
    # A step without drafts, at the end of a context, counts nowhere and gives a token.
    return _judged(name, -num_requests <= over <= most_cut, text)


def _gap_account(evidence: Evidence) -> Check:
    """A chunk a verify step: then the gap between chunks is TPOT x tau."""
    name = "chunk gap = TPOT x tau"
    parts = evidence.counters("speculative", SINGLE)
    tau = figures.pooled_tau(parts)
    answered = evidence.answered("speculative", SINGLE)
    gaps = [gap for request in answered for gap in figures.chunk_gaps_s(request)]
    decoded = [(figures.decode_s(r), figures.num_decoded_tokens(r)) for r in answered]
    seconds = sum(one for one, num in decoded if one is not None and num is not None)
    num_tokens = sum(num for one, num in decoded if one is not None and num is not None)
    if tau is None or not gaps or not num_tokens:
        return Check(name=name, verdict="not measured", text=f"needs requests one at a time ({SINGLE}), with counters")
    expected, mean = seconds / num_tokens * tau, sum(gaps) / len(gaps)
    text = f"mean gap {1000 * mean:.1f} ms, TPOT x tau {1000 * expected:.1f} ms"
    if abs(mean / expected - 1) <= GAP_TOLERANCE:
        return Check(name=name, verdict="ok", text=text)
    why = "steps come split into several chunks" if mean < expected else "several steps come in one chunk"
    return Check(name=name, verdict="warning", text=f"{text}: {why}, so that the gaps tell of the transport as well")


def _usage_against_ids(evidence: Evidence) -> Check:
    name = "usage agrees with token ids"
    pairs = [
        (request.num_output_tokens, len(request.token_ids))
        for request in evidence.requests
        if request.error is None and request.token_ids is not None and request.num_output_tokens is not None
    ]
    if not pairs:
        return Check(name=name, verdict="not measured", text="the servers give no token ids")
    usage, ids = (sum(pair[which] for pair in pairs) for which in (0, 1))
    is_close = abs(usage - ids) <= USAGE_TOLERANCE * max(usage, ids)
    return _judged(name, is_close, f"usage {usage:,}, ids {ids:,}")


def _chunk_sizes(evidence: Evidence) -> Check:
    name = "size of each chunk is known"
    answered = [request for request in evidence.requests if request.error is None]
    unknown = sum(request.chunk_sizes_tokens is None for request in answered)
    if unknown:
        text = f"not of {unknown} of {len(answered)} answers: their TPOT takes the first chunk for one token"
        return Check(name=name, verdict="warning", text=text)
    return Check(name=name, verdict="ok", text="TPOT leaves out exactly the tokens of the first chunk")


def _cached_tokens(evidence: Evidence) -> Check:
    name = "no prompt came out of a cache"
    known = [r.num_cached_tokens for r in evidence.requests if r.num_cached_tokens is not None]
    if not known:
        return Check(name=name, verdict="not measured", text="the servers do not say how much of a prompt was cached")
    return _judged(name, sum(known) == 0, f"{sum(known):,} prompt tokens were cached; TTFT is short by their prefill")


def _own_traffic(evidence: Evidence) -> Check:
    name = "nobody else used the servers"
    if not evidence.counters("speculative"):
        return Check(name=name, verdict="not measured", text="there are no counters")
    foreign = evidence.num_foreign_steps("speculative")
    return _judged(name, foreign == 0, f"{foreign:,} verify steps between our turns")


def _drift(evidence: Evidence) -> Check:
    """The baseline's first half against its second: the arms are interleaved, so that drift hits both."""
    name = "the machine held still"
    tpots: list[float] = []
    for turn in evidence.turns_of("baseline", SINGLE):
        tpots += [t for r in evidence.requests_of(turn) if r.error is None and (t := figures.tpot_s(r)) is not None]
    if len(tpots) < 4:
        return Check(name=name, verdict="not measured", text="needs four baseline answers one at a time")
    half = len(tpots) // 2
    change = figures.geometric_mean(tpots[half:]) / figures.geometric_mean(tpots[:half]) - 1
    text = f"baseline TPOT of the second half against the first: {change:+.1%}; the arms alternate, which evens it out"
    return _judged(name, abs(change) <= DRIFT_TOLERANCE, text)


def _noise_floor(equality: Equality | None) -> Check:
    name = "the baseline repeats itself"
    if equality is None or not equality.num_baseline_compared:
        return Check(name=name, verdict="not measured", text="needs a second repeat, or a second concurrency")
    text = f"{equality.num_baseline_equal} of {equality.num_baseline_compared} repeats equal its first answer"
    return _judged(name, equality.num_baseline_equal == equality.num_baseline_compared, text)


def _same_engine(evidence: Evidence) -> Check:
    name = "both arms run the same engine"
    servers = evidence.segments[-1].servers
    keys = ("engine", "version", "device", "dtype", "torch", "transformers", "max_running", "max_length_tokens")
    different = [
        f"{key}: {_of(servers, 'baseline', key)} and {_of(servers, 'speculative', key)}"
        for key in keys
        if _of(servers, "baseline", key) != _of(servers, "speculative", key)
    ]
    if servers["baseline"].engine != servers["speculative"].engine:
        different.insert(0, f"{servers['baseline'].engine} and {servers['speculative'].engine}")
    if different:
        return Check(name=name, verdict="warning", text="; ".join(different))
    if not servers["speculative"].about:
        return Check(name=name, verdict="not measured", text="the servers do not say their versions and limits")
    return Check(name=name, verdict="ok", text="version, device, dtype and limits agree")


def _of(servers: dict[Arm, ServerLabel], arm: Arm, key: str) -> object:
    return servers[arm].about.get(key)


def _judged(name: str, is_ok: bool, text: str) -> Check:
    verdict: Verdict = "ok" if is_ok else "warning"
    return Check(name=name, verdict=verdict, text=text)
