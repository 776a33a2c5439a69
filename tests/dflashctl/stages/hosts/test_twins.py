from dflashctl.stages.hosts.check import Examination
from dflashctl.stages.hosts.twins import find_twins

HERE, THERE = ("boot-1", "pid:[4026531836]", "box"), ("boot-2", "pid:[4026531836]", "box")


def examined(host, machine):
    return Examination(host, connect_s=0.1, rtt_s=0.01, findings=(), gpus=(), machine=machine)


def twins_of(protected=(), **machines):
    found = [examined(host, machine) for host, machine in machines.items()]
    return find_twins(found, {host: host in protected for host in machines})


def test_machine_that_answers_to_two_names_is_told_and_protection_of_one_name_is_a_note():
    (twins,) = twins_of(protected=["a"], a=HERE, b=HERE, c=THERE)
    assert twins.hosts == ("a", "b")
    assert (twins.finding.level, twins.finding.text) == ("note", "a and b are one machine, and only a is protected")
    assert twins.finding.cure == "protected: true at b too, in hosts.yaml"


def test_names_of_one_machine_with_the_same_protection_are_no_note():
    assert [twins.finding.level for twins in twins_of(a=HERE, b=HERE)] == ["ok"]
    assert [twins.finding.level for twins in twins_of(protected=["a", "b"], a=HERE, b=HERE)] == ["ok"]


def test_hosts_that_differ_in_boot_namespace_or_name_are_no_twins():
    boot, namespace, name = HERE
    assert (
        twins_of(protected=["a"], a=HERE, b=THERE, c=(boot, "pid:[4026532000]", name), d=(boot, namespace, "e")) == ()
    )


def test_hosts_that_do_not_tell_which_machine_they_are_count_as_several():
    assert twins_of(protected=["a"], a=None, b=None) == ()
