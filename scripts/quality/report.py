"""The table: tau of both drafters by category and position, with and without repeats, and the ratio, whichever wins."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ratio import tau_ratio

from dflashctl_remote.evaluate.answers import Answer
from dflashctl_remote.evaluate.interval import tau_interval
from dflashctl_remote.evaluate.repetition import repeated_share
from dflashctl_remote.evaluate.report import acceptance_by_slot, pooled_tau, steps_without_repeats
from dflashctl_remote.spec.manifest import write_atomically, write_json

Steps = Callable[[Answer], Sequence[int]]


def by_drafter(answer: Answer) -> Sequence[int]:
    return answer.accepted_per_step


def without_repeats(answer: Answer) -> Sequence[int]:
    return steps_without_repeats(answer.tokens, answer.accepted_per_step)


def read_answers(path: Path) -> list[Answer]:
    """In the order of their ids, so that two arms are paired."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return sorted((Answer.model_validate_json(line) for line in lines), key=lambda answer: answer.id)


def compare(ours: list[Answer], theirs: list[Answer], block_size: int) -> dict[str, Any]:
    """Figures of two arms on the same prompts; raises ValueError if the prompts differ."""
    if [a.id for a in ours] != [a.id for a in theirs]:
        raise ValueError("the arms were evaluated on other prompts: evaluate both again")
    categories = sorted({answer.category or "none" for answer in ours})
    rows = [_row("all", ours, theirs, by_drafter), _row("all, without repeats", ours, theirs, without_repeats)]
    for category in categories:
        mine, its = ([a for a in arm if (a.category or "none") == category] for arm in (ours, theirs))
        rows.append(_row(category, mine, its, by_drafter))
        rows.append(_row(f"{category}, without repeats", mine, its, without_repeats))
    return {
        "num_prompts": len(ours),
        "rows": rows,
        "acceptance_by_slot": {
            name: acceptance_by_slot((answer.drafts_per_step for answer in arm), block_size)
            for name, arm in (("ours", ours), ("theirs", theirs))
        },
        "repeated_token_share": {"ours": _repeated(ours), "theirs": _repeated(theirs)},
        "num_same_answers": sum(a.tokens == b.tokens for a, b in zip(ours, theirs, strict=True)),
        "num_greedy_checked": sum(a.is_greedy_equal is not None for a in (*ours, *theirs)),
        "num_greedy_equal": sum(bool(a.is_greedy_equal) for a in (*ours, *theirs)),
        "tau_of_own_text_lookup": pooled_tau(a.lookup_per_step for a in ours).tau,
        "tau_of_bigram_table": pooled_tau(a.table_per_step for a in ours if a.table_per_step is not None).tau,
        "mean_answer_tokens": sum(len(a.tokens) for a in ours) / len(ours),
    }


def write_report(work: Path, found: dict[str, Any]) -> str:
    """`work`/report.json and report.md; the text of the latter."""
    write_json(work / "report.json", found)
    text = "\n".join(_lines(found)) + "\n"
    write_atomically(work / "report.md", text)
    return text


def _row(what: str, ours: list[Answer], theirs: list[Answer], steps: Steps) -> dict[str, Any]:
    sides = [[steps(answer) for answer in arm] for arm in (ours, theirs)]
    taus = [pooled_tau(side) for side in sides]
    row: dict[str, Any] = {"what": what, "num_prompts": len(ours)}
    for name, tau, side in zip(("ours", "theirs"), taus, sides, strict=True):
        row[name] = {"tau": tau.tau, "interval": tau_interval(side), "num_verify_steps": tau.num_verify_steps}
    if all(tau.num_verify_steps for tau in taus):
        ratio, low, high = tau_ratio(*sides)
        row["ratio"] = {"ratio": ratio, "interval": None if low is None else [low, high]}
    else:
        row["ratio"] = None
    return row


def _repeated(answers: list[Answer]) -> float:
    return repeated_share([answer.tokens for answer in answers])


def _lines(found: dict[str, Any]) -> list[str]:
    figures, arms = found["figures"], found["arms"]
    lines = ["| held-out prompts | n | tau, dflashctl | tau, speculators | ratio |", "|---|---|---|---|---|"]
    for row in figures["rows"]:
        cells = [_with_interval(row[arm]["tau"], row[arm]["interval"]) for arm in ("ours", "theirs")]
        ratio = row["ratio"]
        cells.append("" if ratio is None else _with_interval(ratio["ratio"], ratio["interval"]))
        lines.append(f"| {row['what']} | {row['num_prompts']} | " + " | ".join(cells) + " |")
    lines += ["", "Share of verify steps that accepted at least so many drafts:", ""]
    slots = range(1, len(figures["acceptance_by_slot"]["ours"]) + 1)
    lines += ["| arm | " + " | ".join(map(str, slots)) + " |", "|---|" + "---|" * len(slots)]
    for arm in ("ours", "theirs"):
        lines.append(f"| {arm} | " + " | ".join(f"{v:.3f}" for v in figures["acceptance_by_slot"][arm]) + " |")
    lines += ["", "| trainer | steps | seconds | context tokens | tokens/s | epochs | loss | peak GiB |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for arm in arms.values():
        rate = arm["context_tokens"] / arm["seconds_s"]
        lines.append(
            f"| {arm['trainer']} | {arm['num_steps']} | {arm['seconds_s']:.0f} | {arm['context_tokens']} | {rate:.0f} "
            f"| {arm['epochs']:.1f} | {arm['loss']:.3f} | {arm['peak_memory_bytes'] / 2**30:.1f} |"
        )
    share = figures["repeated_token_share"]
    lines += [
        "",
        f"Tokens in repeated 16-grams: {share['ours']:.1%} (ours), {share['theirs']:.1%} (theirs); look-up in the own "
        f"text tau {figures['tau_of_own_text_lookup']:.2f}, bigram table {figures['tau_of_bigram_table']:.2f}; mean "
        f"answer {figures['mean_answer_tokens']:.0f} tokens; {figures['num_greedy_equal']} of "
        f"{figures['num_greedy_checked']} checked answers are plain greedy token for token; "
        f"{figures['num_same_answers']} of {figures['num_prompts']} answers are the same with both drafters.",
        f"Trained on {found['data'].get('num_answer_tokens')} answer tokens to {found['data'].get('num_prompts')} "
        "prompts. Losses are each trainer's own and not comparable.",
    ]
    return lines


def _with_interval(value: float, interval: Sequence[float] | None) -> str:
    return f"{value:.2f}" if interval is None else f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"
