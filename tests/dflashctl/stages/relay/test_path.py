import os

import pytest

from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.stages.relay.path import Location, parse_location, refuse_both_stores

HOSTS = frozenset({"local", "kpro6", "ct129"})


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("kpro6:/a b", Location("kpro6", "/a b")),
        ("kpro6:~/x", Location("kpro6", "~/x")),
        ("kpro6:~", Location("kpro6", "~")),
        ("local:x", Location("local", "x")),
        ("x", Location("local", "x")),
        ("./x:y", Location("local", "./x:y")),
        ("/x:y", Location("local", "/x:y")),
        ("s3://a/b:c", Location("", "s3://a/b:c")),
        ("hf://o/n@main", Location("", "hf://o/n@main")),
    ],
)
def test_what_a_place_is(text, location):
    assert parse_location(text, HOSTS) == location


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "found nothing", ""),
        ("kpro:/x", "host kpro is not in hosts.yaml", "did you mean kpro6:/x?"),
        ("zzz:/x", "host zzz is not in hosts.yaml", "./ before a name with a colon"),
        ("kpro6:x", "must be absolute or below ~/", ""),
        ("kpro6:", "must be absolute or below ~/", ""),
        ("kpro6:~bob/x", "must be absolute or below ~/", ""),
    ],
)
def test_what_is_no_place(text, said, hint):
    with pytest.raises(ConfigError, match=said) as caught:
        parse_location(text, HOSTS)
    assert hint in caught.value.hint


def test_a_place_here_means_the_same_when_it_is_typed_elsewhere():
    here = os.getcwd()
    assert Location("local", "x/").absolute() == f"local:{here}/x/"
    assert Location("local", "~/x").absolute() == f"local:{os.path.expanduser('~')}/x"
    assert Location("local", "~bob/x").absolute() == f"local:{here}/~bob/x"
    assert Location("kpro6", "~/x").absolute() == "kpro6:~/x"
    assert Location("", "s3://a/b").absolute() == "s3://a/b"
    assert parse_location(Location("local", "kpro6:x").absolute(), HOSTS) == Location("local", f"{here}/kpro6:x")


def test_two_stores_are_refused():
    with pytest.raises(ConfigError, match="both stores"):
        refuse_both_stores(Location("", "s3://a/b"), Location("", "s3://a/c"))


def test_nothing_is_written_to_a_hub():
    with pytest.raises(ArtifactError, match="only be read"):
        refuse_both_stores(Location("local", "x"), Location("", "hf://o/n"))
