import json
from pathlib import Path

import pytest

from dflashctl.errors import ConfigError
from dflashctl.stages.jobs import Site, plan_job, start_job
from dflashctl_remote.spec.data import TokenizeSpec

SPEC = TokenizeSpec(target="/t", input="/i", output="/o")
SITE = Site(host="local", python="/py", bundle_root=Path("/bundle"))


class EmptyHost:
    name = "local"

    def python(self):
        return "/py"

    def missing_modules(self, names):
        return names[:1]


def test_plan_is_an_argument_list_with_the_bundle_on_the_path():
    plan = plan_job("tokenize", SPEC, Path("/srv/j"), SITE, writes=(Path("/o"),))
    entry = ("/py", "-m", "dflashctl_remote.entry.tokenize")
    assert plan.job.argv == (*entry, "--spec", "/srv/j/spec.json", "--events", "/srv/j/events.jsonl")
    assert dict(plan.job.env)["PYTHONPATH"] == "/bundle"
    assert json.loads(plan.spec_json)["input"] == "/i"


def test_host_without_torch_is_told_how_to_get_it(tmp_path):
    plan = plan_job("tokenize", SPEC, tmp_path / "j", SITE, writes=())
    with pytest.raises(ConfigError, match="need torch, not found for /py") as caught:
        start_job(plan, EmptyHost())
    assert "dflashctl[train]" in caught.value.hint
    assert not (tmp_path / "j").exists()
