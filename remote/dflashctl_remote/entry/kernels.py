"""The job `kernels`: checks, and on request times, the kernels on this machine; a KernelsReport as JSON out."""

import os
from pathlib import Path
from typing import Any

from dflashctl_remote.entry.door import run_entry
from dflashctl_remote.spec.events import EventLog
from dflashctl_remote.spec.kernels import KernelsSpec
from dflashctl_remote.spec.manifest import write_atomically


def main() -> None:
    run_entry("kernels", KernelsSpec, _body)


def _body(spec: KernelsSpec, events: EventLog) -> dict[str, Any]:
    import torch

    if spec.device == "cpu" or not torch.cuda.is_available():
        # Read by Triton when it is imported, which therefore must come after.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    from dflashctl_remote.kernels.report import make_report

    report = make_report(spec, events.emit)
    output = Path(spec.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, report.model_dump_json(indent=2) + "\n")
    return {"output": spec.output, "num_checks": len(report.checks), "num_failed": len(report.failed)}


if __name__ == "__main__":
    main()
