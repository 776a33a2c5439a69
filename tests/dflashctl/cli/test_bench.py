import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflashctl.artifacts import Workdir
from dflashctl.bundle import bundle_sha
from dflashctl.cli.app import main
from dflashctl.cli.output import Output
from dflashctl.cli.run_bench import Case, run_bench
from dflashctl.config.bench import BenchSpec
from dflashctl.config.servers import ServerSpec
from dflashctl.errors import ConfigError
from dflashctl.records import Proof, ServerRecord
from dflashctl.stages.bench.summary import read_report
from dflashctl.stages.deploy.apply import bring_down, bring_up
from dflashctl.transport.local import LocalTransport

ROOT = Path(__file__).resolve().parents[3]
TARGET = str(ROOT / "dflashctl" / "assets" / "demo_target")
PROBE = 1
WARM_UP = 1
"""Requests to each server before the first that counts."""


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{i}", "prompt": "abcde"[: i + 1]}) + "\n" for i in range(5)))
    return path


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / "work")


@pytest.fixture
def enlist(workdir, transport):
    """Makes a stand-in a server of the work folder, as if `deploy up` had started it."""

    def make(server, name, **changes):
        folder = workdir.path / "servers" / name
        folder.mkdir(parents=True)
        num_draft_tokens = server.num_draft_tokens or None
        fields = {
            "name": name,
            "host": "local",
            "engine": "reference",
            "base_url": server.base_url,
            "model": name,
            "target": TARGET,
            "drafter": "/d" if num_draft_tokens else None,
            "drafter_label": "mine@900" if num_draft_tokens else None,
            "num_draft_tokens": num_draft_tokens,
            "argv": (),
            "token": transport.token_of(os.getpid(), "marker"),
            "bundle_sha": "b",
            "started_at_s": 0.0,
            "proof": Proof(at_s=1.0, num_tokens=1, text="x", tau=None, num_verify_steps=0),
        }
        record = ServerRecord(**{**fields, **changes})
        (folder / "server.json").write_text(record.model_dump_json())
        spec = ServerSpec(name=name, target=TARGET, drafter=fields["drafter"])
        (folder / "deploy.json").write_text(spec.model_dump_json())
        return server

    return make


@pytest.fixture
def spec(openai_stand_in, enlist):
    return enlist(openai_stand_in(7), "spec")


@pytest.fixture
def base(openai_stand_in, enlist):
    return enlist(openai_stand_in(), "base")


@pytest.fixture
def bench(workdir, prompts, spec, base):
    def run(*more):
        options = ("--server", "spec", "--baseline", "base", "--prompts", str(prompts), "--max-new-tokens", "10")
        return main(["bench", *options, "--workdir", str(workdir.path), *more])

    return run


def folders(workdir):
    return sorted(workdir.benchmarks.glob("*"))


def test_a_benchmark_leaves_report_table_and_every_request(bench, workdir, capsys):
    assert bench() == 0
    (folder,) = folders(workdir)
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "requests.jsonl", "run.json", "table.md"]
    out = capsys.readouterr().out
    assert "speculative" in out and "5 of 5 greedy outputs are the baseline's, by token ids" in out
    assert "| c=1 | speculative |" in (folder / "table.md").read_text()


def test_json_is_the_report(bench, workdir, capsys):
    assert bench("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((folders(workdir)[0] / "run.json").read_text())
    assert document["tau"] == 3.0


def test_a_dry_run_asks_nobody_anything(bench, workdir, spec, base, capsys):
    assert bench("--dry-run", "--concurrency", "2") == 0
    assert (spec.bodies, base.bodies, folders(workdir)) == ([], [], [])
    out = capsys.readouterr().out
    assert spec.base_url in out and "10 in 2 turns" in out and "requests.jsonl" in out


def test_a_dry_run_shows_the_start_of_the_baseline(workdir, prompts, spec, capsys):
    arguments = ("--server", "spec", "--prompts", str(prompts), "--workdir", str(workdir.path), "--dry-run")
    assert main(["bench", *arguments]) == 0
    out = capsys.readouterr().out
    assert "spec-baseline" in out and "dflashctl_remote.entry.serve" in out and '"drafter": null' in out


def test_an_unknown_server_names_the_nearest(bench, capsys):
    assert bench("--server", "spek") == 2
    assert "did you mean spec?" in capsys.readouterr().err


def test_a_server_that_does_not_run_is_not_asked(bench, workdir, capsys):
    path = workdir.path / "servers" / "spec" / "server.json"
    record = ServerRecord.model_validate_json(path.read_text())
    gone = record.token.model_copy(update={"start_ticks": 2**40})
    path.write_text(record.model_copy(update={"token": gone, "stopped_at_s": 2.0}).model_dump_json())
    assert bench() == 6
    assert "server spec is not ready to be measured: it is stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--concurrency", "0"), "expected numbers of requests at a time, found 0"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("--baseline", "spec"), "--baseline is spec itself"),
        (("--rate", "0"), "bench.rate_per_s"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence_and_exit_2(bench, workdir, arguments, said, capsys):
    assert bench(*arguments) == 2
    assert said in capsys.readouterr().err
    assert folders(workdir) == []


def test_a_malformed_line_is_named(bench, prompts, capsys):
    prompts.write_text('{"prompt": "a"}\n{"prompt"\n')
    assert bench() == 2
    assert f"{prompts}:2: not JSON" in capsys.readouterr().err


def test_a_baseline_with_a_drafter_is_refused(bench, openai_stand_in, enlist, capsys):
    enlist(openai_stand_in(7), "other")
    assert bench("--baseline", "other") == 2
    assert "--baseline other has a drafter" in capsys.readouterr().err


def test_a_server_that_answers_500_is_exit_6(bench, workdir, spec, capsys):
    spec.fails_at = lambda number: 500
    assert bench() == 6
    assert "HTTP 500: it broke" in capsys.readouterr().err


def test_a_benchmark_that_proves_nothing_is_exit_7_and_kept(bench, workdir, spec, capsys):
    spec.num_accepted = 0
    assert bench() == 7
    assert "the benchmark proves nothing: none of" in capsys.readouterr().err
    report = read_report(folders(workdir)[0])
    assert not report.is_valid
    assert "tau is exactly 1" in (folders(workdir)[0] / "report.html").read_text()


def test_a_server_killed_in_mid_answer_is_exit_6_and_the_rest_can_be_asked_later(
    bench, workdir, spec, openai_stand_in, enlist, capsys
):
    spec.fails_at = lambda number: "die" if number == PROBE + 2 else None
    assert bench() == 6
    err = capsys.readouterr().err
    (folder,) = folders(workdir)
    assert "server spec does not answer any more" in err and f"--resume {folder}" in err
    assert not read_report(folder).is_valid
    for path in (workdir.path / "servers" / "spec").iterdir():
        path.unlink()
    (workdir.path / "servers" / "spec").rmdir()
    enlist(openai_stand_in(7), "spec")
    assert bench("--resume", str(folder)) == 0
    report = read_report(folder)
    assert report.num_segments == 2
    assert sum(row.num_requests for row in report.rows) == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_benchmark_goes_on_where_it_was(bench, workdir, spec, base, number, capsys):
    spec.before = lambda at: os.kill(os.getpid(), number) if at == PROBE + 2 else None
    assert bench() == 130
    (folder,) = folders(workdir)
    assert f"the same command with --resume {folder}" in capsys.readouterr().err
    spec.before = lambda at: None
    assert bench("--resume", str(folder)) == 0
    report = read_report(folder)
    assert report.num_segments == 2
    assert sum(row.num_requests for row in report.rows) == 10
    assert len(base.bodies) == 2 * (PROBE + WARM_UP) + 5, "each prompt once"


def test_where_nothing_is_left_nobody_is_asked(bench, workdir, spec, capsys):
    assert bench() == 0
    (folder,) = folders(workdir)
    num_asked = len(spec.bodies)
    assert bench("--resume", str(folder)) == 0
    assert "nothing is left to ask" in capsys.readouterr().err
    assert len(spec.bodies) == num_asked
    assert read_report(folder).num_segments == 1


def test_other_settings_are_no_way_to_go_on(bench, workdir, capsys):
    assert bench() == 0
    assert bench("--resume", str(folders(workdir)[0]), "--set", "bench.temperature=0.5") == 2
    assert "bench.temperature = 0.0, and now it is 0.5" in capsys.readouterr().err


def test_a_folder_that_is_no_benchmark_is_exit_5(bench, tmp_path, capsys):
    assert bench("--resume", str(tmp_path)) == 5
    assert bench("--compare", str(tmp_path)) == 5


@pytest.fixture
def measured(bench, workdir):
    """A benchmark's run.json, and one with a tau that is higher beyond doubt."""
    assert bench() == 0
    folder = folders(workdir)[0]
    report = read_report(folder)
    # What depends on the clock is not judged here.
    rows = tuple(row.model_copy(update={"throughput_ratio_ci": None}) for row in report.rows)
    plain = report.model_copy(update={"speedup_ci": None, "rows": rows})
    sure = report.tau_ci.model_copy(update={"low": 8.9, "high": 9.1})
    paths = workdir.path / "plain.json", workdir.path / "better.json"
    paths[0].write_text(plain.model_dump_json())
    paths[1].write_text(plain.model_copy(update={"tau": 9.0, "tau_ci": sure}).model_dump_json())
    return paths


def test_two_benchmarks_are_compared_by_their_intervals(measured, capsys):
    plain, better = map(str, measured)
    assert main(["bench", "compare", plain, plain]) == 0
    assert main(["bench", "compare", plain, better]) == 0
    capsys.readouterr()
    assert main(["bench", "compare", better, plain]) == 7
    captured = capsys.readouterr()
    assert "tau fell from 9.00 to 3.00" in captured.err
    assert "worse" in captured.out


def test_a_new_benchmark_can_be_held_against_an_old_one(measured, bench, capsys):
    assert bench("--compare", str(measured[0])) == 0
    assert bench("--compare", str(measured[1])) == 7
    assert "tau fell from 9.00 to 3.00" in capsys.readouterr().err


class StandInPython(LocalTransport):
    """A host whose interpreter starts the stand-in whatever module it is asked for."""

    def __init__(self, folder, stand_in):
        super().__init__()
        self._python = folder / "python"
        self._python.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in} "$@"\n')
        self._python.chmod(0o755)

    def python(self):
        return str(self._python)


@pytest.fixture
def case(workdir, prompts, spec, tmp_path):
    """A benchmark without --baseline."""
    asked = BenchSpec(server="spec", prompts=str(prompts), max_new_tokens=10, num_warmup=0)
    stand_in = ROOT / "tests" / "dflashctl" / "openai_stand_in.py"
    return replace(Case.of(asked, workdir.path, None), transport=StandInPython(tmp_path, stand_in))


def baseline_of(workdir):
    return workdir.server("spec-baseline").record()


def test_a_baseline_is_started_for_the_time_and_ended(case, workdir, transport):
    report, _ = run_bench(case, Output(is_json=True))
    record = baseline_of(workdir)
    assert report.is_valid
    assert report.servers["baseline"].is_temporary
    assert (report.servers["baseline"].base_url, record.drafter) == (record.base_url, None)
    assert transport.presence(record.token) == "gone"
    assert record.stopped_at_s is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_baseline_does_not_outlive_an_interrupted_benchmark(case, workdir, spec, transport, number):
    spec.before = lambda at: os.kill(os.getpid(), number) if at == PROBE + 1 else None
    with pytest.raises(BaseException, match="interrupted"):
        run_bench(case, Output(is_json=True))
    assert transport.presence(baseline_of(workdir).token) == "gone"


def test_a_baseline_does_not_outlive_a_server_that_cannot_be_asked(case, workdir, spec, transport):
    spec.fails_at = lambda number: 500
    with pytest.raises(BaseException, match="gave none"):
        run_bench(case, Output(is_json=True))
    assert transport.presence(baseline_of(workdir).token) == "gone"


def test_a_baseline_that_is_up_already_is_not_taken_for_ones_own(case, workdir, transport):
    plan = case.baseline_plan()
    bring_up(plan, workdir, case.transport, bundle_sha=bundle_sha(), say=lambda text: None)
    try:
        with pytest.raises(ConfigError, match="spec-baseline is up already"):
            run_bench(case, Output(is_json=True))
        assert transport.presence(baseline_of(workdir).token) == "alive"
    finally:
        bring_down(plan.server, transport, say=lambda text: None)
