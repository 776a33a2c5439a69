from dflashctl.views.training import TrainingBoard
from dflashctl_remote.spec.events import CheckpointSaved, Progress, Started


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


def test_time_left_follows_from_the_pace_of_late_steps(text_of, step):
    board = TrainingBoard("r", lambda: 1010.0)
    for number in range(1, 11):
        board.add(step(number))
    assert "about 1 min 30 s left" in text_of(board)


def test_remark_counts_down_on_the_board(text_of):
    board = TrainingBoard("r", lambda: 0.0)
    board.remark, board.until_s = "stopping in good order", 60.0
    assert "stopping in good order (60 s left)" in text_of(board)
