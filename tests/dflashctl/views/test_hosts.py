from dflashctl.config.hosts import HostsFile
from dflashctl.config.inventory import Inventory
from dflashctl.errors import ConfigError, HostUnreachable
from dflashctl.facts.finding import Finding
from dflashctl.stages.hosts.check import Examination
from dflashctl.stages.hosts.twins import Twins
from dflashctl.views.hosts import examination, host_rows, inventory_table, no_examination, reached_by, same_machines


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


def examined(*findings):
    return Examination("ct129", connect_s=0.3, rtt_s=0.01, findings=findings, gpus=())


def test_examination_has_a_line_a_finding_and_under_it_its_cure(text_of):
    shown = text_of(
        examination(
            examined(
                Finding("sh", "ok", "dash"),
                Finding("work folder", "bad", "0.0 GiB free", "remove something"),
                Finding("clock", "note", "60 s ahead"),
                Finding("GPU 1", "unknown", "it does not tell"),
            )
        )
    )
    assert [line.rstrip() for line in shown.splitlines()] == [
        "ct129  1 bad, 1 to know, 1 that could not be asked",
        "ok   sh          dash",
        "BAD  work folder 0.0 GiB free",
        "                 -> remove something",
        "note clock       60 s ahead",
        "?    GPU 1       it does not tell",
    ]


def test_sound_host_is_called_in_order(text_of):
    assert text_of(examination(examined(Finding("sh", "ok", "dash")))).splitlines()[0] == "ct129  in order"


def test_red_is_red_and_a_word_too(text_of):
    shown = text_of(examination(examined(Finding("sh", "bad", "no setsid", "install it"))), has_colour=True)
    assert "\x1b[1;31mBAD" in shown


def test_host_that_did_not_answer_is_a_block_of_its_own_with_its_cure(text_of):
    error = HostUnreachable("ct129 refuses connections", host="ct129", hint="check that sshd runs there")
    shown = [line.rstrip() for line in text_of(no_examination("ct129", error)).splitlines()]
    assert shown == [
        "ct129  unreachable",
        "BAD  link ct129 refuses connections",
        "          -> check that sshd runs there",
    ]
    error = ConfigError("install_args hold a password")
    assert text_of(no_examination("ct129", error)).startswith("ct129  could not be examined")


def test_one_machine_under_two_names_is_a_line_with_its_cure(text_of):
    finding = Finding("same machine", "note", "a and b are one machine, and only a is protected", "protect b")
    assert [line.rstrip() for line in text_of(same_machines([Twins(("a", "b"), finding)])).splitlines()] == [
        "note same machine a and b are one machine, and only a is protected",
        "                  -> protect b",
    ]


def test_text_of_a_host_is_no_markup(text_of):
    assert "[bold]x[/bold]" in text_of(examination(examined(Finding("stdout", "note", "prints [bold]x[/bold]"))))


def test_words_of_a_host_cannot_move_the_cursor(text_of):
    shown = text_of(examination(examined(Finding("python", "bad", "no \x1b[2Jpy\udc80thon\n", "run \x07it"))))
    assert "no ?[2Jpy?thon?" in shown and "run ?it" in shown
