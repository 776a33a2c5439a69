import json
from pathlib import Path

import pytest

from dflashctl.config.servers import ServerSpec
from dflashctl.engines.base import LaunchSite, SpecCounters
from dflashctl.engines.reference.engine import ReferenceEngine
from dflashctl.engines.registry import engine_of
from dflashctl.errors import ConfigError
from dflashctl_remote.spec.serve import ServeSpec

SITE = LaunchSite(python="/py", bundle_root=Path("/bundle"), folder=Path("/w/servers/a"))


def test_launch_writes_the_job_spec_that_the_bundle_reads():
    spec = ServerSpec(name="a", target="/target", port=8123, num_draft_tokens=5, options={"dtype": "float32"})
    launch = ReferenceEngine().launch(spec, Path("/drafter"), SITE)
    ((path, content),) = launch.files
    assert launch.argv == (
        "/py", "-m", "dflashctl_remote.entry.serve", "--spec", str(path), "--events", "/w/servers/a/events.jsonl",
    )  # fmt: skip
    written = ServeSpec.model_validate(json.loads(content))
    assert (written.target, written.drafter, written.port) == ("/target", "/drafter", 8123)
    assert (written.num_draft_tokens, written.dtype, written.served_name) == (5, "float32", "a")


def test_plain_decoding_has_no_drafter():
    launch = ReferenceEngine().launch(ServerSpec(name="a", target="/t"), None, SITE)
    assert json.loads(launch.files[0][1])["drafter"] is None


def test_an_option_it_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="no option mem_fraction_static"):
        ReferenceEngine().launch(ServerSpec(target="/t", options={"mem_fraction_static": 0.9}), None, SITE)


def test_counters_by_position_are_in_order():
    text = "".join(
        f"vllm:spec_decode_{name}_total{labels} {value}\n"
        for name, labels, value in (
            ("num_drafts", "", 10),
            ("num_draft_tokens", "", 110),
            ("num_accepted_tokens", "", 12),
            ("num_accepted_tokens_per_pos", '{position="10"}', 1),
            ("num_accepted_tokens_per_pos", '{position="2"}', 3),
            ("num_accepted_tokens_per_pos", '{position="0"}', 8),
        )
    )
    assert ReferenceEngine().counters(text) == SpecCounters(10, 110, 12, (8, 3, 1))


def test_a_server_that_counts_no_speculation_gives_none():
    assert ReferenceEngine().counters("vllm:num_requests_running 1\n") is None


def test_unknown_engine_names_those_that_exist():
    with pytest.raises(ConfigError, match="engine sglagn is not known") as caught:
        engine_of("sglagn")
    assert "reference" in caught.value.hint
