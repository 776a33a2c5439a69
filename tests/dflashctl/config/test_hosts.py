from pathlib import Path

import pytest

from dflashctl.config.hosts import HostSpec
from dflashctl.config.inventory import find_hosts_file, is_hosts_file, load_inventory, resolved_hosts
from dflashctl.errors import ConfigError

SAMPLE = Path(__file__).parents[3] / "hosts.yaml"


@pytest.fixture
def hosts_file(tmp_path):
    def write(text):
        file = tmp_path / "hosts.yaml"
        file.write_text(text)
        return file

    return write


def refused(file):
    with pytest.raises(ConfigError) as caught:
        load_inventory(file)
    return f"{caught.value.message} | {caught.value.hint}".replace(f"{file.parent}/", "")


def test_sample_loads_and_shows_the_five_kinds_of_host():
    inventory = load_inventory(SAMPLE)
    assert inventory.lookup("local").address is None
    assert inventory.lookup("rented").port not in (None, 22)
    assert inventory.jumps("spark-worker") == ("spark-head",)
    assert inventory.lookup("kpro6").protected and inventory.lookup("kpro6").env == "uv"
    assert inventory.cannot_reach("ct129") == ("kpro6",)
    assert inventory.content.s3["archive"].addressing == "path"
    assert inventory.content.servers["ct129"].name == "ct129"


def test_sample_names_no_address_but_those_for_documentation():
    addresses = [host.address for host in load_inventory(SAMPLE).content.hosts.values() if host.address]
    assert addresses
    assert all(address.startswith(("192.0.2.", "198.51.100.", "203.0.113.")) for address in addresses)


def test_without_a_file_there_is_this_machine_alone():
    inventory = load_inventory(None)
    assert inventory.names == ("local",)
    with pytest.raises(ConfigError, match=r"kpro6 is not known: there is no hosts\.yaml") as caught:
        inventory.lookup("kpro6")
    assert "--hosts FILE" in caught.value.hint


def test_local_is_there_whether_the_file_names_it_or_not(hosts_file):
    inventory = load_inventory(hosts_file("hosts: {a: }"))
    assert inventory.names == ("local", "a")
    assert inventory.lookup("a") == HostSpec()


def test_unknown_host_gets_the_nearest_name(hosts_file):
    with pytest.raises(ConfigError, match="host kpro is not in") as caught:
        load_inventory(hosts_file("hosts: {kpro6: {}, ct129: {}}")).lookup("kpro")
    assert caught.value.hint == "did you mean kpro6?"


def test_option_wins_over_the_variable_and_the_variable_over_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DFLASHCTL_HOSTS", raising=False)
    assert find_hosts_file(None) is None
    (tmp_path / "hosts.yaml").write_text("")
    assert find_hosts_file(None) == Path("hosts.yaml")
    monkeypatch.setenv("DFLASHCTL_HOSTS", "/elsewhere/mine.yaml")
    assert find_hosts_file(None) == Path("/elsewhere/mine.yaml")
    assert find_hosts_file(Path("/given.yaml")) == Path("/given.yaml")


def test_file_that_is_named_and_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml"):
        load_inventory(tmp_path / "nowhere.yaml")


def test_jumps_are_listed_in_the_order_they_are_taken(hosts_file):
    inventory = load_inventory(hosts_file("hosts: {a: {via: b}, b: {via: c}, c: {via: bastion}}"))
    assert inventory.jumps("a") == ("bastion", "c", "b")
    assert inventory.jumps("local") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts:\n  a:\n    adress: x\n", "hosts.yaml:3: unknown key hosts.a.adress | did you mean hosts.a.address?"),
        ("host: {}\n", "hosts.yaml:1: unknown key host | did you mean hosts?"),
        ("hosts:\n  a:\n    port: 70000\n", "hosts.yaml:3: hosts.a.port: Input should be less than or equal to 65535"),
        ("hosts:\n  a:\n    roles: [train, cook]\n", "hosts.yaml:3: hosts.a.roles.1: Input should be"),
        ("s3:\n  x: {bucket: b}\n", "s3.x.endpoint_url is not set in hosts.yaml:2 | write it in hosts.yaml"),
        ("hosts: [a, b]\n", "hosts.yaml:1: hosts: Input should be a valid dictionary"),
    ],
)
def test_wrong_key_or_value_gives_file_line_path_and_the_nearest(hosts_file, text, said):
    assert refused(hosts_file(text)).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {via: a}", "hosts.yaml:1: hosts.a.via: the way never ends: a -> a"),
        ("a: {via: b}, b: {via: c}, c: {via: a}", "hosts.yaml:1: hosts.a.via: the way never ends: a -> b -> c -> a"),
        ("a: {via: b}, b: {via: c}, c: {via: b}", "the way never ends: a -> b -> c -> b"),
        ("a: {via: local}", "local is where every way begins"),
        ("a: {ssh: b, address: c}", "ssh and address exclude each other"),
        ("a: {address: root@192.0.2.1}", "wanted a name or address alone, found 'root@192.0.2.1' | user and port have"),
        ("a: {address: '192.0.2.1:22'}", "wanted a name or address alone"),
        ("a: {address: -oProxyCommand=x}", "cannot be one"),
        ("a: {user: ''}", "cannot be one"),
        ("'a b': {}", "'a b' cannot be a name"),
        ("-x: {}", "cannot be a name"),
        ("a/b: {}", "cannot be a name"),
        ("'a\"b': {}", "cannot be a name"),
        (".a: {}", "cannot be a name"),
        ("'': {}", "'' cannot be a name"),
        ('"a\\n": {}', "cannot be a name"),
        ("local: {address: 192.0.2.1}", "hosts.local.address: local is this machine and is not reached"),
        ("a: {workdir: work}", "wanted a folder that is absolute or below ~/, found 'work'"),
        ("a: {workdir: /}", "wanted a folder"),
        ("a: {workdir: ~other/work}", "wanted a folder"),
        ("a: {workdir: ''}", "hosts.a.workdir: wanted a folder that is absolute or below ~/, found ''"),
        ("a: {workdir: //}", "wanted a folder"),
        ("a: {workdir: /.}", "wanted a folder"),
        ("a: {workdir: ~/.}", "wanted a folder"),
        (
            "a: {workdir: ~/../x}",
            "found '~/../x' | for example ~/dflashctl-work or /data/dflashctl-work, with no .. in",
        ),
        ("a: {workdir: /data/..}", "wanted a folder"),
        ('a: {workdir: "/data/x\\ny"}', r"found '/data/x\ny'"),
        ("a: {python: bin/python3}", "wanted a name on PATH, or a path from / or ~/"),
        ("a: {address: x}, b: {address: x, port: 22}", "b and a are the same machine"),
        ("a: {}, b: {ssh: a}", "b and a are the same machine"),
        ("a: {address: '2001:db8::1'}, b: {address: '2001:DB8:0::1'}", "b and a are the same machine"),
    ],
)
def test_host_that_cannot_be_is_refused(hosts_file, text, said):
    assert said in refused(hosts_file(f"hosts: {{{text}}}"))


@pytest.mark.parametrize("field", ["ssh: x", "address: x", "port: 2201", "user: x", "via: a", "identity_file: /x"])
def test_this_machine_has_no_way_to_it(hosts_file, field):
    said = refused(hosts_file(f"hosts:\n  a: {{}}\n  local:\n    {field}\n"))
    assert said.startswith(f"hosts.yaml:4: hosts.local.{field.partition(':')[0]}: local is this machine and is not")


def test_work_folder_of_this_machine_is_not_written_in_the_file(hosts_file):
    assert refused(hosts_file("hosts:\n  local:\n    workdir: /data/work\n")) == (
        "hosts.yaml:3: hosts.local.workdir: the work folder of this machine is dflashctl-work in the folder where you "
        "type, or --workdir | leave workdir out here, and give commands --workdir"
    )


def test_this_machine_takes_all_that_says_how_jobs_run_on_it(hosts_file):
    text = (
        "{protected: true, roles: [train], python: /p/python3, env: uv, uv: /u/uv, variables: {A: b}, "
        "secrets: [HF_TOKEN], requirements: [torch], install_args: [-q]}"
    )
    assert load_inventory(hosts_file(f"hosts: {{local: {text}}}")).lookup("local").protected


def test_work_folder_and_interpreter_of_this_machine_come_from_the_command(hosts_file):
    inventory = load_inventory(hosts_file("hosts: {a: }")).with_local("/w", "/p/python3")
    assert (inventory.lookup("local").workdir, inventory.lookup("local").python) == ("/w", "/p/python3")
    assert inventory.lookup("a") == HostSpec()
    inventory = load_inventory(hosts_file("hosts: {local: {python: /q/python3}}")).with_local("/w", "/p/python3")
    assert inventory.lookup("local").python == "/q/python3"


@pytest.mark.parametrize(
    "name",
    [
        *("DFLASHCTL_MARKER", "DFLASHCTL_HOSTS", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MASTER_PORT", "UID", "SHELLOPTS"),
    ],
)
def test_variable_that_is_reserved_is_refused_with_the_reason(hosts_file, name):
    at = f"hosts.yaml:4: hosts.a.variables.{name}: {name} is reserved: "
    said = refused(hosts_file(f"hosts:\n  a:\n    variables:\n      {name}: '0'\n"))
    assert said.startswith(at) and len(said) > len(at) + 20
    at = f"hosts.yaml:4: hosts.a.secrets.0: {name} is reserved: "
    said = refused(hosts_file(f"hosts:\n  a:\n    secrets:\n    - {name}\n"))
    assert said.startswith(at) and len(said) > len(at) + 20


@pytest.mark.parametrize("name", ["PATH", "HOME", "LC_ALL", "LD_PRELOAD", "TMPDIR"])
def test_what_only_describes_the_operators_machine_is_no_secret_but_may_be_a_variable(hosts_file, name):
    assert "it describes the machine where you type" in refused(hosts_file(f"hosts: {{a: {{secrets: [{name}]}}}}"))
    assert load_inventory(hosts_file(f"hosts: {{a: {{variables: {{{name}: /x}}}}}}")).lookup("a").variables


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("{}", "{ssh: a, user: other}"),
        ("{ssh: x}", "{ssh: x, via: c}"),
        ("{ssh: x}", "{ssh: x, port: 2201}"),
        ("{ssh: x.example}", "{address: X.example., user: b}"),
        ("{address: x.example, user: root}", "{address: X.EXAMPLE, port: 22, identity_file: ~/k, user: b}"),
        ("{address: '2001:db8::1'}", "{address: '2001:0DB8:0:0::0001', user: b}"),
        ("{address: '::ffff:192.0.2.1'}", "{address: 192.0.2.1, via: c}"),
        ("{address: 192.0.2.1}", "{address: '0xC0000201', user: b}"),
        ("{address: 192.0.2.1}", "{address: 192.0.513, user: b}"),
        ("{address: 127.0.0.1, port: 2201}", "{address: localhost, port: 2201, user: b}"),
        ("{address: x}", "{address: localhost, via: a}"),
    ],
)
def test_machine_that_is_protected_under_one_name_is_under_all(hosts_file, a, b):
    for first, second in (("protected: true, ", ""), ("", "protected: true, ")):
        text = f"hosts:\n  a: {{{first}{a[1:]}\n  b: {{{second}{b[1:]}\n  c: {{}}\n"
        said = refused(hosts_file(text))
        loose, line, kept = ("b", 3, "a") if first else ("a", 2, "b")
        assert said.startswith(f"hosts.yaml:{line}: hosts.{loose}: {loose} and {kept} are the same machine (")
        assert f"and only {kept} is protected | write protected: true at {loose} too" in said
    both = f"hosts: {{a: {{protected: true, {a[1:]}, b: {{protected: true, {b[1:]}, c: {{}}}}"
    assert load_inventory(hosts_file(both.replace(", }", "}"))).lookup("b").protected


def test_this_machine_by_its_loopback_address_is_this_machine(hosts_file):
    said = refused(hosts_file("hosts:\n  local: {protected: true}\n  me: {address: 127.0.0.1}\n"))
    assert said.startswith(
        "hosts.yaml:3: hosts.me: me and local are the same machine (this machine), and only local is"
    )
    said = refused(hosts_file("hosts:\n  me: {address: '::1', protected: true}\n"))
    assert said.startswith("hosts.yaml:2: hosts.me: local and me are the same machine (this machine), and only me is")


@pytest.mark.parametrize(
    "text",
    [
        "a: {address: x, port: 2201}, b: {address: x, port: 2202, protected: true}",
        "a: {ssh: x, port: 2201}, b: {ssh: x, port: 2202, protected: true}",
        "a: {ssh: x}, b: {ssh: y, protected: true}",
        "local: {protected: true}, a: {address: localhost, port: 2201}",
        "a: {address: localhost, via: b, protected: true}, b: {protected: true}, c: {address: '::1', via: d}, d: {}",
        "a: {address: 192.0.2.1.example}, b: {address: 999.1.1.1, protected: true}",
    ],
)
def test_other_machines_are_not_held_to_its_protection(hosts_file, text):
    assert "a" in load_inventory(hosts_file(f"hosts: {{{text}}}")).names


@pytest.mark.parametrize(
    "text",
    [
        "a: {address: x, port: 2201}, b: {address: x, port: 2202}",
        "a: {address: x, user: root}, b: {address: x, user: train}",
        "a: {address: 192.0.2.1, via: c}, b: {address: 192.0.2.1}, c: {}",
        "a: {via: some-alias-of-ssh-config}",
        "a: {requirements: ['x @ git+ssh://git@example.org/x', 'y @ https://${LOGIN}@example.org/y.whl']}",
        "a: {address: '2001:db8::1'}",
        'a: {workdir: /with "quotes" and spaces}',
    ],
)
def test_host_that_can_be_is_not(hosts_file, text):
    assert "a" in load_inventory(hosts_file(f"hosts: {{{text}}}")).names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("relay: {unreachable: [[kpro6, ct192]]}", "hosts.yaml:2: relay.unreachable.0.1: no host is called ct192"),
        ("relay: {unreachable: [[ct129, ct129]]}", "stands there twice"),
        ("relay: {unreachable: [[local, ct129]]}", "no use here"),
        ("relay: {unreachable: [[a]]}", "relay.unreachable.0.1 is not set in hosts.yaml:2"),
        ("relay: {source: kpro}", "no host is called kpro | did you mean kpro6?"),
        ("relay: {destination: zebra}", "no host is called zebra | known: kpro6, ct129, local"),
        ("servers: {s: {host: ct12, target: t}}", "servers.s.host: no host is called ct12 | did you mean ct129?"),
        ("servers: {s: {name: other, target: t}}", "the server is called s already"),
    ],
)
def test_name_of_a_host_that_is_not_there_is_refused(hosts_file, text, said):
    assert said in refused(hosts_file(f"hosts: {{kpro6: {{}}, ct129: {{}}}}\n{text}\n"))


def test_engine_that_this_version_does_not_know_does_not_spoil_the_file(hosts_file):
    inventory = load_inventory(hosts_file("servers: {s: {engine: of-tomorrow, target: t}}"))
    assert inventory.content.servers["s"].engine == "of-tomorrow"


@pytest.mark.parametrize(
    "text",
    [
        "hosts: {a: {secrets: [hf_S3cr3tValue]}}",
        "hosts: {a: {secrets: ['sk-S3cr3tValue']}}",
        "hosts: {a: {secrets: hf_S3cr3tValue}}",
        "hosts: {a: {secrets: {HF_TOKEN: hf_S3cr3tValue}}}",
        "hosts: {a: {secrets: [AKIAS3CR3TVALUE00001]}}",
        "hosts: {a: {variables: {HF_TOKEN: hf_S3cr3tValue}}}",
        "hosts: {a: {variables: {WANDB_API_KEY: hf_S3cr3tValue}}}",
        "hosts: {a: {variables: {PIP_INDEX_URL: 'https://me:S3cr3tValue@pip.example.org/simple'}}}",
        "hosts: {a: {install_args: [--index-url, 'https://me:S3cr3tValue@pip.example.org/simple']}}",
        "hosts: {a: {requirements: ['torch @ https://S3cr3tValue@pip.example.org/torch.whl']}}",
        "s3: {x: {endpoint_url: 'https://me:S3cr3tValue@s3.example.org', bucket: b}}",
        "s3: {x: {endpoint_url: e, bucket: b, secret_key_variable: S3cr3tValue+/=}}",
        "s3: {x: {endpoint_url: e, bucket: b, access_key_variable: AKIAS3CR3TVALUE00001}}",
        "s3: {x: {endpoint_url: e, bucket: b, access_key_variable: [S3cr3tValue]}}",
    ],
)
def test_secret_in_the_file_is_refused_and_never_repeated(hosts_file, text):
    said = refused(hosts_file(text))
    assert said.startswith("hosts.yaml:1: ")
    assert "s3cr3tvalue" not in said.lower()


def test_secret_in_the_file_is_not_in_the_chain_of_errors_either(hosts_file):
    with pytest.raises(ConfigError) as caught:
        load_inventory(hosts_file("hosts: {a: {secrets: hf_S3cr3tValue}}"))
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_variable_that_only_sounds_like_a_secret_is_kept(hosts_file):
    inventory = load_inventory(
        hosts_file("hosts: {a: {variables: {TOKENIZERS_PARALLELISM: 'false', HF_TOKEN_PATH: /t}}}")
    )
    assert dict(inventory.lookup("a").variables) == {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN_PATH": "/t"}


def test_resolved_values_tell_where_each_comes_from(hosts_file):
    file = hosts_file("hosts:\n  a:\n    port: 2201\n")
    values = {value.path: value for value in resolved_hosts(file)}
    assert values["hosts.a.port"].origin == f"{file}:3"
    assert values["hosts.a.workdir"].origin == "default"
    assert values["hosts.local.env"].section == "hosts"


@pytest.mark.parametrize(
    ("text", "is_hosts"),
    [
        ("hosts: {}", True),
        ("servers: {}\ns3: {}", True),
        ("host: {}", True),
        ("train: {}", False),
        ("trian: {}", False),
        ("", False),
        ("zebra: 1", False),
    ],
)
def test_kind_of_a_file_shows_in_its_sections(hosts_file, text, is_hosts):
    assert is_hosts_file(hosts_file(text)) is is_hosts


def test_example_of_the_docs_loads_once_its_jump_is_there(hosts_file):
    text = (SAMPLE.parent / "docs" / "hosts.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    inventory = load_inventory(hosts_file(example))
    assert inventory.lookup("trainer").protected
    assert inventory.jumps("trainer") == ("gateway",)


def direct(route, unreachable="[]"):
    return f"hosts: {{gpu1: , box2: }}\nrelay: {{unreachable: {unreachable}, direct: [{route}]}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (direct("{source: gpu1, destination: box3, ssh: b}"), "no host is called box3 | did you mean box2?"),
        (direct("{source: gpu, destination: box2, ssh: b}"), "no host is called gpu | did you mean gpu1?"),
        (direct("{source: gpu1, destination: gpu1, ssh: b}"), "gpu1 stands there twice"),
        (direct("{source: local, destination: gpu1, ssh: b}"), "no route of its own"),
        (direct("{source: gpu1, destination: box2, ssh: -oProxyCommand=x}"), "cannot be a name for ssh"),
        (direct("{source: gpu1, destination: box2, ssh: b}", "[[box2, gpu1]]"), "stand under relay.unreachable, too"),
        (
            direct("{source: gpu1, destination: box2, ssh: b}, {source: gpu1, destination: box2, ssh: c}"),
            "stands there before",
        ),
    ],
)
def test_a_direct_route_that_cannot_be_is_refused(hosts_file, text, said):
    told = refused(hosts_file(text))
    assert said in told
    assert "relay.direct" in told


def test_a_direct_route_each_way_is_taken(hosts_file):
    ways = "{source: gpu1, destination: box2, ssh: b}, {source: box2, destination: gpu1, ssh: g}"
    assert len(load_inventory(hosts_file(direct(ways))).content.relay.direct) == 2
