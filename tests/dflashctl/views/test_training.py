import re

from dflashctl.facts.host_stream import GpuUse
from dflashctl.views.training import TrainingBoard
from dflashctl_remote.spec.events import CheckpointSaved, Progress, Started
from dflashctl_remote.spec.parity import Parity


def test_board_waits_before_the_first_step(text_of):
    board = TrainingBoard("r", lambda: 0.0)
    board.add(Started(job="train", pid=7, device="cpu"))
    assert "loading target and drafter" in text_of(board)
    board.add(Progress(what="hashing target", done=1, total=2, unit="files"))
    assert "hashing target: 1/2 files" in text_of(board)


def test_board_shows_where_it_is_and_what_it_costs(text_of, step):
    board = TrainingBoard("r", lambda: 1010.0)
    for number in range(1, 11):
        board.add(step(number))
    board.add(CheckpointSaved(step=10, path="/c", size_bytes=2**20, seconds_s=0.1))
    text = text_of(board)
    for said in ("step 10 of 100", "0.800", "25.0 %", "6.00e-04", "2.35k tok/s", "r = 2.00", "3.0 GiB"):
        assert said in text
    assert "checkpoint of step 10, 1.0 MiB" in text


def test_a_validation_shows_its_measured_tau_and_a_gate_that_failed(text_of, step, validated):
    board = TrainingBoard("r", lambda: 1010.0)
    board.add(step(1))
    assert "tau" not in text_of(board)
    board.add(validated(5))
    text = text_of(board)
    assert "3.21" in text
    assert "measured at step 5, [2.95, 3.50], 16 prompts" in text
    assert "parity" not in text
    board.add(validated(6, parity=Parity(verdict="differ", cause="mask", says="a block sees its anchor")))
    assert "a block sees its anchor" in text_of(board)


def test_time_left_follows_from_the_pace_of_late_steps(text_of, step):
    board = TrainingBoard("r", lambda: 1010.0)
    for number in range(1, 11):
        board.add(step(number))
    assert "about 1 min 30 s left" in text_of(board)


def test_remark_counts_down_on_the_board(text_of):
    board = TrainingBoard("r", lambda: 0.0)
    board.remark, board.until_s = "stopping in good order", 60.0
    assert "stopping in good order (60 s left)" in text_of(board)


def test_stages_show_what_they_did_with_their_time_and_which_one_sets_the_pace(text_of, step, in_line):
    board = TrainingBoard("r", lambda: 0.0)
    board.add(step(1))
    for word in ("loader", "queues", "pace"):
        assert word not in text_of(board)
    board.add(step(2, **in_line))
    shown = text_of(board)
    assert re.search(r"loader +2 % +busy, 98 % held up *\W*\n", shown)
    assert re.search(r"2 targets +97 % +busy, 3 % starved: sets the pace", shown)
    assert re.search(r"drafter +60 % +busy, 40 % starved *\W*\n", shown)
    assert re.search(r"queues +rows 4 of 4, hidden states 0 of 2", shown)


def test_a_validation_shows_the_held_out_loss_and_what_tau_stands_beside(text_of, step, validated):
    board = TrainingBoard("r", lambda: 1010.0)
    board.add(step(1))
    board.add(validated(5))
    shown = text_of(board)
    assert re.search(r"held out +2\.000 +loss, on documents never trained on", shown)
    assert "3.10 without repeats, 1.40 by look-up" in shown
    board.add(validated(6, tau=None, tau_low=None, tau_high=None))
    shown = text_of(board)
    assert re.search(r"tau +none", shown)
    assert "look-up" not in shown


def test_gpus_are_shown_where_there_are_any(text_of, step):
    board = TrainingBoard("r", lambda: 0.0)
    board.add(step(1))
    board.gpus = (GpuUse("GPU-1", "RTX PRO 6000", 97.0, 40 * 2**30, 96 * 2**30, 580.0, None),)
    shown = text_of(board)
    assert re.search(r"gpu +97 % +RTX PRO 6000, 40.0 GiB of 96.0 GiB, 580 W", shown)


def test_what_a_driver_does_not_tell_is_said_to_be_so(text_of, step):
    board = TrainingBoard("r", lambda: 0.0)
    board.add(step(1))
    board.gpus = (GpuUse("GPU-1", "X", None, None, None, None, None),)
    assert re.search(r"gpu +not told +X", text_of(board))
