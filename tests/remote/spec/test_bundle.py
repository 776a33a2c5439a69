import os

from dflashctl_remote.spec.bundle import SUFFIXES, bundle_root, bundle_sha, sha_of_bundle


def make(root, **files):
    for name, text in files.items():
        path = root / "dflashctl_remote" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_root_is_what_goes_on_the_path():
    assert (bundle_root() / "dflashctl_remote" / "spec" / "bundle.py").is_file()


def test_name_follows_content_and_not_time(tmp_path):
    root = make(tmp_path, one="1", two="2")
    before = sha_of_bundle(root)
    os.utime(root / "dflashctl_remote" / "one.py", (1, 1))
    (root / "dflashctl_remote" / "one.pyc").write_text("cache")
    assert sha_of_bundle(root) == before


def test_name_changes_with_a_byte_or_a_file_name(tmp_path):
    names = {
        sha_of_bundle(make(tmp_path / "a", one="1", two="2")),
        sha_of_bundle(make(tmp_path / "b", one="1", two="3")),
        sha_of_bundle(make(tmp_path / "c", one="1", three="2")),
    }
    assert len(names) == 3


def test_name_of_the_running_bundle_is_a_sha256():
    assert len(bundle_sha()) == 64


def test_a_script_counts_and_a_readme_does_not(tmp_path):
    root = make(tmp_path, one="1")
    before = sha_of_bundle(root)
    (root / "dflashctl_remote" / "README.md").write_text("words")
    assert sha_of_bundle(root) == before
    (root / "dflashctl_remote" / "one.sh").write_text("exit 0")
    assert sha_of_bundle(root) != before


def test_the_package_holds_nothing_that_would_not_be_shipped():
    package = bundle_root() / "dflashctl_remote"
    kinds = {path.suffix for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert kinds <= {*SUFFIXES, ".md"}
