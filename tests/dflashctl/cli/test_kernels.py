import json

import pytest

from dflashctl.cli.app import main


@pytest.mark.parametrize("action", ["test", "bench"])
def test_dry_run_prints_the_job_and_writes_nothing(tmp_path, action, capsys):
    assert main(["kernels", action, "linear_ce", "--workdir", str(tmp_path), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["job"]["argv"][1:3] == ["-m", "dflashctl_remote.entry.kernels"]
    spec = json.loads(plan["spec_json"])
    assert (spec["action"], spec["kernels"], spec["device"]) == (action, ["linear_ce"], "auto")
    assert list(tmp_path.iterdir()) == []


def test_report_goes_where_it_is_asked_for(tmp_path, capsys):
    output = tmp_path / "r.json"
    words = ["kernels", "test", "--device", "cpu", "--output", str(output), "--workdir", str(tmp_path)]
    assert main([*words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["writes"] == [str(output)]


def test_unknown_host_exits_2(tmp_path, capsys):
    assert main(["kernels", "test", "--host", "kpro7", "--workdir", str(tmp_path)]) == 2
    assert "host kpro7 is not known" in capsys.readouterr().err
