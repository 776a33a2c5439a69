from dataclasses import replace

from dflashctl.operations.relay.history import Record
from dflashctl.operations.relay.progress import Snapshot
from dflashctl.operations.relay.transfer import Moved
from dflashctl.views.relay import board, legs, line, moved_text, plain, relay_tables

MIB = 1 << 20
SEEN = Snapshot(
    total_bytes=100 * MIB,
    done_bytes=60 * MIB,
    kept_bytes=20 * MIB,
    sent_bytes=40 * MIB,
    hashed_bytes=0,
    elapsed_s=9.0,
    active_s=4.0,
    idle_s=0.0,
    source_wait_s=0.0,
    target_wait_s=2.0,
    num_lanes=1,
    phase="moving",
)
MOVED = Moved(
    dest="/w/step-1",
    total_bytes=100 * MIB,
    sent_bytes=100 * MIB,
    kept_bytes=0,
    num_files=3,
    num_lanes=1,
    num_tries=1,
    elapsed_s=20.0,
    rtt_s=(0.0, 0.0),
    hows={"raw": 100 * MIB},
)


def test_while_both_ends_are_looked_at_there_are_no_figures():
    assert line("a", "b", Snapshot(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, "looking")) == "looking at both ends"


def test_an_average_is_not_told_while_nothing_moves():
    assert line("a", "b", replace(SEEN, idle_s=40.0)) == "moving: 60.0 MiB of 100.0 MiB, nothing has moved for 40 s"
    waiting = replace(SEEN, phase="waiting", idle_s=40.0)
    assert line("a", "b", waiting) == "waiting to try again: 60.0 MiB of 100.0 MiB"
    assert legs("a", "b", waiting) == ""


def test_a_line_tells_how_far_it_is_how_fast_and_how_long_it_still_takes():
    assert line("a", "b", SEEN) == "moving: 60.0 MiB of 100.0 MiB, 10.0 MiB/s, 4 s left"


def test_a_line_tells_of_bytes_that_were_saved():
    assert line("a", "b", replace(SEEN, sent_bytes=20 * MIB)).endswith("20.0 MiB sent for 40.0 MiB")


def test_a_line_while_it_is_verified_promises_no_end():
    assert line("a", "b", replace(SEEN, phase="verifying")).startswith("verifying on the target's disk: ")
    assert "left" not in line("a", "b", replace(SEEN, phase="verifying"))


def test_legs_have_the_rate_each_would_give_alone_and_name_the_slower_one():
    # Two of four seconds the source was kept waiting: alone it would have given 40 MiB in two.
    assert legs("a", "b", SEEN) == "a -> here 20.0 MiB/s, here -> b 10.0 MiB/s; b is the slower leg"


def test_legs_name_the_source_where_that_keeps_the_target_waiting():
    assert legs("a", "b", replace(SEEN, source_wait_s=3.0)).endswith("a is the slower leg")


def test_legs_name_none_while_neither_waits_for_the_other():
    assert "slower" not in legs("a", "b", replace(SEEN, target_wait_s=0.1))


def test_legs_count_several_connections():
    assert ", 3 connections" in legs("a", "b", replace(SEEN, num_lanes=3))


def test_legs_say_nothing_before_the_first_byte():
    assert legs("a", "b", replace(SEEN, sent_bytes=0)) == ""


def test_the_last_line_tells_what_was_sent_for_what_and_that_it_was_proven():
    assert moved_text("r@1", "b", MOVED) == (
        "r@1 is on b: /w/step-1; sent 100.0 MiB for 100.0 MiB in 20 s (5.0 MiB/s); "
        "every sha256 read back there is right"
    )


def test_the_last_line_tells_how_much_came_in_which_way():
    hows = {"raw": 10 * MIB, "same": 50 * MIB, "base": 20 * MIB, "planes": 15 * MIB, "zeros": 5 * MIB}
    assert (
        "sent 30.0 MiB for 100.0 MiB: 50.0 MiB copied from what was there, 20.0 MiB as difference, "
        "15.0 MiB encoded, 5.0 MiB holes, 10.0 MiB as it is in 20 s"
    ) in moved_text("r@1", "b", replace(MOVED, sent_bytes=30 * MIB, hows=hows))


def test_the_last_line_tells_what_an_earlier_try_had_brought():
    said = moved_text("r@1", "b", replace(MOVED, kept_bytes=60 * MIB, sent_bytes=40 * MIB, elapsed_s=0.5))
    assert "(60.0 MiB were there from an earlier try) in 0.50 s (80.0 MiB/s)" in said


def test_the_last_line_of_nothing_has_no_rate():
    assert "/s)" not in moved_text("x", "b", replace(MOVED, total_bytes=0, sent_bytes=0, elapsed_s=0.0, hows={}))


def test_the_board_is_four_lines_whatever_is_known(text_of):
    looking = Snapshot(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, "looking")
    assert [text_of(board("r@1", "a", "b", seen)).count("\n") for seen in (looking, SEEN)] == [4, 4]


def test_the_board_is_four_lines_on_a_narrow_terminal_too(text_of):
    assert text_of(board("a-run-with-a-long-name@1", "source", "target", SEEN), width=45).count("\n") == 4


def test_the_tables_show_what_was_begun_what_is_unfinished_and_what_came(text_of):
    record = Record("relay-1", 0.0, "broken off", "ckpt", "a:r@1", "b", ("ckpt",), total_bytes=MIB)
    there = {
        "unfinished": [{"part": "/w/.x.relay-part", "there_bytes": MIB, "total_bytes": 2 * MIB}],
        "received": [{"dest": "/w/x", "from": "a", "at_s": 0.0}],
    }
    text = "".join(text_of(table) for table in relay_tables((record,), "b", there))
    for word in ("relay-1", "broken off", "a:r@1", "/w/.x.relay-part", "2.0 MiB", "received by b", "/w/x"):
        assert word in text


def test_without_any_relay_that_is_said(text_of):
    assert relay_tables((), None, {}) == ["no relay was begun on this machine"]


def test_a_files_name_does_nothing_to_the_terminal():
    assert plain("a \u00e4\x1b]0;x\x07\n\udcff") == "a \u00e4?]0;x???"
