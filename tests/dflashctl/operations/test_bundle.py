import io
import os
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from dflashctl.errors import ArtifactError, JobFailed, LinkLost
from dflashctl.operations.bundle import QUESTION, Bundle, ensure_bundle, question_values, read_bundle
from dflashctl.transport.fake_shell import FakeShell
from dflashctl.transport.local_shell import LocalShell
from dflashctl.transport.process import token_of
from dflashctl.transport.shell import Answer, Script
from dflashctl_remote.spec.bundle import bundle_sha, sha_of_bundle
from dflashctl_remote.spec.process import MARKER

TOOLS = (
    "find",
    "sort",
    "wc",
    "tar",
    "gzip",
    "base64",
    "sha256sum",
    "mkdir",
    "mv",
    "rm",
    "cat",
    "df",
    "sed",
    "grep",
    "id",
    "readlink",
    "tr",
    "ls",
)
SHELLS = {"dash": ("dash", "-s"), "ash": ("busybox", "ash", "-s"), "bash": ("bash", "--posix", "-s")}


@pytest.fixture
def workdir(tmp_path):
    """A name that only quoting survives."""
    return str(tmp_path / 'it\'s a "work" $(folder)')


@pytest.fixture
def small(tmp_path):
    """A bundle of three files."""
    package = tmp_path / "small" / "dflashctl_remote"
    (package / "entry").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "entry" / "train.py").write_text("print('train')\n")
    (package / "start.sh").write_text("exec true\n")
    return Bundle.read(package.parent)


@pytest.fixture
def shell():
    return LocalShell()


def shell_with(tools, tmp_path, *programs, is_busybox=False):
    """A host that has these tools alone, and `programs`: pairs of a name and a text."""
    folder = tmp_path / f"bin-{len(list(tmp_path.glob('bin-*')))}"
    folder.mkdir()
    for tool in tools:
        (folder / tool).symlink_to(shutil.which("busybox" if is_busybox else tool))
    for name, text in programs:
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    sh = (shutil.which("busybox"), "ash") if is_busybox else ("/bin/sh",)
    return LocalShell(sh=("/usr/bin/env", f"PATH={folder}", *sh, "-s"))


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def left_overs(workdir):
    return [path.name for path in (Path(workdir) / "bundles").iterdir() if path.name.startswith(".")]


def test_archive_is_the_same_bytes_every_time_and_holds_every_file():
    bundle = Bundle.read()
    assert bundle.archive() == Bundle.read().archive()
    with tarfile.open(fileobj=io.BytesIO(bundle.archive())) as tar:
        entries = tar.getmembers()
        assert {entry.name: tar.extractfile(entry).read() for entry in entries} == dict(bundle.files)
    assert {(entry.uid, entry.gid, entry.uname, entry.mode, entry.mtime) for entry in entries} == {(0, 0, "", 0o444, 1)}


@pytest.mark.parametrize("sh", SHELLS)
def test_sent_once_under_its_name_and_found_there_the_second_time(workdir, sh):
    shell = LocalShell(sh=SHELLS[sh])
    first, second = ensure_bundle(shell, workdir), ensure_bundle(shell, workdir)
    assert first.root == second.root == f"{workdir}/bundles/{bundle_sha()[:12]}"
    assert (first.was_there, second.was_there, second.sent_bytes) == (False, True, 0)
    assert first.sent_bytes > 10_000
    assert sha_of_bundle(Path(first.root)) == bundle_sha()
    assert not left_overs(workdir)


def test_files_on_the_host_are_read_only(shell, workdir, small):
    root = ensure_bundle(shell, workdir, bundle=small).root
    assert {path.stat().st_mode & 0o222 for path in Path(root).rglob("*") if path.is_file()} == {0}


def test_work_folder_below_home_is_found_by_the_host(tmp_path, small):
    shell = LocalShell(sh=("/usr/bin/env", f"HOME={tmp_path}", "/bin/sh", "-s"))
    assert ensure_bundle(shell, "~/a b", bundle=small).root == f"{tmp_path}/a b/bundles/{small.sha[:12]}"
    assert ensure_bundle(shell, "~/a b", bundle=small).was_there


def test_question_is_a_part_of_anyones_script(shell, workdir, small):
    def ask():
        text = QUESTION + "\necho other=fact\nbundle_question\n"
        return read_bundle(shell.run(Script("survey", text, question_values(workdir, small))))

    assert ask().presence == "absent"
    known = ask()
    assert not ensure_bundle(shell, workdir, bundle=small, known=known).was_there
    assert ask().presence == "there"
    assert ensure_bundle(FakeShell({}), workdir, bundle=small, known=ask()).was_there


@pytest.mark.parametrize("is_busybox", [False, True])
@pytest.mark.parametrize("has_sha256sum", [True, False])
@pytest.mark.parametrize("damage", ["a file is gone", "a file is longer", "a file more"])
def test_damage_is_noticed_and_healed(workdir, small, tmp_path, is_busybox, has_sha256sum, damage):
    tools = [tool for tool in TOOLS if has_sha256sum or tool != "sha256sum"]
    shell = shell_with(tools, tmp_path, is_busybox=is_busybox)
    root = Path(ensure_bundle(shell, workdir, bundle=small).root)
    whole = tree(root)
    victim = root / "dflashctl_remote" / "entry" / "train.py"
    victim.chmod(0o644)
    if damage == "a file is gone":
        victim.unlink()
    elif damage == "a file is longer":
        victim.write_text(victim.read_text() + "# more\n")
    else:
        victim.with_name("more.py").write_text("")
    assert not ensure_bundle(shell, workdir, bundle=small).was_there
    assert tree(root) == whole
    assert ensure_bundle(shell, workdir, bundle=small).was_there
    assert not left_overs(workdir)


def test_a_change_that_keeps_the_size_is_noticed_where_sha256sum_is(shell, workdir, small):
    root = Path(ensure_bundle(shell, workdir, bundle=small).root)
    victim = root / "dflashctl_remote" / "entry" / "train.py"
    victim.chmod(0o644)
    victim.write_text("print('tram!')\n")
    assert not ensure_bundle(shell, workdir, bundle=small).was_there
    assert victim.read_text() == "print('train')\n"


def test_what_python_caches_beside_the_code_is_no_damage(shell, workdir, small):
    root = Path(ensure_bundle(shell, workdir, bundle=small).root)
    (root / "dflashctl_remote" / "__pycache__").mkdir()
    (root / "dflashctl_remote" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"cache")
    assert ensure_bundle(shell, workdir, bundle=small).was_there


@pytest.mark.parametrize("is_busybox", [False, True])
def test_many_senders_at_once_leave_one_whole_bundle(workdir, small, tmp_path, is_busybox):
    came, go = [], threading.Barrier(6)
    shell = shell_with(TOOLS, tmp_path, is_busybox=is_busybox)

    def send():
        go.wait()
        came.append(ensure_bundle(shell, workdir, bundle=small))

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(came) == 6
    assert sum(not bundle.was_there for bundle in came) == 1
    assert len({bundle.root for bundle in came}) == 1
    assert tree(came[0].root) == dict(small.files)
    assert not left_overs(workdir)


@pytest.mark.parametrize("tool", ["find", "tar", "base64", "gzip"])
def test_a_host_without_a_tool_is_told_which(tmp_path, workdir, small, tool):
    shell = shell_with([name for name in TOOLS if name != tool], tmp_path)
    with pytest.raises(JobFailed, match=rf"could not be unpacked on local: it has no {tool}$"):
        ensure_bundle(shell, workdir, bundle=small)


def test_half_an_archive_is_never_given_the_name(tmp_path, workdir, small):
    # tar that loses a file and says that all is well
    lossy = f'#!/bin/sh\n{shutil.which("tar")} "$@"\nrm -f dflashctl_remote/start.sh\n'
    shell = shell_with(TOOLS, tmp_path, ("tar", lossy))
    with pytest.raises(JobFailed, match="what arrived there is not what was sent"):
        ensure_bundle(shell, workdir, bundle=small)
    assert not list((Path(workdir) / "bundles").iterdir())


def test_a_full_disk_leaves_nothing_and_is_told_with_sizes(tmp_path, workdir, small):
    full = (
        '#!/bin/sh\ncat >/dev/null\necho "tar: dflashctl_remote: Cannot write: No space left on device" >&2\nexit 2\n'
    )
    shell = shell_with(TOOLS, tmp_path, ("tar", full))
    with pytest.raises(JobFailed) as raised:
        ensure_bundle(shell, workdir, bundle=small)
    message = raised.value.message
    assert f"{workdir}/bundles on local" in message
    assert "needs 0.0 MB, " in message and "MB free): tar:" in message and "No space left on device" in message
    assert not list((Path(workdir) / "bundles").iterdir())


def test_a_work_folder_that_cannot_be_made_is_one_sentence(shell, tmp_path, small):
    (tmp_path / "file").write_text("")
    with pytest.raises(JobFailed, match=r"could not be put into .*/file/w/bundles on local"):
        ensure_bundle(shell, str(tmp_path / "file" / "w"), bundle=small)


def test_after_a_lost_link_the_host_is_asked_again(workdir, small):
    root = f"{workdir}/bundles/{small.sha[:12]}"
    asked = [Answer(0, f"bundle_root={root}\nbundle={presence}\n".encode(), "") for presence in ("absent", "there")]
    shell = FakeShell({"ask for the bundle": asked, "send the bundle": [LinkLost("cut", host="fake")]})
    assert ensure_bundle(shell, workdir, bundle=small).was_there
    assert [script.name for script in shell.ran] == ["ask for the bundle", "send the bundle", "ask for the bundle"]


def test_a_link_that_breaks_every_time_is_given_up(workdir, small):
    shell = FakeShell({"ask for the bundle": [LinkLost("cut", host="fake")]})
    with pytest.raises(LinkLost):
        ensure_bundle(shell, workdir, bundle=small)
    assert len(shell.ran) == 3


def test_half_a_sending_runs_not_at_all(shell, workdir, small):
    """The link that broke while the archive travelled: the shell there sees the end of its input."""
    ensure_bundle(shell, workdir, bundle=small)
    shutil.rmtree(workdir)
    cut = LocalShell(sh=("/bin/sh", "-c", "head -c 3000 | /bin/sh -s"))
    with pytest.raises(LinkLost):
        ensure_bundle(cut, workdir, bundle=small, known=read_bundle(Answer(0, b"bundle_root=/x\nbundle=absent\n", "")))
    assert not os.path.exists(workdir)


@pytest.fixture
def run_of(workdir, tmp_path):
    """A living process, and the folder of the run that it stands for."""
    children = []

    def make(bundle_root):
        child = subprocess.Popen(["sleep", "60"], env={**os.environ, MARKER: "nonce"})
        children.append(child)
        folder = Path(workdir) / "runs" / "run a"
        folder.mkdir(parents=True)
        folder.joinpath("token.json").write_text(token_of(child.pid, "nonce").model_dump_json())
        folder.joinpath("job.sh").write_text(f"PYTHONPATH='{bundle_root}' exec python\n")
        return child

    yield make
    for child in children:
        child.kill()
        child.wait()


def test_a_damaged_bundle_that_a_living_run_was_started_from_is_left_alone(shell, workdir, small, run_of):
    root = ensure_bundle(shell, workdir, bundle=small).root
    child = run_of(root)
    Path(root, "dflashctl_remote", "start.sh").unlink()
    damaged = tree(root)
    with pytest.raises(ArtifactError, match="run run a, which lives, was started from it"):
        ensure_bundle(shell, workdir, bundle=small)
    assert tree(root) == damaged
    assert not left_overs(workdir)
    child.kill()
    child.wait()
    assert not ensure_bundle(shell, workdir, bundle=small).was_there
    assert tree(root) == dict(small.files)


def test_a_living_run_of_another_bundle_does_not_keep_this_one_damaged(shell, workdir, small, run_of):
    root = ensure_bundle(shell, workdir, bundle=small).root
    run_of(f"{workdir}/bundles/0123456789ab")
    Path(root, "dflashctl_remote", "start.sh").unlink()
    assert not ensure_bundle(shell, workdir, bundle=small).was_there
    assert tree(root) == dict(small.files)
