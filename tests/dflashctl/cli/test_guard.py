import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dflashctl import errors
from dflashctl.cli.guard import guarded
from dflashctl_remote.spec.errors import ArtifactCorrupt, BadInput


def raiser(error):
    def body():
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DflashctlError("x"), 1),
        (errors.ConfigError("x"), 2),
        (BadInput("x"), 2),
        (typer.BadParameter("x"), 2),
        (errors.HostUnreachable("x", host="h"), 3),
        (errors.JobFailed("x", host="h"), 4),
        (errors.JobFailed("x", host="h", exit_code=5), 5),
        (errors.ArtifactError("x"), 5),
        (ArtifactCorrupt("x"), 5),
        (errors.Regression("x"), 7),
        (errors.Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
        (SystemExit(1), 141),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 2),
        (OSError(errno.ENOSPC, "No space left on device", "/w/run.json"), 4),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code, capsys):
    assert guarded(raiser(error)) == code


def test_body_that_returns_a_code_passes_it_on():
    assert guarded(lambda: 130) == 130
    assert guarded(lambda: None) == 0


def test_user_sees_one_sentence_and_what_to_do_next(capsys):
    guarded(raiser(errors.ConfigError("no such run", hint="dflashctl train list")))
    assert capsys.readouterr().err == "dflashctl: no such run\n  next: dflashctl train list\n"


def test_file_that_cannot_be_used_is_named(capsys):
    guarded(raiser(PermissionError(errno.EACCES, "Permission denied", "/root/x")))
    assert capsys.readouterr().err == "dflashctl: /root/x: Permission denied\n"


def test_traceback_only_with_debug(capsys):
    guarded(raiser(ZeroDivisionError("x")))
    assert "Traceback" not in capsys.readouterr().err
    guarded(raiser(ZeroDivisionError("x")), is_debug=True)
    assert "Traceback" in capsys.readouterr().err


def test_debug_shows_the_traceback_of_the_job(capsys):
    guarded(raiser(errors.JobFailed("x", host="ct129", traceback="line 7 of loop.py")), is_debug=True)
    assert "in the job on ct129:\nline 7 of loop.py" in capsys.readouterr().err


def test_machines_get_the_error_as_json(capsys):
    guarded(raiser(errors.Regression("worse", hint="h")), is_json=True)
    captured = capsys.readouterr()
    expected = {"name": "Regression", "message": "worse", "hint": "h", "exit_code": 7}
    assert json.loads(captured.err)["error"] == expected
    assert captured.out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_does_not_fit_on_the_disk_exits_4_in_one_sentence():
    command = [sys.executable, "-m", "dflashctl", "config", "check", "/dev/null", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert json.loads(done.stderr)["error"]["message"] == "No space left on device"
