import itertools
import os
import sys
from pathlib import Path

import pytest

from dflashctl.config.hosts import HostSpec
from dflashctl.errors import HostUnreachable, LinkLost
from dflashctl.stages.hosts.check import examine, way_in_words
from dflashctl.transport.fake_shell import FakeShell
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Answer
from dflashctl.transport.ssh_config import Hop

RECORDED = Path(__file__).parents[2] / "facts" / "recorded"
ENVIRONMENT = (
    "env_folder=/w/envs\nenv_uv=\nenv_python=/usr/bin/python3\nenv_python_version=3.12.3\nenv_platform=p\n"
    "env_has_venv=1\nenv_missing=\n"
)
TORCH = "torch=2.11.0+cu130\ntorch_cuda=13.0\ntorch_hip=\ntorch_gpus=1\ntorch_architectures=sm_80 sm_90 sm_120\n"
LOST = LinkLost("too late", host="fake")


def said(text):
    return Answer(0, text if isinstance(text, bytes) else text.encode(), "")


def a_host(**changes):
    """A sound host that answers at once; further answers by the name of the question."""
    system = (RECORDED / "system-cgroup2.txt").read_bytes()
    answers = {
        "hello": [said("")],
        "clock": [said("1000.5\n")],
        "system": [said(system)],
        "disks": [said(system)],
        "GPUs": [said((RECORDED / "gpu-h200-held.txt").read_bytes())],
        "environment": [said(ENVIRONMENT)],
        "torch": [said(TORCH)],
        **changes,
    }
    return FakeShell({f"doctor: {name}": told for name, told in answers.items()})


def examined(shell, **spec):
    ticks = itertools.count(0.0, 0.25)
    return examine(
        shell, HostSpec(**spec), way="directly", clock_s=lambda: 1000.4, elapsed_s=lambda: next(ticks), unset_secrets=()
    )


def by_topic(examination):
    return {finding.topic: finding for finding in examination.findings}


def test_sound_host_is_asked_all_and_found_sound():
    found = examined(a_host())
    assert not found.is_bad
    assert (found.rtt_s, found.connect_s) == (0.25, 0.0)
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA H200"]
    assert [finding.topic for finding in found.findings] == [
        *("link", "stdout", "clock", "login shell", "sh", "processes", "sessions", "cgroups", "kernel"),
        *("work folder", "temporary", "driver", "GPU 0", "python", "environment", "torch"),
    ]


def test_work_folder_and_interpreter_travel_as_values_never_in_the_text():
    shell = a_host()
    examined(shell, workdir="/data/it's; rm -rf /", python="/opt/py'thon")
    for script in shell.ran:
        assert "rm -rf /" not in script.text and "py'thon" not in script.text
    values = {script.name: dict(script.values) for script in shell.ran}
    assert values["doctor: disks"]["workdir"] == "/data/it's; rm -rf /"
    assert values["doctor: environment"]["env_python"] == "/opt/py'thon"


@pytest.mark.parametrize(
    ("question", "topic", "said_so"),
    [
        ("system", "system", "no answer within 30 s"),
        ("disks", "disks", "no answer within 20 s"),
        ("GPUs", "GPUs", "no answer within 100 s"),
        ("environment", "python", "no answer within 60 s"),
        ("torch", "torch", "no answer within 90 s"),
    ],
)
def test_question_that_hangs_is_red_and_the_others_are_still_asked(question, topic, said_so):
    found = examined(a_host(**{question: [LOST]}))
    topics = by_topic(found)
    assert found.is_bad
    assert topics[topic].level == "bad" and said_so in topics[topic].text and topics[topic].cure
    assert len(topics) >= 9


def test_link_that_breaks_on_the_way_is_unreachable_not_a_hanging_question():
    gone = HostUnreachable("gone", host="fake")
    with pytest.raises(HostUnreachable, match="gone"):
        examined(a_host(hello=[said(""), gone], disks=[LOST]))


def test_host_that_cannot_be_reached_is_asked_nothing_else():
    shell = a_host(hello=[HostUnreachable("refused", host="fake")])
    with pytest.raises(HostUnreachable, match="refused"):
        examined(shell)
    assert len(shell.ran) == 1


def test_noise_of_the_login_shell_is_told():
    found = examined(a_host(hello=[Answer(0, b"", "", num_noise_bytes=5, noise=b"motd\n")]))
    assert by_topic(found)["stdout"].level == "note"


def test_answers_that_say_nothing_are_never_in_order():
    nothing = {name: [said("")] for name in ("clock", "system", "disks", "GPUs", "environment")}
    found = examined(a_host(**nothing))
    in_order = [finding.topic for finding in found.findings if finding.level == "ok"]
    assert in_order == ["link", "stdout"]


def test_this_machine_is_examined_for_real():
    found = examine(LocalShell(), HostSpec(workdir="/tmp/no-such-work", python=sys.executable), way="this machine")
    assert found.connect_s is None
    topics = by_topic(found)
    assert topics["clock"].level == "ok"
    assert topics["sh"].level == "ok"
    assert topics["python"].text.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert topics["torch"].level == "ok"


def test_machine_is_its_boot_its_namespace_and_its_name():
    here = examine(LocalShell(), HostSpec(workdir="/tmp/no-such-work"), way="this machine").machine
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here == (boot_id, os.readlink("/proc/self/ns/pid"), os.uname().nodename)
    assert examined(a_host()).machine is None


def hop(alias, address, port=22, **more):
    return Hop(
        alias=alias, address=address, port=port, user="root", host_key_name=address, by_hand=f"ssh {alias}", **more
    )


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ((hop("a", "192.0.2.1", 2201),), "root@192.0.2.1:2201 directly"),
        ((hop("a", "2001:db8::1"),), "root@[2001:db8::1] directly"),
        ((hop("j", "192.0.2.9"), hop("a", "192.0.2.1")), "root@192.0.2.1 via j (192.0.2.9)"),
        ((hop("h.example", "h.example"), hop("j", "k"), hop("a", "b")), "root@b via h.example, j (k)"),
        ((hop("a", "b", proxy_command="nc b 22"),), "root@b via a ProxyCommand"),
    ],
)
def test_way_to_a_host_names_every_hop(route, words):
    assert way_in_words(route) == words
