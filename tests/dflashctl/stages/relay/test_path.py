import os

import pytest

from dflashctl.errors import ConfigError
from dflashctl.stages.relay.path import Location, PathJob, parse_location, refuse_both_stores
from dflashctl_remote.relay.chief import SHARED

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
    with pytest.raises(ConfigError, match="only be read"):
        refuse_both_stores(Location("local", "x"), Location("", "hf://o/n"))


class HereAgent:
    """An agent of this machine, asked without a link."""

    def ask(self, op, asked, **_):
        return {"look": lambda asked: {"kind": "folder" if os.path.exists(asked["dest"]) else "nothing"}, **SHARED}[op](
            asked
        )


@pytest.mark.parametrize(
    ("source", "dest", "replace", "said"),
    [
        ("a/b", "a", True, "would be gone with it"),
        ("a/b", "a", False, "would be gone with it"),
        ("a/b", "link/..", True, "would be gone with it"),
        ("link", "a/b", True, "would be gone with it"),
        ("a", "a/new", False, "part of itself"),
        ("a", "link/new/er", False, "part of itself"),
        ("link", "a/b/new", True, "part of itself"),
        ("a/b", "link", True, ""),
        ("a/b", "a/c", False, ""),
        ("a/b", "c", True, ""),
    ],
)
def test_a_path_is_never_put_into_itself_nor_in_place_of_what_it_is_in(tmp_path, source, dest, replace, said):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    # By another name it is the same machine.
    job = PathJob(Location("local", str(tmp_path / source)), Location("ct129", f"{tmp_path}/{dest}"), replace=replace)
    if not said:
        assert job.choose(HereAgent(), HereAgent()) is not None
        return
    with pytest.raises(ConfigError, match=said):
        job.choose(HereAgent(), HereAgent())


def test_one_that_has_replaced_what_was_there_is_not_sent_again(tmp_path):
    for name, text in (("a", "new"), ("b", "old"), ("c", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(text)
    job = PathJob(Location("local", f"{tmp_path}/a"), Location("ct129", f"{tmp_path}/b"), replace=True)
    assert job.choose(HereAgent(), HereAgent()) is not None
    # A second try, while nothing was published.
    assert job.choose(HereAgent(), HereAgent()) is not None
    (tmp_path / "b").rename(tmp_path / "old")
    (tmp_path / "c").rename(tmp_path / "b")
    # A third, after the answer to that was lost.
    assert (job.choose(HereAgent(), HereAgent()), job.is_there) == (None, True)
    (tmp_path / "b/f").write_text("old")
    assert job.choose(HereAgent(), HereAgent()) is not None
    # Where nothing was, too.
    job = PathJob(Location("local", f"{tmp_path}/a"), Location("ct129", f"{tmp_path}/d"), replace=True)
    assert job.choose(HereAgent(), HereAgent()) is not None
    (tmp_path / "a").rename(tmp_path / "d")
    (tmp_path / "d/f").write_text("new")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/f").write_text("new")
    assert job.choose(HereAgent(), HereAgent()) is None
