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
        ("dies", "cannot go on"),
    ],
)
def test_a_server_that_is_not_proven_is_ended_again(plan, up, transport, workdir, how, said):
    with pytest.raises(EngineUnhealthy, match=said) as caught:
        up(plan(how))
    assert caught.value.exit_code == 6
    record = workdir.server(how).record()
    assert record is None or transport.family(record.token) == ()


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
