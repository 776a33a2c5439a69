import json

import pytest

from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.data.tokenize import tokenize
from dflashctl_remote.spec.data import TokenizeSpec
from dflashctl_remote.spec.errors import BadInput


def row(answer, *, question="Hi", **more):
    return {
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        **more,
    }


@pytest.fixture
def run(tmp_path, jsonl, chatml_target):
    """Tokenise these lines into tmp_path/dataset."""

    def _run(lines, *, target=chatml_target, report=lambda done, total: None, **options):
        where = {"target": str(target), "input": str(jsonl(lines)), "output": str(tmp_path / "dataset")}
        return tokenize(TokenizeSpec(**{**where, **options}), report)

    return _run


def nothing_written(tmp_path):
    return not list(tmp_path.glob("dataset*"))


def test_dataset_holds_every_conversation_with_its_name(run, tmp_path):
    done = run([row("Hello", id="a", category="chat"), row("Fine")])
    dataset = Dataset.open(tmp_path / "dataset", verify_content=True)
    assert dataset.names == (("a", "chat"), ("line-2", None))
    assert dataset.info == done.info
    assert (done.info.num_documents, done.info.num_skipped_rows, done.info.num_truncated) == (2, 0, 0)
    assert done.info.num_tokens == dataset.lengths.sum()
    assert done.info.max_document_tokens == dataset.lengths.max()


def test_bad_row_stops_and_leaves_nothing(run, tmp_path):
    with pytest.raises(BadInput, match=r"rows\.jsonl:2: expected one JSON object a line, found 'no'"):
        run([row("Hello"), "no", row("Fine")])
    assert nothing_written(tmp_path)


def test_skipped_rows_are_counted_and_the_rest_is_kept(run):
    done = run([row("Hello"), "no", {"messages": []}, row("Fine")], skip_bad=True)
    assert (done.info.num_documents, done.info.num_skipped_rows) == (2, 2)
    assert "2 bad rows left out: line 2: " in done.notices[0]


def test_input_without_a_usable_row_is_refused(run, tmp_path):
    with pytest.raises(BadInput, match=r"found none to use \(1 bad rows\)"):
        run(["no"], skip_bad=True)
    assert nothing_written(tmp_path)


def test_empty_input_is_refused(run):
    with pytest.raises(BadInput, match=r"found none to use \(0 bad rows\)"):
        run([])


def test_long_conversation_is_cut_and_counted(run, tmp_path):
    done = run([row("Hello there " * 20), row("Hi")], max_length_tokens=24)
    assert done.info.num_truncated == 1
    assert Dataset.open(tmp_path / "dataset").lengths.max() == 24


def test_sequence_without_a_supervised_token_after_the_cut_is_a_bad_row(run):
    with pytest.raises(BadInput, match=r":1: expected a supervised token within 24 tokens, found that the prompt"):
        run([row("Hello", question="Hello there " * 20)], max_length_tokens=24)


def test_sequence_without_a_supervised_token_can_be_skipped(run):
    done = run([row("Hello", question="Hello there " * 20), row("Hi")], max_length_tokens=24, skip_bad=True)
    assert (done.info.num_documents, done.info.num_skipped_rows) == (1, 1)


def test_conversation_whose_history_is_rewritten_becomes_a_document_a_turn(run, tmp_path, thinking_target):
    turns = [("user", "Hi"), ("assistant", "<think>\na\n</think>\n\nb"), ("user", "So"), ("assistant", "c")]
    conversation = {"id": "x", "messages": [{"role": r, "content": c} for r, c in turns]}
    run([conversation], target=thinking_target)
    assert [n for n, _ in Dataset.open(tmp_path / "dataset").names] == ["x#turn-1", "x#turn-2"]


def test_turn_beyond_the_cut_is_dropped_and_the_earlier_ones_stay(run, tmp_path, thinking_target):
    turns = [("user", "Hi"), ("assistant", "<think>\na\n</think>\n\nb"), ("user", "So " * 40), ("assistant", "c")]
    conversation = {"id": "x", "messages": [{"role": r, "content": c} for r, c in turns]}
    done = run([conversation], target=thinking_target, max_length_tokens=40)
    assert [n for n, _ in Dataset.open(tmp_path / "dataset").names] == ["x#turn-1"]
    assert done.info.num_truncated == 1


def test_ids_beyond_the_targets_vocabulary_are_a_bad_row(run, target_folder, chatml_target):
    template = (chatml_target / "chat_template.jinja").read_text()
    with pytest.raises(BadInput, match=":1: expected token ids below the target's vocabulary of 50, found"):
        run([row("Hello")], target=target_folder(template, 50))


def test_target_without_config_is_told_that_ids_went_unchecked(run, target_folder, chatml_target):
    folder = target_folder((chatml_target / "chat_template.jinja").read_text())
    (folder / "config.json").unlink()
    (notice,) = run([row("Hello")], target=folder).notices
    assert "token ids were not compared" in notice


def test_keys_that_nothing_reads_are_told(run):
    (notice,) = run([row("Hello", source="web")]).notices
    assert notice.endswith("keys that nothing reads: source")


def test_interrupt_leaves_nothing_and_the_same_command_then_works(run, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([row("Hello")], report=interrupt)
    assert nothing_written(tmp_path)
    assert run([row("Hello")]).info.num_documents == 1


def test_progress_counts_to_the_whole_input(run, tmp_path):
    seen = []
    run([row("Hello")] * 300, report=lambda done, total: seen.append((done, total)))
    size = (tmp_path / "rows.jsonl").stat().st_size
    assert len(seen) == 2
    assert seen[-1] == (size, size)


def test_same_request_again_is_up_to_date_and_writes_nothing(run, tmp_path):
    first = run([row("Hello")])
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "dataset").rglob("*")}
    again = run([row("Hello")])
    assert again.was_up_to_date
    assert again.info == first.info
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "dataset").rglob("*")} == before


@pytest.mark.parametrize(
    ("lines", "options", "differing"),
    [
        ([row("Other")], {}, "input_sha256"),
        ([row("Hello")], {"max_length_tokens": 100}, "max_length_tokens"),
    ],
)
def test_finished_dataset_of_something_else_is_never_overwritten(run, lines, options, differing):
    run([row("Hello")])
    with pytest.raises(BadInput, match=rf"found a finished one that differs \({differing}\)"):
        run(lines, **options)


def test_dataset_with_rows_left_out_does_not_pass_for_a_strict_one(run):
    run([row("Hello"), "no"], skip_bad=True)
    assert run([row("Hello"), "no"], skip_bad=True).was_up_to_date
    with pytest.raises(BadInput, match="1 bad rows left out"):
        run([row("Hello"), "no"])


def test_folder_with_other_files_is_left_alone(run, tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="found something there that is not a finished one"):
        run([row("Hello")])
    assert [p.name for p in (tmp_path / "dataset").iterdir()] == ["notes.txt"]


def test_output_below_a_file_is_refused(run, tmp_path):
    with pytest.raises(BadInput, match=r"wanted to write a dataset into .*, found: Not a directory"):
        run([row("Hello")], output=str(tmp_path / "rows.jsonl" / "dataset"))


def test_rows_become_the_same_documents_however_many_there_are_at_once(run, tmp_path):
    answers = [f"Hello {n} there" for n in range(300)]
    run([row(a) for a in answers])
    dataset = Dataset.open(tmp_path / "dataset")
    assert len(dataset) == 300
    manifest = json.loads((tmp_path / "dataset" / "manifest.json").read_text())
    assert manifest["about"]["num_documents"] == 300
