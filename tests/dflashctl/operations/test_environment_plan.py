import os
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dflashctl.config.hosts import HostSpec
from dflashctl.errors import ConfigError
from dflashctl.operations.environment_plan import masked, pinned_requirements, plan_environment

ROOT = Path(__file__).resolve().parents[3]
REQUIREMENTS = ROOT / "dflashctl" / "operations" / "requirements.txt"
INDEX = "https://ann:pa55word@wheels.example/simple"


def plan(**changes):
    return plan_environment(HostSpec(**{"env": "uv", "requirements": ("tiny==1.0",), **changes}), "kpro6")


def named(**changes):
    return plan(**changes).named("3.11.2", "linux-x86_64-cpython-311-glibc")


def closure():
    """dflashctl[train], and what all of it needs, as far as constraints.txt pins it: torch pins its GPU libraries."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(line.split("==")[0]): line for line in lines if "==" in line and line[0] != "#"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = [line for line in project["dependencies"] if Requirement(line).name == "pydantic"]
    wanted = [Requirement(line) for line in base + project["optional-dependencies"]["train"]]
    found = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name in pins and name not in found:
            found[name] = pins[name]
            wanted += [Requirement(line) for line in distribution(name).requires or ()]
    return sorted(found.values(), key=str.lower)


def test_shipped_requirements_are_the_train_extra_as_constraints_pin_it():
    if os.environ.get("DFLASHCTL_UPDATE_GOLDEN"):
        head = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("#")]
        REQUIREMENTS.write_text("\n".join([*head, *closure()]) + "\n")
    assert list(pinned_requirements()) == closure()


def test_a_host_without_requirements_gets_the_pinned_ones():
    assert "torch==2.13.0" in plan(requirements=None).requirements


def test_name_follows_what_is_in_it_and_not_the_order_it_was_written_in():
    same = {named(requirements=("a==1", "b==2")), named(requirements=("b==2", "a==1"))}
    others = {named(requirements=("a==1",)), named(env="pip"), named(install_args=("--no-deps",)), named()}
    assert len(same) == 1
    assert len(same | others) == 5
    assert plan().named("3.11.3", "linux-x86_64-cpython-311-glibc") != named()


def test_a_new_password_makes_no_new_environment():
    args = ("--index-url", INDEX)
    assert named(install_args=args) == named(install_args=("--index-url", INDEX.replace("pa55word", "other")))


@pytest.mark.parametrize("kind", ["uv", "pip"])
@pytest.mark.parametrize("args", [("--index-url", INDEX), (f"--index-url={INDEX}",), ("-i", INDEX)])
def test_a_password_reaches_the_install_by_a_variable_alone(kind, args):
    made = plan(env=kind, install_args=("--no-deps", *args))
    assert made.argv == ("--no-deps",)
    assert (f"{kind.upper()}_INDEX_URL", INDEX) in made.secrets
    assert "pa55word" not in repr(made)
    assert "https://***@wheels.example/simple" in repr(made)


def test_all_values_of_an_option_go_the_same_way():
    made = plan(install_args=("--extra-index-url", "https://open.example/simple", "--extra-index-url", INDEX))
    assert made.argv == ()
    assert dict(made.secrets)["UV_EXTRA_INDEX_URL"] == f"https://open.example/simple {INDEX}"


def test_arguments_without_a_password_stay_as_they_are():
    args = ("--no-index", "--find-links", "/wheels", "--extra-index-url=https://open.example/simple")
    assert plan(install_args=args).argv == (*args[:3], "--extra-index-url", "https://open.example/simple")


def test_a_password_that_could_only_go_into_an_argument_list_is_refused():
    with pytest.raises(ConfigError) as raised:
        plan(install_args=(f"--odd={INDEX}",))
    assert "pa55word" not in raised.value.message
    assert "install_args of host kpro6" in raised.value.message


def test_a_password_in_a_requirement_is_masked_where_people_look():
    made = plan(requirements=("tiny @ https://ann:p@ss@wheels.example/tiny.whl",))
    assert made.requirements == ("tiny @ https://***@wheels.example/tiny.whl",)
    assert "p@ss" not in repr(made)
    assert dict(made.secrets)["MAKE_REQUIREMENTS"] == "tiny @ https://ann:p@ss@wheels.example/tiny.whl\n"


def test_secrets_for_the_installer_are_given_to_it_and_others_are_not():
    secrets = (("UV_INDEX_URL", INDEX), ("HF_TOKEN", "hf_x"))
    made = plan_environment(HostSpec(env="uv", requirements=()), "kpro6", secrets=secrets)
    assert dict(made.secrets) == {"MAKE_REQUIREMENTS": "", "UV_INDEX_URL": INDEX}


def test_masking_leaves_an_address_without_a_password_alone():
    assert masked("see https://example.org/a@b and ssh://x@y/z") == "see https://example.org/a@b and ssh://***@y/z"
