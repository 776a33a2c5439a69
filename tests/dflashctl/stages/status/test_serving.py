import pytest

from dflashctl.engines.base import SpecCounters
from dflashctl.facts.servers import ServerState
from dflashctl.records import Proof, ServerRecord
from dflashctl.stages.status.measured import benchmarks_of
from dflashctl.stages.status.serving import benchmark_subjects, server_subject, subject_of
from dflashctl_remote.spec.process import ProcessToken

NOW_S = 2_000_000.0
ADDRESS = "http://127.0.0.1:1"
PROOF = Proof(at_s=NOW_S - 80, num_tokens=48, text="hello", tau=3.0, num_verify_steps=16)


def record(**changes):
    token = ProcessToken(boot_id="b", pid=7, start_ticks=2**40, pid_namespace=1, uid=0, marker="m")
    fields = {
        "name": "s", "host": "local", "engine": "reference", "base_url": ADDRESS, "model": "m", "target": "/targets/t",
        "drafter": "/d", "drafter_label": "r@400", "num_draft_tokens": 7, "argv": ("python",), "token": token,
        "bundle_sha": "0" * 64, "started_at_s": NOW_S - 90, "proof": PROOF,
    }  # fmt: skip
    return ServerRecord(**{**fields, **changes})


def subject(state="ready", live=None, detail="", **changes):
    return subject_of(ServerState("s", state, record(**changes), live, detail), "/w/server.json", NOW_S)


def facts_of(found):
    return {fact.name: fact for fact in (found.state, *found.facts)}


def test_a_ready_server_was_asked_now_and_its_record_is_as_old_as_its_start():
    found = facts_of(subject(live=SpecCounters(100, 700, 150, ())))
    assert (found["state"].kind, found["state"].age_s(NOW_S)) == ("live", 0.0)
    assert found["state"].source == f"process 7, {ADDRESS}/health"
    assert (found["drafter"].text, found["drafter"].age_s(NOW_S)) == ("r@400", 90.0)
    assert found["proof"].text == "tau 3.00 over 16 verify steps, 48 tokens"
    assert found["proof"].age_s(NOW_S) == 80.0
    live = found["live tau"]
    assert (live.value, live.kind, live.source) == (2.5, "live", f"{ADDRESS}/metrics")


def test_a_server_that_drafted_nothing_yet_has_no_live_tau():
    assert facts_of(subject(live=SpecCounters(0, 0, 0, ())))["live tau"].kind == "unknown"


def test_a_server_that_is_gone_is_not_asked():
    found = facts_of(subject("stopped", stopped_at_s=NOW_S - 20))
    assert (found["state"].age_s(NOW_S), found["state"].source) == (20.0, "process 7, /w/server.json")
    assert "live tau" not in found


def test_a_server_that_was_never_proven_says_so():
    found = facts_of(subject("starting", proof=None))
    assert (found["proof"].kind, found["proof"].source) == ("unknown", "dflashctl deploy up")


def test_plain_decoding_has_no_tau():
    proof = PROOF.model_copy(update={"tau": None})
    found = facts_of(subject(drafter=None, drafter_label=None, proof=proof))
    assert found["drafter"].text == "none, plain decoding"
    assert found["proof"].text == "one answer of 48 tokens"
    assert "live tau" not in found


def test_a_server_of_another_boot_is_found_lost(workdir, transport):
    ref = workdir.server("s")
    ref.folder.mkdir(parents=True)
    ref.record_path.write_text(record().model_dump_json())
    assert server_subject(ref, transport, NOW_S).state.value == "lost to reboot"


@pytest.fixture
def benchmark(workdir):
    """The facts of the only benchmark shown."""

    def of(*servers):
        (found,) = benchmark_subjects(benchmarks_of(workdir)[0], servers)
        return facts_of(found)

    return of


def test_the_newest_benchmark_of_a_server_is_shown(benchmarked, benchmark):
    benchmarked(name="s-2", ended_at_s=NOW_S - 1000, tau=1.2)
    benchmarked(name="s-1")
    found = benchmark()
    assert found["state"].text == "valid, the newest of 2 of this server"
    assert (found["served tau"].value, found["served tau"].age_s(NOW_S)) == (1.7, 400.0)
    assert found["speed-up"].text == "0.80x plain decoding, slower"


def test_a_benchmark_that_is_not_valid_taints_its_figures(benchmarked, benchmark):
    benchmarked(is_valid=False)
    found = benchmark()
    assert found["state"].value == "not valid"
    assert found["served tau"].warning == found["speed-up"].warning == "the benchmark is not valid"


def test_what_was_not_compared_is_not_known(benchmarked, benchmark):
    benchmarked(speedup=None, is_lossless=None)
    found = benchmark()
    assert found["speed-up"].kind == found["lossless"].kind == "unknown"


def test_answers_that_changed_are_a_warning(benchmarked, benchmark):
    benchmarked(is_lossless=False)
    assert benchmark()["lossless"].warning == "it changes answers"


def test_a_benchmark_of_the_drafter_before_says_so(benchmarked, benchmark):
    benchmarked()
    assert benchmark(subject())["server"].warning == ""
    warning = benchmark(subject(drafter_label="r@900"))["server"].warning
    assert warning == "measured with r@400, and the server's record says r@900"
