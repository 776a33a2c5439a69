"""The job `generate`: a target and prompts in, JSONL of its own answers out."""

from dataclasses import asdict
from typing import Any

from dflashctl_remote.entry.door import run_entry
from dflashctl_remote.spec.data import GenerateSpec
from dflashctl_remote.spec.events import EventLog


def main() -> None:
    run_entry("generate", GenerateSpec, _body)


def _body(spec: GenerateSpec, events: EventLog) -> dict[str, Any]:
    import torch

    from dflashctl_remote.data.generate import generate

    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    return {"output": spec.output, **asdict(generate(spec, events.emit))}


if __name__ == "__main__":
    main()
