"""The front of the training benchmark: what it reads of its arms, and when it says that something holds."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "bench_train"


@pytest.fixture
def load(monkeypatch):
    """A module of the folder, under a name that no other has."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def module(name):
        for plain in ("arms", "claims"):
            monkeypatch.delitem(sys.modules, plain, raising=False)
        spec = importlib.util.spec_from_file_location(f"bench_train_{name.strip('_')}", FOLDER / f"{name}.py")
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, made)
        spec.loader.exec_module(made)
        return made

    return module


@pytest.fixture
def said(load):
    """Claims on the given rows of arms, as they are printed."""
    judge = load("claims").claims
    return lambda **found: [str(claim) for claim in judge(found)]


def drafted(what, r, rate, gib):
    return {"what": what, "r": r, "tokens_per_s": rate, "peak_gib": gib}


def test_the_peer_is_the_one_of_the_same_r_and_a_missing_one_is_no_verdict(said):
    ours = [drafted("ours", 1.0, 40_000, 16.1), drafted("ours", 4.0, 10_000, 17.3)]
    assert said(drafter=ours, speculators=[drafted("speculators", 1.0, 32_000, 30.2)]) == [
        "holds: ours, r = 1: 40,000 tokens/s, 1.25x the 32,000 of speculators, 1.25x wanted",
        "not measured: ours, r = 4: 10,000 tokens/s, 1.25x that of speculators wanted",
        "holds: drafter's peak 16.10 GiB at r = 1, 20 wanted",
        "MISSED: at r = 4 +1.20 GiB, at most 1 wanted",
    ]


def test_two_ranks_are_held_against_one_without_a_cap(said):
    def online(what, rate, cap=None):
        return {"what": what, "arm": "in threads", "cap_gib": cap, "tokens_per_s": rate, "peak_gib": 82.0}

    one = [online("colocated", 8000.0), online("colocated, at most 92 GiB", 7000.0, 92.0)]
    assert said(ranks=[online("2 ranks", 15_300.0)], online=one) == [
        "holds: 2 ranks: 15,300 tokens/s, 1.91x one, 1.9x wanted",
        "holds: colocated: 8,000 tokens/s, 7,500 wanted (8,500 the aim)",
        "MISSED: colocated, at most 92 GiB: 7,000 tokens/s, 7,500 wanted (8,500 the aim)",
    ]


def test_a_split_is_as_fast_as_the_stage_that_is_always_busy(said):
    row = {"what": "1+1, in threads", "r": 1.0, "tokens_per_s": 9000.0, "limiting": "target"}
    (claim,) = said(**{"1+1": [row | {"busy": {"target": 0.97, "drafter": 0.4}}]})
    assert claim == "holds: 1+1, in threads: target busy 97 % of the time, 95 % wanted"
    (claim,) = said(**{"1+1": [row | {"busy": {"target": 0.9, "drafter": 0.4}}]})
    assert claim.startswith("MISSED")


def test_packed_rows_are_held_against_transformers_on_as_many_tokens(said):
    rows = [
        {"what": "transformers, 4 of 2048", "num_tokens": 8192, "ratio": 1.0},
        {"what": "ours, 4 of 2048", "num_tokens": 8192, "ratio": 1.3},
        {"what": "ours, 6 lognormal", "num_tokens": 8100, "ratio": 1.1},
        {"what": "ours, not compiled, 4 of 2048", "num_tokens": 8192, "ratio": 0.9},
    ]
    assert [claim.partition(":")[0] for claim in said(target=rows)] == ["holds", "MISSED"]


def test_lines_of_an_arm_that_was_cut_short_count(load):
    arms = load("arms")
    lines = [
        "warm-up 60.0 s\n",
        "layout colocated  ranks 1  arm in threads  cap_gib 92.0  tokens_per_s 8554.0  fastest 8600.0  slowest 8500.1  "
        "block_ratio 1.0  peak_gib 82.7  limiting target  busy {'drafter': 0.9, 'target': 1.0}  loss 6.0\n",
        "layout colocated  ranks 1  arm in tu",
    ]
    (row,) = arms.online_rows(None, lines)
    assert row["what"] == "colocated, in threads, at most 92 GiB"
    assert (row["tokens_per_s"], row["cap_gib"], row["busy"]["target"]) == (8554.0, 92.0, 1.0)
    assert arms.drafter_rows(None, ['{"arm": "speculators", "left_out": "no module"}\n', '{"arm": "ours", "st']) == [
        {"what": "speculators", "note": "left out: no module"}
    ]


def test_an_arm_ends_at_its_limit_with_what_it_had_said(load, tmp_path, capfd):
    front, arms = load("__main__"), load("arms")

    def run(code, limit_s):
        arm = arms.Arm("a test", lambda case: (sys.executable, "-c", code), lambda case, lines: [], limit_s)
        return front.run(arm, arms.Case(True, tmp_path), limit_s)

    assert run("print('here'); raise SystemExit(3)", 60.0) == (["here\n"], "exit code 3")
    assert run("print('here')", 60.0) == (["here\n"], "")
    lines, problem = run("import threading; threading.Event().wait()", 0.0)
    assert (lines, problem) == ([], "ended at its limit of 0 s")
    assert capfd.readouterr().out.count("here") == 2
