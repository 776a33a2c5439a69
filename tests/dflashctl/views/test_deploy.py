from pathlib import Path

import pytest

from dflashctl.artifacts import ServerRef
from dflashctl.config.servers import ServerSpec
from dflashctl.engines.base import Launch, SpecCounters
from dflashctl.facts.servers import ServerState
from dflashctl.records import Proof, ServerRecord
from dflashctl.stages.deploy.plan import DeployPlan, Drafter
from dflashctl.views.deploy import deploy_plan, down_plan, ready, servers
from dflashctl_remote.spec.process import ProcessToken

TOKEN = ProcessToken(boot_id="b", pid=4711, start_ticks=9, pid_namespace=3, uid=0, marker="/w/servers/a")


@pytest.fixture
def record():
    def make(**fields):
        return ServerRecord(
            **{
                "name": "a",
                "host": "local",
                "engine": "reference",
                "base_url": "http://127.0.0.1:8100",
                "model": "a",
                "target": "/targets/small",
                "drafter": "/d",
                "drafter_label": "r@300",
                "num_draft_tokens": 7,
                "argv": ("python",),
                "token": TOKEN,
                "bundle_sha": "0" * 64,
                "started_at_s": 1000.0,
                "proof": Proof(at_s=1012.0, num_tokens=48, text="hello", tau=3.04, num_verify_steps=16),
                **fields,
            }
        )

    return make


def test_a_row_says_what_was_proven_when_and_what_is_counted_now(record, text_of):
    state = ServerState("a", "ready", record(), SpecCounters(1200, 8400, 2520, ()), "", 3.1)
    text = text_of(servers([state], 1132.0), width=140)
    for part in ("ready", "127.0.0.1:8100", "small", "r@300", "3.04, 2 min 00 s ago", "3.10 (1,200 steps)"):
        assert part in text


def test_what_is_said_of_a_state_stands_in_full(record, text_of):
    detail = "it has a drafter, and /metrics counts no drafts: " + "word " * 30
    text = text_of(servers([ServerState("a", "unhealthy", record(), None, detail)], 1132.0))
    assert " ".join(text.split()).endswith(f"a: unhealthy: {detail.strip()}")


def test_a_port_that_is_not_known_yet_is_not_shown_as_zero(record, text_of):
    starting = ServerState("a", "starting", record(base_url="http://127.0.0.1:0", proof=None), None)
    assert "not known yet" in text_of(servers([starting], 1001.0), width=140)


def test_a_server_without_a_record_has_a_row(text_of):
    assert "unreadable" in text_of(servers([ServerState("a", "unreadable", None, None, "why")], 0.0))


def test_ready_names_the_evidence_and_that_the_engine_is_not_for_speed(record, text_of):
    text = text_of(ready(record(), was_running=False))
    assert "tau 3.04 over 16 verify steps" in text
    assert "not for speed" in text
    assert "is up already" in text_of(ready(record(), was_running=True))


def test_a_server_that_drafts_nothing_is_said_to_decode_plainly(record, text_of):
    plain = record(drafter=None, proof=Proof(at_s=1012.0, num_tokens=48, text="", tau=None, num_verify_steps=0))
    assert "plain decoding" in text_of(ready(plain, was_running=False))


def test_dry_run_shows_argv_environment_and_files_with_their_content(text_of):
    launch = Launch(
        ("/py", "-m", "x"), (("NAME", "value"),), ((Path("/w/servers/a/spec.json"), '{"port": 0}\n'),), ("torch",)
    )
    drafter = Drafter(Path("/d"), "r@300", None, 8)
    ref = ServerRef("a", Path("/w/servers/a"))
    plan = DeployPlan(ServerSpec(name="a", target="/t", port=0), ref, drafter, 7, "a", launch)
    text = text_of(deploy_plan(plan))
    for part in (
        "/py -m x",
        "NAME=value",
        "would write /w/servers/a/spec.json",
        '{"port": 0}',
        "any free one",
        "r@300",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("presence", "members", "said"),
    [
        ("alive", (TOKEN,), "SIGTERM to process 4711"),
        ("gone", (), "would signal nothing"),
        ("gone", (TOKEN,), "SIGKILL to what is left after the grace of: 4711"),
    ],
)
def test_dry_run_of_down_shows_who_would_be_signalled(record, text_of, presence, members, said):
    assert said in text_of(down_plan(record(), presence, members))
