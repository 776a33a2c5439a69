import subprocess
import sys
from pathlib import Path

import pytest

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import SshSettings
from dflashctl.errors import ConfigError
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.shell import Script
from dflashctl.transport.ssh_shell import open_shell

ROOT = Path(__file__).parents[3]
HOSTS = HostsFile(hosts={"kpro6": HostSpec(), "ct129": HostSpec(via="nowhere")})


def test_local_is_this_machine_whether_the_file_names_it_or_not():
    for hosts in (HOSTS, HostsFile(hosts={"local": HostSpec(workdir="/work")})):
        shell = open_shell("local", hosts, SshSettings())
        assert isinstance(shell, LocalShell) and shell.name == "local"


def test_other_hosts_are_behind_ssh_and_not_reached_before_they_are_asked():
    shell = open_shell("kpro6", HOSTS, SshSettings(Path("/is/not/there")))
    assert shell.name == "kpro6"
    shell.close()


def test_an_unknown_host_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"host kpro is not in hosts\.yaml") as caught:
        open_shell("kpro", HOSTS, SshSettings())
    assert caught.value.hint == "did you mean kpro6?"


def test_a_file_that_is_not_there_is_told_when_the_host_is_asked(tmp_path):
    shell = open_shell("kpro6", HOSTS, SshSettings(tmp_path / "none"))
    with pytest.raises(ConfigError, match="ssh_config cannot be used for kpro6"):
        shell.run(Script("hello", "echo hi"))


def test_paramiko_is_loaded_where_a_connection_is_opened_and_not_before():
    code = (
        "import sys\nfrom dflashctl.transport.fan_out import fan_out\nfrom dflashctl.transport.ssh_shell import *\n"
        "open_shell('box', HostsFile(hosts={'box': {}}), SshSettings())\n"
        "print(*{m.split('.')[0] for m in sys.modules} & {'paramiko', 'cryptography'})"
    )
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'remote'}", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "\n"
