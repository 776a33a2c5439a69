import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from dflashctl.errors import ConfigError, EngineUnhealthy, Interrupted
from dflashctl.facts.servers import state_of
from dflashctl.stages.deploy import apply
from dflashctl.stages.deploy.apply import bring_down
from dflashctl.transport import http


def test_ready_means_that_drafts_were_accepted(plan, up, transport, workdir):
    came = up(plan())
    assert came.record.proof.tau == 2.0
    assert came.record.proof.num_verify_steps == 8
    assert state_of(workdir.server("good"), transport).state == "ready"
    assert state_of(workdir.server("good"), transport).live.num_drafts == 8


def test_the_record_holds_no_more_than_what_was_seen(plan, up, workdir):
    up(plan())
    record = workdir.server("good").record()
    assert record.base_url.startswith("http://127.0.0.1:")
    assert not record.base_url.endswith(":0")
    assert record.num_draft_tokens == 7
    assert record.stopped_at_s is None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("rejects", "none of 84 drafts in 12 verify steps was accepted"),
        ("plain", "counts no drafts"),
        ("sick", "listens and is not healthy"),
        ("mute", "healthy and gives no completion: 500 no"),
        ("dies", r"(?s)exit code 3.*cannot go on"),
        ("dies-at-work", r"(?s)ended before it was ready \(exit code 9\).*out of memory"),
        ("ends-early", "was stopped while it started: somebody else asked"),
    ],
)
def test_a_server_that_is_not_proven_is_ended_again(plan, up, transport, workdir, how, said):
    with pytest.raises(EngineUnhealthy, match=said) as caught:
        up(plan(how))
    assert caught.value.exit_code == 6
    record = workdir.server(how).record()
    assert transport.family(record.token) == ()
    assert record.failure in str(caught.value)


def test_a_server_that_does_not_come_up_in_time_is_ended_again(plan, up, transport, workdir):
    with pytest.raises(EngineUnhealthy, match=r"did not come up within 0 s"):
        up(plan("silent"), timeout_s=0.0)
    record = workdir.server("silent").record()
    assert transport.presence(record.token) == "gone"
    assert state_of(workdir.server("silent"), transport).state == "failed"


def test_what_it_prints_while_it_starts_is_told(plan, up):
    said = []
    up(plan(), said)
    assert [line.partition(":")[0] for line in said] == ["good", "good"]
    assert "asking for a completion" in said[1]


def test_a_setting_that_the_engine_refuses_keeps_its_exit_code(plan, up):
    with pytest.raises(ConfigError, match="of another target") as caught:
        up(plan("refuses"))
    assert caught.value.exit_code == 2


def test_the_same_server_again_is_not_started_twice(plan, up):
    first = up(plan())
    again = up(plan())
    assert again.was_running
    assert again.record.token == first.record.token


def test_the_name_of_a_running_server_is_taken_for_another(plan, up):
    up(plan())
    with pytest.raises(ConfigError, match="runs already with other settings"):
        up(plan(num_draft_tokens=3))


def test_other_code_or_other_weights_are_not_the_same_server(plan, up, checkpoint):
    up(plan())
    with pytest.raises(ConfigError, match=r"runs already with other code .bundle 0{12}, now 1{12}"):
        up(plan(), bundle_sha="1" * 12)
    made = plan()
    with pytest.raises(ConfigError, match="other weights of its drafter"):
        up(replace(made, drafter=replace(made.drafter, sha256="f" * 64)))


def test_a_name_for_the_same_checkpoint_is_the_same_server(plan, up, checkpoint):
    up(plan())
    assert up(plan(drafter=f"{checkpoint()}/.")).was_running


def test_a_server_that_was_never_proven_is_not_called_running(plan, up, workdir):
    server = workdir.server("good")
    record = up(plan()).record
    server.record_path.write_text(record.model_copy(update={"proof": None}).model_dump_json())
    with pytest.raises(ConfigError, match="cut off before it was proven"):
        up(plan())


def test_the_same_server_that_is_ill_is_not_called_running(plan, up, workdir, transport):
    record = up(plan()).record
    assert transport.send(record.token, signal.SIGSTOP)
    away = record.model_copy(update={"base_url": "http://127.0.0.1:1"})
    workdir.server("good").record_path.write_text(away.model_dump_json())
    with pytest.raises(EngineUnhealthy, match="not healthy"):
        up(plan())
    assert transport.send(record.token, signal.SIGCONT)
    workdir.server("good").record_path.write_text(record.model_dump_json())


def test_what_is_left_of_the_last_start_must_go_first(plan, up, workdir, transport):
    record = up(plan("leaves-a-worker", name="w")).record
    worker = next(member for member in transport.family(record.token) if member != record.token)
    carries = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import signal; signal.pause()"],
        env={**os.environ, **dict(plan("leaves-a-worker", name="w").launch.env), "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
    )
    with carries:
        carries.stdout.readline()
        assert transport.send(record.token, signal.SIGKILL)
        assert transport.wait_gone(record.token, 10.0)
        with pytest.raises(ConfigError, match=f"process {carries.pid} of it is still there"):
            up(plan("leaves-a-worker", name="w"))
        down = bring_down(workdir.server("w"), transport, say=lambda text: None)
        assert f"process {carries.pid} had to be killed" in down.how
    assert transport.send(worker, signal.SIGKILL)


def test_a_taken_port_is_refused_before_launch_naming_our_server(plan, up, workdir):
    port = int(up(plan()).record.base_url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port {port} on local is taken by our own server good"):
        up(plan("other", port=port))
    assert not workdir.server("other").record_path.exists()


def test_a_port_that_a_stranger_holds_is_refused(plan, up):
    with http.socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(ConfigError, match="not one of ours"):
            up(plan(port=stranger.getsockname()[1]))


def test_of_two_starts_at_once_one_is_refused(plan, workdir, transport, up):
    made = plan()
    made.server.folder.mkdir(parents=True)
    holding = "import fcntl, os, sys; f = open(sys.argv[1], 'a+'); fcntl.flock(f, fcntl.LOCK_EX); f.truncate(0); \
f.write(str(os.getpid())); f.flush(); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(made.server.folder / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"another command .process {other.pid}. is starting server good"):
            up(made)
        other.communicate(b"")
    assert up(made).record.proof is not None


def test_two_threads_start_it_once(plan, workdir, transport, up):
    made = plan()
    ends = []

    def start():
        try:
            ends.append(up(made))
        except ConfigError as error:
            ends.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started = [end for end in ends if isinstance(end, apply.Up) and not end.was_running]
    assert len(started) == 1


def test_down_ends_it_and_proves_it(plan, up, transport, workdir):
    record = up(plan()).record
    down = bring_down(workdir.server("good"), transport, say=lambda text: None)
    assert "ended when asked" in down.how
    assert transport.presence(record.token) == "gone"
    assert state_of(workdir.server("good"), transport).state == "stopped"
    assert transport.is_port_free(int(record.base_url.rpartition(":")[2]))


def test_down_ends_workers_that_lost_the_marker(plan, up, transport, workdir):
    record = up(plan("leaves-a-worker", name="w")).record
    members = transport.family(record.token)
    assert len(members) == 2
    bring_down(workdir.server("w"), transport, say=lambda text: None)
    assert [transport.presence(member) for member in members] == ["gone", "gone"]


def test_a_port_that_stays_taken_is_no_end(plan, up, transport, workdir):
    up(plan("keeps-its-port", name="k"))
    server = workdir.server("k")
    with pytest.raises(EngineUnhealthy, match="somebody still listens on its port"):
        bring_down(server, transport, say=lambda text: None)
    (server.folder / "leash").unlink()


def test_ending_twice_is_no_error(plan, up, transport, workdir):
    up(plan())
    bring_down(workdir.server("good"), transport, say=lambda text: None)
    stopped_at_s = workdir.server("good").record().stopped_at_s
    again = bring_down(workdir.server("good"), transport, say=lambda text: None)
    assert "gone already; nothing was signalled" in again.how
    assert workdir.server("good").record().stopped_at_s == stopped_at_s


def test_a_server_of_another_namespace_that_answers_is_left_alone(plan, up, transport, workdir):
    server = workdir.server("good")
    record = up(plan()).record
    away = record.token.model_copy(update={"pid_namespace": 1})
    server.record_path.write_text(record.model_copy(update={"token": away}).model_dump_json())
    with pytest.raises(ConfigError, match="another PID namespace"):
        bring_down(server, transport, say=lambda text: None)
    assert transport.presence(record.token) == "alive"
    server.record_path.write_text(record.model_dump_json())


def test_ctrl_c_in_the_grace_of_down_says_that_it_may_still_be_ending(plan, up, transport, workdir):
    record = up(plan("ignores")).record

    def press(text):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="may still be ending"):
        bring_down(workdir.server("ignores"), transport, say=press)
    assert transport.send(record.token, signal.SIGKILL)
    assert transport.wait_gone(record.token, 10.0)


def test_second_ctrl_c_while_it_starts_kills(plan, up, transport, workdir):
    seen = []

    def press(text):
        seen.append(text)
        if "answers; asking" in text or "asked process" in text:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="was ended again"):
        apply.bring_up(plan("ignores"), workdir, transport, bundle_sha="0" * 12, say=press)
    record = workdir.server("ignores").record()
    assert transport.presence(record.token) == "gone"
    assert seen[-1] == f"killing process {record.token.pid}"


def test_a_server_that_ignores_sigterm_is_killed(plan, up, transport, workdir, monkeypatch):
    record = up(plan("ignores")).record
    engine = apply.engine_of("reference")
    hasty = replace(engine.shutdown, grace_s=0.0)
    monkeypatch.setattr(type(engine), "shutdown", hasty)
    down = bring_down(workdir.server("ignores"), transport, say=lambda text: None)
    assert "had to be killed" in down.how
    assert transport.presence(record.token) == "gone"


def test_a_stale_token_signals_nobody(plan, up, transport, workdir):
    server = workdir.server("good")
    record = up(plan()).record
    stale = record.token.model_copy(update={"start_ticks": record.token.start_ticks + 1, "marker": "/elsewhere"})
    server.record_path.write_text(record.model_copy(update={"token": stale}).model_dump_json())
    down = bring_down(server, transport, say=lambda text: None)
    assert "nothing was signalled" in down.how
    assert transport.presence(record.token) == "alive"
    server.record_path.write_text(record.model_dump_json())


def test_a_server_that_was_killed_is_called_that(plan, up, transport, workdir):
    record = up(plan()).record
    assert transport.send(record.token, signal.SIGKILL)
    assert transport.wait_gone(record.token, 10.0)
    assert state_of(workdir.server("good"), transport).state == "ended without a word"


def test_taking_down_one_that_was_killed_does_not_hide_that(plan, up, transport, workdir):
    record = up(plan()).record
    assert transport.send(record.token, signal.SIGKILL)
    assert transport.wait_gone(record.token, 10.0)
    bring_down(workdir.server("good"), transport, say=lambda text: None)
    assert state_of(workdir.server("good"), transport).state == "ended without a word"


def test_ctrl_c_while_it_starts_leaves_nothing(plan, up, transport, workdir, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(apply, "prove", interrupted)
    with pytest.raises(Interrupted, match="was ended again"):
        up(plan())
    assert transport.family(workdir.server("good").record().token) == ()


def test_a_record_that_cannot_be_read_hides_no_other(plan, up, transport, workdir):
    up(plan())
    broken = workdir.server("broken")
    broken.folder.mkdir(parents=True)
    broken.record_path.write_text("{")
    assert [state_of(server, transport).state for server in workdir.servers()] == ["unreadable", "ready"]
    assert os.path.exists(broken.record_path)
