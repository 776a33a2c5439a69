"""The job `inspect`: a dataset folder in, an InspectReport as JSON out."""

from pathlib import Path
from typing import Any

from dflashctl_remote.data.inspect import inspect
from dflashctl_remote.entry.door import run_entry
from dflashctl_remote.spec.data import InspectSpec
from dflashctl_remote.spec.events import EventLog
from dflashctl_remote.spec.manifest import write_atomically


def main() -> None:
    run_entry("inspect", InspectSpec, _body)


def _body(spec: InspectSpec, events: EventLog) -> dict[str, Any]:
    report = inspect(spec)
    output = Path(spec.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, report.model_dump_json(indent=2) + "\n")
    return {"output": spec.output, "num_documents": report.info.num_documents}


if __name__ == "__main__":
    main()
