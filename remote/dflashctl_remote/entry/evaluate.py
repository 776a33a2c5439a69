"""The job `evaluate`: a checkpoint, its target and prompts in; a folder with the report and all answers out."""

from typing import Any

from dflashctl_remote.entry.door import run_entry
from dflashctl_remote.spec.evaluate import EvalSpec
from dflashctl_remote.spec.events import EventLog


def main() -> None:
    run_entry("evaluate", EvalSpec, _body)


def _body(spec: EvalSpec, events: EventLog) -> dict[str, Any]:
    import torch

    from dflashctl_remote.evaluate.measure import evaluate

    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    report = evaluate(spec, events.emit)
    return {"output": spec.output, **report.model_dump(mode="json")}


if __name__ == "__main__":
    main()
