"""The pure parts of the quality comparison: split, steps that fit a time, ratio and interval, parts that travel."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "quality"


@pytest.fixture
def load(monkeypatch):
    """A module of the folder, under a name that no other has."""

    def module(name):
        spec = importlib.util.spec_from_file_location(f"quality_{name}", FOLDER / f"{name}.py")
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, made)
        spec.loader.exec_module(made)
        return made

    return module


def row(name, category, text=None):
    return {"id": name, "category": category, "messages": [{"role": "user", "content": text or f"question {name}"}]}


def test_a_fifth_of_each_category_is_held_out_and_no_prompt_is_on_both_sides(load):
    rows = [row(f"{c}{i}", c) for c, count in (("code", 50), ("math", 10)) for i in range(count)]
    train, held_out = load("split").split(rows)
    assert {c: sum(r["category"] == c for r in held_out) for c in ("code", "math")} == {"code": 10, "math": 2}
    assert sorted(r["id"] for r in train + held_out) == sorted(r["id"] for r in rows)


def test_held_out_prompts_are_spread_over_a_category_and_limited(load):
    module = load("split")
    _, held_out = module.split([row(str(i), "code") for i in range(1000)])
    numbers = [int(r["id"]) for r in held_out]
    assert len(numbers) == module.MAX_HELD_OUT
    assert numbers[0] < 50
    assert numbers[-1] > 950


def test_a_prompt_in_other_case_and_spaces_is_the_same_prompt(load):
    train, held_out = load("split").split([row("a", "x", "What is  it?"), row("b", "x", "what IS it?\n")])
    assert [r["id"] for r in train + held_out] == ["a"]


def test_steps_fit_the_rate_of_the_second_half(load):
    # Two slow steps while kernels compile, then ten a second.
    ends = [0.0, 30.0, 60.0, 60.1, 60.2, 60.3]
    assert load("fit").steps_per_s(ends) == pytest.approx(10.0)
    assert load("fit").steps_for(360.0, ends) == pytest.approx(3600, abs=1)


@pytest.mark.parametrize("ends", [[], [0.0, 1.0], [1.0, 1.0, 1.0]])
def test_a_rate_without_enough_steps_or_time_is_refused(load, ends):
    with pytest.raises(ValueError):
        load("fit").steps_per_s(ends)


def test_a_larger_batch_must_fit_as_much_longer(load):
    fits = load("fit").fits_another
    assert fits(0.0, 10.0, 0.0, 4.0)
    assert fits(50.0, 100.0, 25.0, 2.0)
    assert not fits(51.0, 100.0, 25.0, 2.0)
    assert not fits(80.0, 100.0, 25.0, 0.5)


def test_the_ratio_is_that_of_pooled_taus(load):
    ratio, low, high = load("ratio").tau_ratio([[4, 2], [3]], [[2, 1], [3, 2]])
    assert ratio == pytest.approx((9 / 3) / (8 / 4))
    assert (low, high) == (None, None)


def test_prompts_are_drawn_in_pairs_so_that_equal_arms_have_no_spread(load):
    steps = [[n, 1] for n in range(1, 12)]
    assert load("ratio").tau_ratio(steps, steps) == (1.0, 1.0, 1.0)


def test_the_interval_holds_the_ratio_and_is_the_same_each_time(load):
    ours = [[n % 5 + 2, 3] for n in range(20)]
    theirs = [[n % 3 + 1, 2] for n in range(20)]
    ratio, low, high = load("ratio").tau_ratio(ours, theirs)
    assert low < ratio < high
    assert load("ratio").tau_ratio(ours, theirs) == (ratio, low, high)


def test_other_numbers_of_prompts_are_refused(load):
    with pytest.raises(ValueError, match="same prompts"):
        load("ratio").tau_ratio([[1]], [[1], [1]])


@pytest.fixture
def packed(load, tmp_path):
    """(module, folder of parts, names of parts) of a file and a folder in parts of 300 bytes."""
    source = tmp_path / "here"
    (source / "model").mkdir(parents=True)
    (source / "model" / "weights").write_bytes(bytes(range(256)) * 4)
    (source / "list.txt").write_text("".join(f"{n * n % 997} " for n in range(400)), encoding="utf-8")
    parts = load("parts")
    names = parts.write_parts(["model", "list.txt"], tmp_path / "parts", root=source, part_bytes=300)
    return parts, tmp_path / "parts", names


def test_parts_are_small_and_join_to_the_same_bytes(packed, tmp_path):
    parts, folder, names = packed
    assert len(names) > 1
    assert all((folder / name).stat().st_size <= 300 for name in names)
    assert sorted(parts.join_parts(folder, root=tmp_path / "there")) == ["list.txt", "model/weights"]
    for name in ("list.txt", "model/weights"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_a_part_that_did_not_come_is_named(packed, tmp_path):
    parts, folder, names = packed
    (folder / names[-1]).unlink()
    with pytest.raises(ValueError, match=names[-1]):
        parts.join_parts(folder, root=tmp_path / "there")


def test_a_part_with_other_bytes_is_refused(packed, tmp_path):
    parts, folder, names = packed
    content = (folder / names[0]).read_bytes()
    (folder / names[0]).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="other bytes"):
        parts.join_parts(folder, root=tmp_path / "there")
    assert not (tmp_path / "there").exists()
