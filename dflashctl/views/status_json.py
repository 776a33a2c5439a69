"""The status for machines; docs/status.md says what the keys mean."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dflashctl.stages.status.fact import Fact, Snapshot
from dflashctl.stages.status.notes import Notes

SCHEMA_VERSION = 1


def document(snapshots: Sequence[Snapshot], notes: Notes, command: str, at_s: float) -> dict[str, Any]:
    """One document for all hosts."""
    return {
        "schema_version": SCHEMA_VERSION,
        "at_s": at_s,
        "command": command,
        "hosts": [_host(snapshot) for snapshot in snapshots],
        "notes": [{**dataclasses.asdict(note), "age_s": max(0.0, at_s - note.at_s)} for note in notes.notes],
        "notes_problem": notes.problem,
        "bad_note_lines": list(notes.bad_lines),
    }


def _host(snapshot: Snapshot) -> dict[str, Any]:
    subjects = [
        {
            "sort": subject.sort,
            "name": subject.name,
            "state": _fact(subject.state, snapshot),
            "facts": [_fact(fact, snapshot) for fact in subject.facts],
        }
        for subject in snapshot.subjects
    ]
    return {
        "host": snapshot.host,
        "workdir": snapshot.workdir,
        "at_s": snapshot.at_s,
        "subjects": subjects,
        "problems": [_fact(fact, snapshot) for fact in snapshot.problems],
    }


def _fact(fact: Fact, snapshot: Snapshot) -> dict[str, Any]:
    return {
        **dataclasses.asdict(fact),
        "age_s": fact.age_s(snapshot.at_s),
        "is_stale": fact.is_stale(snapshot.at_s),
    }
