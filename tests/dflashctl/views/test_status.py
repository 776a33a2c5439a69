import re

import pytest
from rich.console import Console

from dflashctl.stages.status.fact import Fact, Snapshot, Subject, unknown
from dflashctl.stages.status.notes import Note, Notes
from dflashctl.views.status import status
from dflashctl.views.status_json import document
from dflashctl.views.status_markdown import escaped, markdown

NOW_S = 1000.0
SECTIONS = [
    "Goal",
    "Constraints & Preferences",
    "Progress",
    "Key Decisions",
    "Next Steps",
    "Critical Context",
    "Relevant Files (by machine)",
]
NOTES = Notes(
    (
        Note("aaaaaa", "goal", "tau of *6*", "ann", 900.0, None, None),
        Note("bbbbbb", "next", "relay", "bob", 800.0, 990.0, "ann"),
    ),
    (3,),
)


def snapshot(*subjects):
    return Snapshot("local", "/w", NOW_S, subjects)


def subject(state="running", sort="run", **changes):
    fields = {"kind": "live", "source": "/w/runs/r/events.jsonl", "at_s": 995.0, "value": state, **changes}
    facts = (
        Fact("tau", "1.90 without repeats", "measured", "/w/evaluations/e/report.json", 400.0, 1.9),
        Fact("time left", "5 min", "estimated", "/w/runs/r/events.jsonl", 995.0, 300.0),
        unknown("size", "nobody asked", "dflashctl data inspect"),
    )
    return Subject(sort, "r", Fact("state", state, **fields), facts)


def table(found, notes=NOTES, width=140):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(status(found, notes))
    return capture.get()


def section(text, title):
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_document_has_its_seven_sections_in_order():
    text = markdown([snapshot(subject())], NOTES, "dflashctl status --format md")
    assert re.findall(r"^## (.*)$", text, flags=re.M) == SECTIONS
    assert re.findall(r"^### (.*)$", section(text, "Progress"), flags=re.M) == ["Done", "In Progress", "Blocked"]


def test_what_is_not_known_says_so_in_every_section():
    text = markdown([snapshot()], Notes((), ()), "c")
    for title in SECTIONS:
        assert "not known" in section(text, title)


def test_every_line_of_the_document_has_sort_age_and_source():
    text = markdown([snapshot(subject())], NOTES, "c")
    assert "*(measured, 10 min 00 s ago; evaluations/e/report.json)*" in text
    assert "*(estimated, 5 s ago; runs/r/events.jsonl)*" in text
    assert "*(hand-written by ann, 1 min 40 s ago; notes.jsonl, aaaaaa)*" in text


def test_a_subject_stands_where_its_state_puts_it():
    for state, title in (("finished", "Done"), ("running", "In Progress"), ("failed", "Blocked")):
        progress = section(markdown([snapshot(subject(state))], Notes((), ()), "c"), "Progress")
        assert "**run r**" in progress.split(f"### {title}")[1].split("###")[0]


def test_a_finished_step_moves_from_next_to_done():
    text = markdown([snapshot()], NOTES, "c")
    assert "relay" not in section(text, "Next Steps")
    assert "done 10 s ago by ann" in section(text, "Progress")


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("- not a list", r"\- not a list"),
        ("1. not a list", r"1\. not a list"),
        ("---", r"\---"),
        ("# no title", r"\# no title"),
        ("2.39 is a figure", "2.39 is a figure"),
        ("a\n\n# b", r"a \# b"),
        ("~~gone~~ &lt; $x$", r"\~\~gone\~\~ \&lt; \$x\$"),
    ],
)
def test_what_would_begin_something_in_markdown_does_not(text, literal):
    assert escaped(text) == literal


def test_marks_in_a_note_are_taken_literally():
    assert escaped("a*b_c [x](y) <z>") == r"a\*b\_c \[x\](y) \<z\>"
    assert r"tau of \*6\*" in markdown([snapshot()], NOTES, "c")


def test_the_table_tells_stale_and_estimated_apart_by_words():
    shown = table(snapshot(subject(at_s=10.0, stale_after_s=120.0)))
    assert "16 min 30 s ago, STALE" in shown
    assert "estimated" in shown
    assert "not known: nobody asked" in shown


def test_the_document_carries_its_time_and_its_command():
    text = markdown([snapshot()], NOTES, "dflashctl status --format md")
    assert "Made 1970-01-01 00:16:40 UTC by `dflashctl status --format md`" in text


def test_the_document_tells_stale_apart_by_a_word():
    text = markdown([snapshot(subject(at_s=10.0, stale_after_s=120.0))], NOTES, "c")
    assert "*(live, 16 min 30 s ago, STALE; runs/r/events.jsonl)*" in text


def test_what_is_odd_or_old_is_critical_context():
    warned = Fact("loss", "1.4", "reported", "/w/runs/r/events.jsonl", 1.0, 1.4, warning="rising: 1.3 -> 1.4")
    found = Subject("run", "r", subject(at_s=10.0, stale_after_s=120.0).state, (warned,))
    context = section(markdown([snapshot(found)], NOTES, "c"), "Critical Context")
    assert "- run r: loss: 1.4 **! rising: 1.3 -\\> 1.4**" in context
    assert "- run r: running *(live, 16 min 30 s ago, STALE" in context


def test_files_are_named_by_machine_without_commands():
    files = section(markdown([snapshot(subject())], NOTES, "c"), "Relevant Files (by machine)")
    assert files.splitlines()[1:-1] == [
        "- local",
        "  - work folder: /w",
        "  - notes: /w/notes.jsonl",
        "  - run r: /w/runs/r/events.jsonl",
        "  - run r: /w/evaluations/e/report.json",
    ]


def test_a_narrow_terminal_has_age_and_source_under_each_fact():
    shown = table(snapshot(subject()), width=60)
    assert max(map(len, shown.splitlines())) <= 60
    joined = " ".join(shown.split())
    assert "1.90 without repeats measured, 10 min 00 s ago, evaluations/e/report.json" in joined


def test_control_codes_in_names_and_words_of_jobs_reach_no_terminal():
    odd = Subject("run", "r\x1b[2J", Fact("state", "failed: \x1b[31mred\nline", "live", "/w/\x1b", 1.0, "failed"), ())
    shown = table(snapshot(odd), NOTES)
    text = markdown([snapshot(odd)], NOTES, "c")
    assert "\x1b" not in shown + text
    assert "failed: ?[31mred line" in shown


def test_notes_that_cannot_be_read_are_told():
    broken = Notes((), (), "/w/notes.jsonl cannot be read: Is a directory")
    assert "! /w/notes.jsonl cannot be read" in table(snapshot(), broken)
    assert "cannot be read" in section(markdown([snapshot()], broken, "c"), "Progress")


def test_an_age_before_its_time_is_none():
    ahead = Notes((Note("cccccc", "goal", "x", "ann", NOW_S + 50, None, None),), ())
    assert "(hand-written by ann, 0 s ago" in markdown([snapshot()], ahead, "c")


def test_the_document_for_machines_keeps_its_shape():
    found = document([snapshot(subject())], NOTES, "c", NOW_S)
    assert list(found) == ["schema_version", "at_s", "command", "hosts", "notes", "notes_problem", "bad_note_lines"]
    (host,) = found["hosts"]
    assert list(host) == ["host", "workdir", "at_s", "subjects", "problems"]
    (run,) = host["subjects"]
    assert list(run) == ["sort", "name", "state", "facts"]
    assert run["facts"][0] == {
        "name": "tau",
        "text": "1.90 without repeats",
        "kind": "measured",
        "source": "/w/evaluations/e/report.json",
        "at_s": 400.0,
        "value": 1.9,
        "unit": "",
        "warning": "",
        "stale_after_s": None,
        "age_s": 600.0,
        "is_stale": False,
    }
    assert found["notes"][0]["age_s"] == 100.0


def test_a_warning_stands_beside_its_fact():
    warned = Fact("tau", "1.9", "measured", "/w/e", 1.0, 1.9, warning="of an older step")
    shown = table(snapshot(Subject("run", "r", subject().state, (warned,))))
    assert "! of an older step" in shown
    text = markdown([snapshot(Subject("run", "r", subject().state, (warned,)))], NOTES, "c")
    assert "**! of an older step**" in text


def test_a_line_of_the_notes_that_is_none_is_told():
    assert "notes.jsonl line 3 is no entry" in table(snapshot())


def test_an_empty_status_says_how_to_begin():
    shown = table(snapshot(), Notes((), ()))
    for command in ("dflashctl train start", "dflashctl deploy up", "dflashctl bench", "dflashctl note next add"):
        assert command in shown
