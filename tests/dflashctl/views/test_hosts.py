from dflashctl.config.hosts import HostsFile
from dflashctl.config.inventory import Inventory
from dflashctl.views.hosts import host_rows, inventory_table, reached_by


def inventory(**hosts):
    return Inventory(HostsFile.model_validate({"hosts": {"local": {}, **hosts}}))


def test_reach_of_a_host_is_told_as_ssh_would_take_it():
    hosts = inventory(
        a={"address": "192.0.2.1", "port": 2201, "user": "root"},
        b={"address": "2001:db8::1", "port": 22, "via": "a"},
        c={},
        d={"ssh": "alias", "user": "ml", "via": "e"},
        e={"via": "bastion"},
    )
    assert {name: reached_by(name, hosts) for name in hosts.names} == {
        "local": "this machine",
        "a": "root@192.0.2.1:2201",
        "b": "[2001:db8::1]:22 via a",
        "c": "c of ssh_config",
        "d": "ml@alias of ssh_config via bastion of ssh_config, e",
        "e": "e of ssh_config via bastion of ssh_config",
    }


def test_table_marks_what_is_protected_and_who_cannot_reach_whom(text_of):
    content = {"hosts": {"kpro6": {"protected": True, "env": "uv"}, "ct129": {}}}
    content["relay"] = {"unreachable": [["kpro6", "ct129"]]}
    lines = text_of(inventory_table(host_rows(Inventory(HostsFile.model_validate(content))))).splitlines()
    assert "protected" in lines[0]
    assert [line.split() for line in lines[1:]] == [
        ["kpro6", "kpro6", "of", "ssh_config", "-", "~/dflashctl-work", "uv", "yes", "ct129"],
        ["ct129", "ct129", "of", "ssh_config", "-", "~/dflashctl-work", "as", "it", "is", "-", "kpro6"],
    ]
