import pytest

from dflashctl.config.hosts import HostSpec
from dflashctl.facts.finding import Told
from dflashctl.facts.gpu_holders import HeldGpu
from dflashctl.operations.environment import HostEnvironments
from dflashctl.operations.environment_plan import plan_environment
from dflashctl.stages.hosts.environment import environment_verdict, secrets_finding, torch_finding, torch_script
from dflashctl.transport.local_shell import LocalShell

SOUND = {
    "folder": "/w/envs",
    "complete": (),
    "broken": (),
    "uv": "/home/u/.local/bin/uv",
    "python": "/usr/bin/python3",
    "python_version": "3.12.3",
    "platform": "linux-x86_64-cpython-312-glibc",
    "has_venv": True,
    "missing_modules": (),
}


def verdict(spec, **changes):
    plan = plan_environment(spec, "ct129")
    found = environment_verdict(spec, plan, HostEnvironments(**{**SOUND, **changes}))
    return found, {finding.topic: finding for finding in found.findings}


def test_interpreter_as_it_is_with_all_modules_is_what_jobs_run_under():
    found, topics = verdict(HostSpec())
    assert found.python == "/usr/bin/python3"
    assert topics["python"].text == "3.12.3 (/usr/bin/python3)"
    assert topics["environment"].level == "ok"


@pytest.mark.parametrize(
    ("roles", "level"), [(["train"], "bad"), (["serve", "store"], "bad"), ([], "note"), (["store"], "ok")]
)
def test_missing_modules_are_red_where_jobs_are_to_run(roles, level):
    found, topics = verdict(HostSpec(roles=roles), missing_modules=("torch",))
    assert found.python is None
    assert topics["environment"].level == level
    assert "torch" in topics["environment"].text
    assert topics["python"].level == "ok"


def test_environment_that_is_not_made_yet_is_noted():
    found, topics = verdict(HostSpec(env="uv", roles=["train"]))
    assert found.python is None
    assert topics["environment"].level == "note"
    assert "the first start makes it (uv" in topics["environment"].text
    assert topics["uv"].text == "/home/u/.local/bin/uv"


def test_environment_that_is_there_is_what_jobs_run_under():
    spec = HostSpec(env="uv")
    name = plan_environment(spec, "ct129").named(SOUND["python_version"], SOUND["platform"])
    found, topics = verdict(spec, complete=(name,))
    assert found.python == f"/w/envs/{name}/bin/python"
    assert topics["environment"].level == "ok"
    broken, topics = verdict(spec, broken=(name,))
    assert broken.python is None
    assert topics["environment"].level == "bad" and "rm -r" in topics["environment"].cure


@pytest.mark.parametrize(
    ("spec", "changes", "said", "is_python_fit"),
    [
        ({"env": "uv"}, {"uv": ""}, "uv is not there", True),
        ({}, {"python": "", "python_version": ""}, "no interpreter python3", False),
        ({}, {"python_version": ""}, "does not run", False),
        ({}, {"python_version": "3.8.10"}, "3.11 or newer", False),
        ({"env": "pip"}, {"has_venv": False}, "no venv", True),
    ],
)
def test_what_a_start_would_refuse_is_red_in_the_same_words(spec, changes, said, is_python_fit):
    found, topics = verdict(HostSpec(roles=["train"], **spec), **changes)
    assert found.python is None
    assert topics["environment"].level == "bad"
    assert said in topics["environment"].text and topics["environment"].cure
    assert ("python" in topics) is is_python_fit


def test_answer_without_a_word_on_interpreters_is_unknown():
    spec = HostSpec()
    found = environment_verdict(spec, plan_environment(spec, "ct129"), None)
    assert [finding.level for finding in found.findings] == ["unknown"]


def gpu(capability):
    return HeldGpu("0", "GPU-0", "A", 1, 1, driver="570.1", compute_capability=capability)


TORCH = {"torch": "2.11.0", "torch_cuda": "12.8", "torch_gpus": "1", "torch_architectures": "sm_80 sm_90"}


def judged(gpus, **changes):
    told = {key: value for key, value in {**TORCH, **changes}.items() if value is not None}
    return torch_finding(Told(tuple(told.items())), gpus, "/e/bin/python")


@pytest.mark.parametrize(
    ("gpus", "changes", "level", "said"),
    [
        ((gpu("9.0"),), {}, "ok", "sees 1 of 1 GPUs"),
        ((gpu("8.6"),), {}, "ok", "sees 1 of 1"),
        ((gpu("12.0"),), {}, "bad", "has no kernels for sm_120"),
        ((gpu("7.5"),), {}, "bad", "has no kernels for sm_75"),
        ((gpu("12.0"),), {"torch_architectures": "sm_90 compute_90"}, "ok", "sees 1"),
        ((gpu("9.0"),), {"torch_architectures": "sm_90a"}, "ok", "sees 1"),
        ((gpu(""),), {}, "ok", "sees 1"),
        ((gpu("9.0"), gpu("9.0")), {}, "note", "sees 1 of 2 GPUs"),
        ((gpu("9.0"),), {"torch_gpus": "0"}, "bad", "sees none of 1 GPUs (driver 570.1)"),
        ((gpu("9.0"),), {"torch_cuda": ""}, "bad", "a CPU build, and there are 1 GPUs"),
        ((), {"torch_cuda": ""}, "ok", "2.11.0, a CPU build"),
        ((), {"torch": None, "torch_failed": "OSError: libcudnn.so.9"}, "bad", "OSError: libcudnn.so.9"),
        ((), {"torch": None, "torch_exit": "139"}, "bad", "exit code 139"),
    ],
)
def test_torch_is_held_against_the_gpus_that_there_are(gpus, changes, level, said):
    finding = judged(gpus, **changes)
    assert (finding.level, said in finding.text) == (level, True), finding


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ('echo "torch=2.13.0"; echo torch_cuda=; echo torch_gpus=0', "2.13.0, a CPU build"),
        ("exit 7", "exit code 7"),
        ("kill -SEGV $$", "exit code 139"),
    ],
)
def test_probe_tells_how_the_interpreter_ended(tmp_path, program, said):
    interpreter = tmp_path / "my 'python'"
    interpreter.write_text(f"#!/bin/sh\n{program}\n")
    interpreter.chmod(0o755)
    answer = LocalShell().run(torch_script(str(interpreter)))
    assert said in torch_finding(Told.read(answer.out), (), str(interpreter)).text


def test_secret_that_is_not_set_here_is_noted_by_name():
    (finding,) = secrets_finding(HostSpec(secrets=["HF_TOKEN"]), ("HF_TOKEN",))
    assert finding.level == "note" and "HF_TOKEN not set" in finding.text
    assert not list(secrets_finding(HostSpec(secrets=["HF_TOKEN"]), ()))
