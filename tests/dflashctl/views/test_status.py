import re

from rich.console import Console

from dflashctl.stages.status.fact import Fact, Snapshot, Subject, unknown
from dflashctl.stages.status.notes import Note, Notes
from dflashctl.views.status import status
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
    return Snapshot("local", "/work", NOW_S, subjects)


def subject(state="running", sort="run", **changes):
    fields = {"kind": "live", "source": "/work/runs/r/events.jsonl", "at_s": 995.0, "value": state, **changes}
    facts = (
        Fact("tau", "1.90 without repeats", "measured", "/work/evaluations/e/report.json", 400.0, 1.9),
        Fact("time left", "5 min", "estimated", "/work/runs/r/events.jsonl", 995.0, 300.0),
        unknown("size", "nobody asked", "dflashctl data inspect"),
    )
    return Subject(sort, "r", Fact("state", state, **fields), facts)


def table(found, notes=NOTES):
    console = Console(width=140, no_color=True)
    with console.capture() as capture:
        console.print(status(found, notes))
    return capture.get()


def section(text, title):
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_document_has_its_seven_sections_in_order():
    text = markdown(snapshot(subject()), NOTES, "dflashctl status --format md")
    assert re.findall(r"^## (.*)$", text, flags=re.M) == SECTIONS
    assert re.findall(r"^### (.*)$", section(text, "Progress"), flags=re.M) == ["Done", "In Progress", "Blocked"]


def test_what_is_not_known_says_so_in_every_section():
    text = markdown(snapshot(), Notes((), ()), "c")
    for title in SECTIONS:
        assert "not known" in section(text, title)


def test_every_line_of_the_document_has_sort_age_and_source():
    text = markdown(snapshot(subject()), NOTES, "c")
    assert "*(measured, 10 min 00 s ago; evaluations/e/report.json)*" in text
    assert "*(estimated, 5 s ago; runs/r/events.jsonl)*" in text
    assert "*(by hand: ann, 1 min 40 s ago; note aaaaaa)*" in text


def test_a_subject_stands_where_its_state_puts_it():
    for state, title in (("finished", "Done"), ("running", "In Progress"), ("failed", "Blocked")):
        progress = section(markdown(snapshot(subject(state)), Notes((), ()), "c"), "Progress")
        assert "**run r**" in progress.split(f"### {title}")[1].split("###")[0]


def test_a_finished_step_moves_from_next_to_done():
    text = markdown(snapshot(), NOTES, "c")
    assert "relay" not in section(text, "Next Steps")
    assert "done 10 s ago by ann" in section(text, "Progress")


def test_marks_in_a_note_are_taken_literally():
    assert escaped("a*b_c [x](y) <z>") == r"a\*b\_c \[x\](y) \<z\>"
    assert r"tau of \*6\*" in markdown(snapshot(), NOTES, "c")


def test_the_table_tells_stale_and_estimated_apart_by_words():
    shown = table(snapshot(subject(at_s=10.0, stale_after_s=120.0)))
    assert "16 min 30 s ago, STALE" in shown
    assert "estimated" in shown
    assert "not known: nobody asked" in shown


def test_a_warning_stands_beside_its_fact():
    warned = Fact("tau", "1.9", "measured", "/work/e", 1.0, 1.9, warning="of an older step")
    shown = table(snapshot(Subject("run", "r", subject().state, (warned,))))
    assert "! of an older step" in shown
    text = markdown(snapshot(Subject("run", "r", subject().state, (warned,))), NOTES, "c")
    assert "**! of an older step**" in text


def test_a_line_of_the_notes_that_is_none_is_told():
    assert "notes.jsonl:3 is no entry" in table(snapshot())


def test_an_empty_status_says_how_to_begin():
    shown = table(snapshot(), Notes((), ()))
    for command in ("dflashctl train start", "dflashctl deploy up", "dflashctl bench", "dflashctl note next add"):
        assert command in shown
