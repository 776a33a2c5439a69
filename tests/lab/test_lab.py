def test_the_operator_reaches_all_three_hosts_by_ssh(operator, lab):
    assert [operator.ssh(name, "echo $0").code for name in lab.hosts] == [0, 0, 0]
