import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dflashctl_remote.evaluate.measure import evaluate
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete, BadInput
from dflashctl_remote.spec.evaluate import EvalSpec
from dflashctl_remote.spec.events import Event, Notice, Progress
from dflashctl_remote.spec.manifest import verify, write_manifest

MakeSpec = Callable[..., EvalSpec]
DEMO_TARGET = Path(__file__).parents[3] / "dflashctl" / "assets" / "demo_target"


class Events(list[Event]):
    """Collects what a job emits; with `stop_at` it interrupts at that many prompts, as Ctrl-C does."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self._stop_at = stop_at

    def __call__(self, event: Event) -> None:
        self.append(event)
        if isinstance(event, Progress) and event.done == self._stop_at:
            raise KeyboardInterrupt

    @property
    def notices(self) -> str:
        return "\n".join(event.message for event in self if isinstance(event, Notice))


def answers_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def test_an_evaluation_is_a_complete_folder_with_report_and_answers(make_spec: MakeSpec) -> None:
    spec = make_spec()
    report = evaluate(spec, Events())
    folder = Path(spec.output)
    manifest = verify(folder, "evaluation")
    assert {entry.path for entry in manifest.files} == {"answers.jsonl", "origin.json", "report.json"}
    assert json.loads((folder / "report.json").read_text()) == report.model_dump(mode="json")
    assert [answer["id"] for answer in answers_of(folder)] == ["p0", "p1", "p2"]
    assert (report.num_prompts, report.step, report.block_size, report.dtype) == (3, 7, 4, "float32")


def test_output_is_plain_greedy_on_the_embedded_hybrid(make_spec: MakeSpec) -> None:
    report = evaluate(make_spec(check_greedy=3, max_new_tokens=40), Events())
    assert (report.num_greedy_checked, report.num_greedy_equal) == (3, 3)


def test_every_answer_accounts_for_its_tokens(make_spec: MakeSpec) -> None:
    spec = make_spec()
    evaluate(spec, Events())
    for answer in answers_of(Path(spec.output)):
        for key in ("accepted_per_step", "lookup_per_step"):
            assert sum(answer[key]) == len(answer["tokens"]) - 1  # type: ignore[call-overload, arg-type]


def test_an_interrupted_evaluation_resumes_with_the_same_figures(make_spec: MakeSpec, tmp_path: Path) -> None:
    whole = evaluate(make_spec(output=str(tmp_path / "whole")), Events())
    spec = make_spec()
    with pytest.raises(KeyboardInterrupt):
        evaluate(spec, Events(stop_at=2))
    assert not Path(spec.output).exists()
    events = Events()
    resumed = evaluate(spec, events)
    assert "2 of 3 answers were already there" in events.notices
    assert resumed.model_copy(update={"wall_s": whole.wall_s}) == whole
    assert not Path(f"{spec.output}.partial").exists()


def test_a_line_cut_short_by_a_kill_is_decoded_again(make_spec: MakeSpec) -> None:
    spec = make_spec()
    with pytest.raises(KeyboardInterrupt):
        evaluate(spec, Events(stop_at=2))
    answers = Path(f"{spec.output}.partial") / "answers.jsonl"
    answers.write_bytes(answers.read_bytes()[:-20])
    evaluate(spec, Events())
    assert [answer["id"] for answer in answers_of(Path(spec.output))] == ["p0", "p1", "p2"]


def test_answers_made_with_other_settings_are_not_resumed(make_spec: MakeSpec) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate(make_spec(), Events(stop_at=1))
    events = Events()
    spec = make_spec(max_new_tokens=8)
    evaluate(spec, events)
    assert "with other settings" in events.notices
    assert all(len(answer["tokens"]) <= 8 for answer in answers_of(Path(spec.output)))  # type: ignore[arg-type]


def test_a_finished_evaluation_is_not_made_again(make_spec: MakeSpec) -> None:
    first = evaluate(make_spec(), Events())
    events = Events()
    assert evaluate(make_spec(), events) == first
    assert "complete" in events.notices


def test_a_finished_evaluation_of_something_else_is_not_overwritten(make_spec: MakeSpec) -> None:
    evaluate(make_spec(num_prompts=1), Events())
    with pytest.raises(BadInput, match=r"differs \(max_new_tokens\)"):
        evaluate(make_spec(num_prompts=1, max_new_tokens=8), Events())


def test_a_folder_that_is_no_evaluation_is_not_overwritten(make_spec: MakeSpec) -> None:
    spec = make_spec()
    Path(spec.output).mkdir()
    (Path(spec.output) / "mine.txt").write_text("keep")
    with pytest.raises(BadInput, match="not a finished one"):
        evaluate(spec, Events())


def test_only_the_first_prompts_are_decoded(make_spec: MakeSpec) -> None:
    assert evaluate(make_spec(num_prompts=1), Events()).num_prompts == 1


def test_progress_reaches_the_total(make_spec: MakeSpec) -> None:
    events = Events()
    evaluate(make_spec(num_prompts=2), events)
    assert [(e.done, e.total, e.unit) for e in events if isinstance(e, Progress)] == [
        (1, 2, "prompts"),
        (2, 2, "prompts"),
    ]


def test_an_evaluation_under_another_chat_template_is_another_one(make_spec: MakeSpec, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(DEMO_TARGET, target)
    spec = make_spec(target=str(target), num_prompts=1)
    evaluate(spec, Events())
    template = target / "chat_template.jinja"
    template.write_text("be brief. " + template.read_text())
    with pytest.raises(BadInput, match=r"differs \(template\)"):
        evaluate(spec, Events())


def test_a_checkpoint_without_manifest_is_incomplete(make_spec: MakeSpec, checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(ArtifactIncomplete) as caught:
        evaluate(make_spec(), Events())
    assert caught.value.exit_code == 5


def test_a_checkpoint_with_one_changed_byte_is_corrupt(make_spec: MakeSpec, checkpoint: Path) -> None:
    weights = bytearray((checkpoint / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (checkpoint / "model.safetensors").write_bytes(weights)
    with pytest.raises(ArtifactCorrupt, match=r"model\.safetensors differs") as caught:
        evaluate(make_spec(), Events())
    assert caught.value.exit_code == 5


def test_a_drafter_of_another_target_is_refused(make_spec: MakeSpec, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "num_target_layers": 9}))
    write_manifest(checkpoint, "checkpoint", bundle_sha="none", about={"step": 7})
    with pytest.raises(BadInput, match="number of target layers is 9, the target's 4"):
        evaluate(make_spec(), Events())


def test_a_prompt_too_long_for_the_target_is_named(make_spec: MakeSpec) -> None:
    with pytest.raises(BadInput, match=r"prompts\.jsonl:1: the prompt has \d+ tokens .* the target takes 2048"):
        evaluate(make_spec(max_new_tokens=2048), Events())


def test_a_malformed_prompt_line_is_named(make_spec: MakeSpec) -> None:
    spec = make_spec()
    with Path(spec.prompts).open("a") as file:
        file.write("{not json\n")
    with pytest.raises(BadInput, match=r"prompts\.jsonl:4"):
        evaluate(spec, Events())


def test_a_lookup_dataset_fills_the_table_and_shows_prompts_that_were_trained_on(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    from dflashctl_remote.data.tokenize import tokenize
    from dflashctl_remote.spec.data import TokenizeSpec

    spec = make_spec()
    row = json.loads(Path(spec.prompts).read_text().splitlines()[1])
    row["messages"].append({"role": "assistant", "content": "A list holds values."})
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    dataset = tmp_path / "dataset"
    tokenize(
        TokenizeSpec(target=spec.target, input=str(tmp_path / "train.jsonl"), output=str(dataset)),
        lambda done, total: None,
    )
    events = Events()
    report = evaluate(make_spec(lookup_dataset=str(dataset)), events)
    assert report.bigram_table is not None
    assert report.bigram_table.num_tokens == report.drafter.num_tokens
    assert "1 of 3 prompts are in" in events.notices


def test_the_parity_gate_holds_on_the_embedded_hybrid(make_spec: MakeSpec) -> None:
    parity = evaluate(make_spec(max_new_tokens=24), Events()).parity
    assert parity is not None
    assert (parity.verdict, parity.says) == ("agree", "")
    assert parity.num_slots == parity.num_slots_equal > 0
    assert parity.num_labels == parity.num_labels_equal > 0


def test_the_gate_can_be_left_out(make_spec: MakeSpec) -> None:
    spec = make_spec(check_parity=0, num_prompts=1)
    assert evaluate(spec, Events()).parity is None
    assert answers_of(Path(spec.output))[0]["proposals_per_step"] is None


def test_a_dataset_whose_prompts_end_otherwise_fails_the_gate(make_spec: MakeSpec, tmp_path: Path) -> None:
    """The checkpoint names the dataset that it was trained on; a line was added to the template since."""
    from dflashctl_remote.data.tokenize import tokenize
    from dflashctl_remote.spec.data import TokenizeSpec

    spec = make_spec()
    row = json.loads(Path(spec.prompts).read_text().splitlines()[1])
    row["messages"].append({"role": "assistant", "content": "A list holds values."})
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    dataset, target = tmp_path / "dataset", tmp_path / "target"
    tokenize(
        TokenizeSpec(target=spec.target, input=str(tmp_path / "train.jsonl"), output=str(dataset)),
        lambda done, total: None,
    )
    shutil.copytree(DEMO_TARGET, target)
    template = target / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if add_generation_prompt %}{{ 'Well: ' }}{% endif %}")
    write_manifest(Path(spec.checkpoint), "checkpoint", bundle_sha="none", about={"step": 7, "dataset": str(dataset)})
    events = Events()
    parity = evaluate(make_spec(target=str(target)), events).parity
    assert parity is not None
    assert (parity.verdict, parity.cause) == ("differ", "chat template")
    assert "it was made with another chat template" in parity.says
    assert "parity: chat template" in events.notices
