import pytest

from dflashctl.config.protection import require_touch
from dflashctl.errors import ConfigError


def refused(*given, run="v5", host=True, is_run_protected=False):
    with pytest.raises(ConfigError) as caught:
        require_touch(
            "train stop",
            host="kpro6",
            is_host_protected=host,
            run=run,
            is_run_protected=is_run_protected,
            given=given,
        )
    assert caught.value.exit_code == 2
    return caught.value.message


def test_protected_host_needs_to_be_named():
    assert refused() == "kpro6 is protected: `train stop` needs --touch kpro6"


def test_protected_run_needs_to_be_named():
    assert refused(host=False, is_run_protected=True) == "v5 is protected: `train stop` needs --touch v5"


def test_host_and_run_both_protected_need_both():
    said = refused(is_run_protected=True)
    assert said == "kpro6 and v5 are protected: `train stop` needs --touch kpro6 --touch v5"
    assert refused("v5", is_run_protected=True) == "kpro6 is protected: `train stop` needs --touch kpro6"
    assert refused("kpro6", is_run_protected=True) == "v5 is protected: `train stop` needs --touch v5"


def test_one_name_does_not_open_two_gates():
    assert "needs --touch kpro6" in refused("kpro6", run="kpro6", is_run_protected=True)


@pytest.mark.parametrize("host", [True, False])
def test_wrong_name_is_said_also_where_nothing_is_protected(host):
    said = refused("ct129", host=host)
    assert said == "--touch ct129: `train stop` would touch host kpro6 and run v5, not ct129"


@pytest.mark.parametrize("near", ["kpro", "KPRO6", "kpro6 ", "*", "yes", "all", ""])
def test_only_the_very_name_opens_the_gate(near):
    refused(near)


@pytest.mark.parametrize(
    ("given", "is_run_protected"), [(("kpro6",), False), (("kpro6", "v5"), True), (("v5", "kpro6", "v5"), True)]
)
def test_names_of_all_that_is_protected_let_it_through(given, is_run_protected):
    require_touch(
        "train stop", host="kpro6", is_host_protected=True, run="v5", is_run_protected=is_run_protected, given=given
    )


def test_what_is_not_protected_needs_nothing():
    require_touch("train stop", host="ct129", is_host_protected=False, run="v5")


def test_environment_does_not_open_the_gate(monkeypatch):
    for name in ("DFLASHCTL_TOUCH", "TOUCH", "DFLASHCTL_YES", "CI"):
        monkeypatch.setenv(name, "kpro6")
    refused()
