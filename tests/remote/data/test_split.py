from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from dflashctl_remote.data.shards import Dataset, Document, ShardWriter
from dflashctl_remote.data.split import choose, first_prompt, split, with_prompts_of
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.manifest import write_manifest

Row = tuple[str, Sequence[int]]


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Dataset]:
    def make(rows: Sequence[Row], name: str = "dataset", shard_tokens: int = 64) -> Dataset:
        """Documents by (id, prompt), each answered with 20 tokens."""
        folder = tmp_path / name
        folder.mkdir()
        with ShardWriter(folder, shard_tokens=shard_tokens) as writer:
            for number, (row_id, prompt) in enumerate(rows):
                ids = np.array([*prompt, *range(100 + number, 120 + number)], np.int64)
                writer.add(Document(ids, np.arange(len(ids)) >= len(prompt), row_id))
        info = DatasetInfo(
            num_documents=writer.num_documents,
            num_tokens=writer.num_tokens,
            num_supervised_tokens=writer.num_supervised,
            num_skipped_rows=0,
            num_truncated=0,
            max_document_tokens=writer.max_document_tokens,
            max_length_tokens=64,
            target="t",
            tokenizer_sha256="",
            template_sha256="",
            input_sha256="",
        )
        write_manifest(folder, "dataset", bundle_sha="b", about=info.model_dump())
        return Dataset.open(folder)

    return make


def rows_of(num: int) -> list[Row]:
    return [(f"row-{i}", [i + 1, i + 2, i + 3]) for i in range(num)]


def parts_of(dataset: Dataset, **changes: object) -> tuple[list[int], list[int]]:
    settings = {"share": 0.25, "max_documents": 64, "max_length_tokens": 64, "seed": 3} | changes
    parts = split(dataset, **settings)  # type: ignore[arg-type]
    return parts.held_out.tolist(), parts.excluded.tolist()


def test_a_share_is_held_out_and_at_most_so_many(make_dataset: Callable[..., Dataset]) -> None:
    dataset = make_dataset(rows_of(40))
    held_out, excluded = parts_of(dataset)
    assert len(held_out) == 10
    assert excluded == held_out == sorted(held_out)
    assert len(parts_of(dataset, max_documents=4)[0]) == 4
    assert parts_of(dataset, share=0.02) == ([], [])


def test_the_split_is_a_function_of_the_seed(make_dataset: Callable[..., Dataset]) -> None:
    dataset = make_dataset(rows_of(40))
    assert parts_of(dataset) == parts_of(dataset)
    assert parts_of(dataset) != parts_of(dataset, seed=4)


def test_other_answers_to_a_held_out_prompt_are_not_trained_on(make_dataset: Callable[..., Dataset]) -> None:
    """Every prompt is there twice, under two ids."""
    rows = rows_of(20)
    dataset = make_dataset([*rows, *((f"again-{name}", prompt) for name, prompt in rows)])
    held_out, excluded = parts_of(dataset)
    assert set(excluded) == {i % 20 for i in held_out} | {i % 20 + 20 for i in held_out}


def test_other_turns_of_a_held_out_conversation_are_not_trained_on(make_dataset: Callable[..., Dataset]) -> None:
    dataset = make_dataset([(f"row-{i // 2}#turn-{i % 2 + 1}", [i, i + 1]) for i in range(40)])
    held_out, excluded = parts_of(dataset)
    assert set(excluded) == {i - i % 2 for i in held_out} | {i - i % 2 + 1 for i in held_out}


def test_a_document_in_which_no_block_fits_is_not_chosen(make_dataset: Callable[..., Dataset]) -> None:
    dataset = make_dataset([("long", range(1, 31)), ("short", [1, 2]), ("none", [])])
    assert choose(dataset, max_documents=9, max_length_tokens=20, seed=0).tolist() == [1]


def test_prompts_of_another_dataset_are_found(make_dataset: Callable[..., Dataset]) -> None:
    dataset = make_dataset(rows_of(12))
    other = make_dataset([("x", [5, 6, 7]), ("y", [9, 9, 9])], "other")
    assert with_prompts_of(dataset, other, np.array([0, 1])).tolist() == [4]
    assert first_prompt(dataset, 4) == (5, 6, 7)
