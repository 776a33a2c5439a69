"""What docs/scaling.md says of several hosts: torchrun on each, a folder that all see, and the run is that of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dflashctl_remote.spec.events import Finished, Step, parse_event
from dflashctl_remote.spec.placement import PlacementSpec

ROOT = Path(__file__).parents[3]
LIMIT_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_torchrun_on_two_hosts_trains_what_one_process_trains(make_record, tmp_path):
    alone = losses_of(make_record, tmp_path / "alone", PlacementSpec(), [[sys.executable]])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
    hosts = [[*torchrun, *meeting] for _ in range(2)]
    assert losses_of(make_record, tmp_path / "two", PlacementSpec(nodes=2), hosts) == pytest.approx(alone, rel=1e-5)


def losses_of(make_record, run_dir: Path, placement: PlacementSpec, starts: list[list[str]]) -> list[float]:
    """Of the run's steps, once all that was started has ended."""
    run_dir.mkdir()
    record = make_record(placement=placement, num_steps=3)
    (run_dir / "run.json").write_text(record.model_dump_json())
    job = ["-m", "dflashctl_remote.entry.train", "--spec", f"{run_dir}/run.json", "--events", f"{run_dir}/events.jsonl"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "remote"), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*start, *job], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for start in starts
    ]
    try:
        for process in processes:
            said, _ = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in processes:
            process.kill()
    events = [parse_event(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert isinstance(events[-1], Finished)
    return [event.loss for event in events if isinstance(event, Step)]
