from dflashctl.views.job import JobBoard, Lines
from dflashctl_remote.spec.events import Failed, Notice, Progress, Started
from dflashctl_remote.spec.parity import Parity


def test_board_shows_progress_and_notices(text_of):
    board = JobBoard("data tokenize", lambda: 0.0)
    board.add(Progress(what="tokenize", done=50, total=200, unit="documents"))
    board.add(Notice(message="3 rows skipped"))
    text = text_of(board)
    assert "50/200 documents" in text
    assert "note: 3 rows skipped" in text


def test_step_lines_come_at_most_every_few_seconds(step):
    lines = Lines(every_s=5.0)
    shown = [number for number in range(1, 21) if lines.line_of(step(number))]
    assert shown == [1, 6, 11, 16]


def test_last_step_is_always_a_line(step):
    lines = Lines(every_s=1e9)
    assert lines.line_of(step(1))
    assert lines.line_of(step(50)) is None
    assert lines.line_of(step(100))


def test_throughput_never_stands_without_r(step):
    assert "2,345 context tokens/s at r 2.00" in Lines().line_of(step(1))


def test_a_step_of_stages_side_by_side_says_which_one_sets_the_pace(step, in_line):
    line = Lines().line_of(step(1, **in_line))
    assert line is not None
    assert line.endswith(
        "at r 2.00  target sets the pace (busy: loader 2 % target 97 % drafter 60 %)  rows 4/4 hidden states 0/2"
    )
    assert (Lines().line_of(step(1)) or "").endswith("at r 2.00")


def test_other_events_always_are_lines():
    lines = Lines(every_s=1e9)
    assert lines.line_of(Started(job="train", pid=7, device="cpu")) == "train: started, process 7 on cpu"
    failed = Failed(error="E", message="no", exit_code=2)
    assert lines.line_of(failed) == lines.line_of(failed) == "failed: no"


def test_a_validation_is_a_line_with_its_interval_and_the_gates_verdict(validated):
    line = Lines().line_of(validated(5))
    assert line is not None
    assert line.startswith("validated at step 5  tau 3.21 [2.95, 3.50] measured on 16 prompts  loss 2.000")
    assert line.endswith("accuracy by slot 0.50 0.25  parity holds")
    failed = validated(6, tau=None, parity=Parity(verdict="differ", cause="mask", says="..."))
    assert "no tau: nothing was drafted" in (Lines().line_of(failed) or "")
    assert (Lines().line_of(failed) or "").endswith("parity: mask")
