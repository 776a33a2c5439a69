"""`deploy` from the arguments to the exit code, with a bundle whose server behaves as its name says."""

import json
import subprocess
import sys

import pytest

from dflashctl.artifacts import Workdir
from dflashctl.cli.app import main
from dflashctl.transport.local import LocalTransport

SIZE = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SIZE))
    return folder


@pytest.fixture
def deploy(tmp_path, target, fake_bundle, monkeypatch, capsys):
    """Runs `deploy WORDS`; gives the exit code, stdout and stderr. Ends what it started."""
    monkeypatch.setattr("dflashctl.bundle.bundle_root", lambda: fake_bundle)
    work = tmp_path / "work"

    def run(verb, *words):
        given = ["--target", str(target), "--port", "0"] if verb == "up" else []
        code = main(["deploy", verb, *words, *given, "--workdir", str(work)])
        return code, *capsys.readouterr()

    yield run
    for server in Workdir(work).servers():
        assert main(["deploy", "down", "--server", server.name, "--workdir", str(work)]) == 0


def test_a_server_comes_up_is_listed_read_and_ended(deploy):
    code, out, err = deploy("up", "--server", "plain")
    assert code == 0
    assert "server plain is ready" in out
    assert "asking for a completion" in err
    code, out, _ = deploy("list", "--json")
    (listed,) = json.loads(out)
    assert (listed["name"], listed["state"], listed["record"]["drafter"]) == ("plain", "ready", None)
    code, out, _ = deploy("up", "--server", "plain")
    assert (code, "is up already, with the same settings" in out) == (0, True)
    code, out, _ = deploy("down", "--server", "plain", "--dry-run", "--json")
    assert json.loads(out)["presence"] == "alive"
    code, out, err = deploy("down", "--server", "plain")
    assert (code, "nothing of it is left, port" in out) == (0, True)
    code, out, _ = deploy("down", "--server", "plain")
    assert (code, "nothing was signalled" in out) == (0, True)


def test_a_server_that_dies_exits_6_with_the_end_of_its_log(deploy):
    code, _, err = deploy("up", "--server", "dies")
    assert code == 6
    assert "cannot go on" in err
    code, out, _ = deploy("logs", "--server", "dies", "-n", "1", "--json")
    assert json.loads(out) == ["cannot go on"]


def test_a_setting_that_the_job_refuses_exits_with_its_code(deploy):
    code, _, err = deploy("up", "--server", "refuses")
    assert code == 2
    assert "the drafter is of another target" in err


def test_logs_can_be_followed_until_the_server_ends(deploy):
    deploy("up", "--server", "dies")
    code, out, _ = deploy("logs", "--server", "dies", "--follow")
    assert (code, out) == (0, "cannot go on\n")


def test_dry_run_prints_what_would_run_and_writes_nothing(deploy, tmp_path):
    code, out, _ = deploy("up", "--server", "plain", "--dry-run", "--json")
    plan = json.loads(out)["plan"]
    assert code == 0
    assert plan["launch"]["argv"][1:3] == ["-m", "dflashctl_remote.entry.serve"]
    assert json.loads(plan["launch"]["files"][0][1])["served_name"] == "plain"
    assert not (tmp_path / "work").exists()


def test_an_unknown_server_is_answered_with_the_nearest_name(deploy):
    deploy("up", "--server", "dies")
    for verb in ("down", "logs"):
        code, _, err = deploy(verb, "--server", "died")
        assert code == 2
        assert "did you mean dies?" in err


def test_no_server_is_a_sentence(deploy):
    code, out, _ = deploy("list")
    assert (code, out.startswith("no server in")) == (0, True)
    code, out, _ = deploy("list", "--json")
    assert json.loads(out) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "sglagn"), "engine sglagn is not known"),
        (("--set", "deploy.options.tp_size=2"), "no option tp_size"),
        (("--set", "deploy.num_draft_token=3"), "did you mean deploy.num_draft_tokens?"),
        (("--drafter", "nobody@latest"), "there is no run nobody"),
        (("--host", "elsewhere"), "host elsewhere is not known"),
        (("--server", "a b"), "cannot be a server's name"),
    ],
)
def test_what_cannot_be_served_is_refused_before_launch(deploy, tmp_path, words, said):
    code, _, err = deploy("up", "--server", "a", *words)
    assert code == 2
    assert said in err
    assert not (tmp_path / "work" / "servers").exists()


def test_json_has_no_end_where_logs_are_followed(deploy):
    deploy("up", "--server", "dies")
    assert deploy("logs", "--server", "dies", "--follow", "--json")[0] == 2


def test_ctrl_c_while_a_server_starts_ends_it_and_says_so(tmp_path, target, fake_bundle):
    """The server sends its parent what a terminal would."""
    code = (
        "import sys; from pathlib import Path; import dflashctl.bundle\n"
        f"dflashctl.bundle.bundle_root = lambda: Path({str(fake_bundle)!r})\n"
        "from dflashctl.cli.app import main; sys.exit(main())"
    )
    words = ("deploy", "up", "--server", "interrupts", "--target", str(target), "--port", "0")
    work = tmp_path / "work"
    ended = subprocess.run(
        [sys.executable, "-c", code, *words, "--workdir", str(work)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 130
    assert "interrupted; server interrupts was ended again" in ended.stderr
    assert "Traceback" not in ended.stderr
    record = Workdir(work).server("interrupts").record()
    assert LocalTransport().presence(record.token) == "gone"
