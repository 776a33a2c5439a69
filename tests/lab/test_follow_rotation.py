"""Following a log that the supervisor rotates, while links break: not a byte is lost or doubled."""

from pathlib import Path

import pytest

from dflashctl.artifacts import RunRef
from dflashctl.facts.host_stream import follow
from dflashctl.operations.bundle import ensure_bundle
from dflashctl.operations.launch import launch
from dflashctl.operations.stop import stop
from dflashctl.operations.supervised import SupervisedJob
from shells import Shells

LINES = 4000


@pytest.fixture
def shell(operator):
    shells = Shells(operator)
    yield shells("ct129")
    shells.close()


def test_a_rotated_log_is_followed_through_broken_links(shell, ct129, tmp_path):
    workdir = f"{ct129.home()}/{tmp_path.name}"
    bundle = ensure_bundle(shell, workdir)
    run = RunRef("r1", Path(f"{workdir}/runs/r1"), "ct129")
    write = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); printf '%06d \\033[1m%040d\\r\\n' $i $i; done; sleep 2"
    job = SupervisedJob(
        name="r1",
        folder=str(run.folder),
        argv=("/bin/sh", "-c", write),
        env=(),
        files=(),
        supervisor=bundle.supervisor,
        workdir=workdir,
        log_limit_bytes=16_384,
        num_logs=100,
    )
    launch(shell, job)
    content = b""
    pieces = follow(shell, run, "log", offset=0, say=lambda line: None, pause=lambda seconds: None)
    for number, piece in enumerate(pieces):
        assert piece.at == len(content)
        content += piece.content
        if number % 2:
            ct129.kill_sessions()
    rotated = [name for name in ct129.exec(["ls", str(run.folder)]).out.split() if name.startswith("log.")]
    assert len(rotated) > 5
    expected = "".join(f"{i:06d} \033[1m{i:040d}\r\n" for i in range(1, LINES + 1)).encode()
    assert content == expected
    stop(shell, str(run.folder), who="test", grace_s=1)
