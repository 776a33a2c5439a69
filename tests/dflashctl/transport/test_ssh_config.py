import shutil
from pathlib import Path

import pytest

from dflashctl.config.hosts import HostsFile, HostSpec
from dflashctl.config.ssh import SshSettings, ssh_settings
from dflashctl.errors import ConfigError
from dflashctl.transport.ssh_config import route_to

needs_openssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the OpenSSH client")
BOTH = pytest.mark.parametrize("client", [pytest.param("openssh", marks=needs_openssh), "none"])


@pytest.fixture
def route(tmp_path, monkeypatch):
    """The way to a host, by this ssh_config and these hosts."""

    def find(config: str, name: str = "box", client: str = "openssh", agent: str | None = None, **hosts: HostSpec):
        path = tmp_path / "ssh_config"
        path.write_text(config)
        if client == "none":
            monkeypatch.setenv("PATH", str(tmp_path / "empty"))
        settings = SshSettings(path, agent, {"KEYS": "/keys", "OTHER_AGENT": "/run/other"})
        return route_to(name, HostsFile(hosts={"box": HostSpec(), **hosts}), settings)

    return find


@BOTH
def test_an_alias_says_address_port_user_and_key(route, client):
    (hop,) = route("Host box\n HostName 10.0.0.9\n Port 2222\n User bob\n IdentityFile /k/id\n", client=client)
    assert (hop.alias, hop.address, hop.port, hop.user) == ("box", "10.0.0.9", 2222, "bob")
    assert hop.identity_files == ("/k/id",)


@BOTH
def test_what_hosts_yaml_says_wins(route, client):
    spec = HostSpec(ssh="box", address="10.1.1.1", port=99, user="eve", identity_file="~/mine")
    (hop,) = route("Host box\n HostName 10.0.0.9\n Port 22\n User bob\n IdentityFile /k/id\n", client=client, box=spec)
    assert (hop.address, hop.port, hop.user) == ("10.1.1.1", 99, "eve")
    assert hop.identity_files == (str(Path.home() / "mine"),)
    assert hop.has_only_those


@BOTH
def test_an_address_alone_is_looked_up_by_itself(route, client):
    (hop,) = route("Host 10.0.0.*\n User bob\nHost box\n User eve\n", client=client, box=HostSpec(address="10.0.0.9"))
    assert (hop.alias, hop.address, hop.user) == ("box", "10.0.0.9", "bob")


@BOTH
def test_a_jump_host_comes_first(route, client):
    hops = route("Host box\n HostName 10.0.0.9\n ProxyJump gate\nHost gate\n HostName 10.0.0.1\n", client=client)
    assert [hop.alias for hop in hops] == ["gate", "box"]
    assert hops[0].address == "10.0.0.1"


@BOTH
def test_several_jumps_are_taken_in_order(route, client):
    hops = route("Host box\n ProxyJump eve@first:2201,[fe80::2]:2202,ssh://last\n", client=client)
    assert [(hop.address, hop.port) for hop in hops[:3]] == [("first", 2201), ("fe80::2", 2202), ("last", 22)]
    assert hops[0].user == "eve"


@needs_openssh
def test_only_the_first_jump_of_a_list_follows_its_own(route):
    hops = route(
        "Host box\n ProxyJump one,two\nHost one\n ProxyJump zero\nHost two\n ProxyJump none-such\nHost zero\n Port 7\n"
    )
    assert [hop.alias for hop in hops] == ["zero", "one", "two", "box"]


@BOTH
def test_via_is_another_host_of_the_inventory(route, client):
    hops = route(
        "Host box\n ProxyJump elsewhere\n",
        client=client,
        box=HostSpec(via="gate"),
        gate=HostSpec(address="10.0.0.1", port=2201, user="eve"),
    )
    assert [(hop.alias, hop.address, hop.port) for hop in hops] == [("gate", "10.0.0.1", 2201), ("box", "box", 22)]


@BOTH
def test_via_may_be_an_alias(route, client):
    hops = route("Host gate\n HostName 10.0.0.1\n", client=client, box=HostSpec(address="10.0.0.9", via="gate"))
    assert [hop.address for hop in hops] == ["10.0.0.1", "10.0.0.9"]


@needs_openssh
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (HostSpec(), "box"),
        (HostSpec(ssh="other"), "other"),
        (
            HostSpec(address="10.0.0.9", port=99, user="eve", identity_file="/k/a b"),
            "-p 99 -l eve -i '/k/a b' 10.0.0.9",
        ),
        (HostSpec(address="10.0.0.9", via="gate"), "-J bob@10.0.0.1:2201 10.0.0.9"),
    ],
)
def test_errors_can_say_how_to_go_there_by_hand(route, tmp_path, spec, words):
    hops = route("Host gate\n User bob\n Port 2201\n HostName 10.0.0.1\n", box=spec)
    assert hops[-1].by_hand == f"-F {tmp_path / 'ssh_config'} {words}"


@needs_openssh
def test_a_jump_host_by_alias_and_by_inventory_is_the_same_hop(route):
    config = "Host gate\n HostName 10.0.0.1\nHost *\n User bob\nHost box\n ProxyJump gate\n"
    (alone,) = route(config, "gate", gate=HostSpec())
    (named,) = route(config, "door", door=HostSpec(address="10.0.0.1"))
    assert route(config)[0] == alone == named


@BOTH
@pytest.mark.parametrize(
    ("config", "hosts"),
    [
        ("", {"box": HostSpec(via="gate"), "gate": HostSpec(via="box")}),
        ("", {"box": HostSpec(via="box")}),
        ("Host box\n ProxyJump gate\nHost gate\n ProxyJump box\n", {}),
    ],
)
def test_a_way_in_a_circle_is_refused(route, config, hosts, client):
    with pytest.raises(ConfigError, match="circle"):
        route(config, client=client, **hosts)


@needs_openssh
def test_include_and_match_count(route, tmp_path):
    (tmp_path / "more").write_text("Host box\n HostName 10.0.0.9\n")
    (hop,) = route(f"Include {tmp_path / 'more'}\nMatch host 10.0.0.9\n User matched\n")
    assert (hop.address, hop.user) == ("10.0.0.9", "matched")


@pytest.mark.parametrize("line", ["Include more", "  match all"])
def test_include_and_match_are_not_passed_over_without_openssh(route, line):
    with pytest.raises(ConfigError, match=r"Include or Match.*no `ssh`"):
        route(f"Host box\n HostName 10.0.0.9\n{line}\n", client="none")


@needs_openssh
def test_paths_are_filled_in(route):
    (hop,) = route(
        "Host box\n HostName 10.0.0.9\n User bob\n IdentityFile ~/.ssh/%r@%h:%p%%\n IdentityFile ${KEYS}/%n\n"
        " CertificateFile /c/%n-cert.pub\n UserKnownHostsFile /k/%n /k/second\n GlobalKnownHostsFile none\n"
    )
    assert hop.identity_files == (str(Path.home() / ".ssh/bob@10.0.0.9:22%"), "/keys/box")
    assert hop.certificate_files == ("/c/box-cert.pub",)
    assert hop.known_hosts == ("/k/box", "/k/second")
    assert hop.system_known_hosts == ()


@needs_openssh
def test_a_known_hosts_file_may_have_a_space_in_its_path(route, tmp_path):
    spaced = tmp_path / "my hosts"
    spaced.write_text("")
    (hop,) = route(f'Host box\n UserKnownHostsFile /a "{spaced}" /b\n')
    assert hop.known_hosts == ("/a", str(spaced), "/b")


@needs_openssh
@pytest.mark.parametrize(
    ("said", "socket"),
    [
        ("", "/run/agent"),
        ("IdentityAgent none", None),
        ("IdentityAgent SSH_AUTH_SOCK", "/run/agent"),
        ("IdentityAgent $OTHER_AGENT", "/run/other"),
        ("IdentityAgent ${KEYS}/agent", "/keys/agent"),
        ("IdentityAgent /run/%n", "/run/box"),
    ],
)
def test_the_agent_is_the_one_that_is_named(route, said, socket):
    (hop,) = route(f"Host box\n {said}\n", agent="/run/agent")
    assert hop.agent == socket


@needs_openssh
@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("HostName 10.0.0.9", "10.0.0.9"),
        ("HostName Ten.Example\n Port 2222", "[ten.example]:2222"),
        ("Port 2222\n HostKeyAlias The-Box", "the-box"),
    ],
)
def test_known_hosts_are_asked_for_the_right_name(route, said, name):
    (hop,) = route(f"Host box\n {said}\n")
    assert hop.host_key_name == name


@needs_openssh
@pytest.mark.parametrize(("said", "is_strict"), [("yes", True), ("ask", False), ("accept-new", False), ("no", False)])
def test_only_yes_refuses_a_host_at_first_use(route, said, is_strict):
    (hop,) = route(f"Host box\n StrictHostKeyChecking {said}\n")
    assert hop.is_strict is is_strict


@needs_openssh
def test_further_options_are_read(route):
    (hop,) = route(
        "Host box\n IdentitiesOnly yes\n HashKnownHosts yes\n AddressFamily inet6\n ConnectTimeout 7\n"
        " BindAddress 10.0.0.2\n ProxyCommand nc -X 5 %h %p %%\n RevokedHostKeys /k/revoked\n"
    )
    assert hop.has_only_those and hop.hashes_known_hosts
    assert (hop.family, hop.connect_s, hop.bind_address) == ("inet6", 7.0, "10.0.0.2")
    assert hop.revoked_keys == "/k/revoked"
    assert hop.proxy_command == "nc -X 5 box 22 %"


@needs_openssh
def test_a_file_that_openssh_refuses_is_an_error_of_configuration(route):
    with pytest.raises(ConfigError, match=r"ssh_config cannot be used for box: .*line 1"):
        route("Nonsense yes\n")


@pytest.mark.parametrize("name", ["-oProxyCommand=id", ""])
def test_a_name_that_would_be_an_option_is_refused(route, name):
    with pytest.raises(ConfigError, match="is no name of a host"):
        route("", box=HostSpec(ssh="box", via=name))


def test_the_environment_says_where_to_look():
    found = ssh_settings({"DFLASHCTL_SSH_CONFIG": "/etc/mine", "SSH_AUTH_SOCK": "/run/agent"})
    assert (found.config, found.agent) == (Path("/etc/mine"), "/run/agent")
    assert (ssh_settings({}).config, ssh_settings({}).agent) == (None, None)


def test_settings_do_not_show_the_environment():
    assert "secret" not in repr(ssh_settings({"TOKEN": "secret"}))
