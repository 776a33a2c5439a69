"""The job `tokenize`: JSONL of conversations in, dataset folder out."""

from typing import Any

from dflashctl_remote.data.tokenize import tokenize
from dflashctl_remote.entry.door import run_entry
from dflashctl_remote.spec.data import TokenizeSpec
from dflashctl_remote.spec.events import EventLog, Notice, Progress


def main() -> None:
    run_entry("tokenize", TokenizeSpec, _body)


def _body(spec: TokenizeSpec, events: EventLog) -> dict[str, Any]:
    done = tokenize(
        spec,
        lambda at, total: events.emit(Progress(what="tokenize", done=at, total=total, unit="bytes")),
    )
    for notice in done.notices:
        events.emit(Notice(message=notice))
    return {"output": spec.output, "was_up_to_date": done.was_up_to_date, **done.info.model_dump()}


if __name__ == "__main__":
    main()
