import os
import shutil

import pytest

from dflashctl.errors import JobFailed
from dflashctl.transport.files import CHUNK_BYTES
from dflashctl.transport.local_shell import LocalShell

SHELLS = [("dash", "-s"), ("bash", "--posix", "-s"), ("busybox", "ash", "-s")]


@pytest.fixture(params=SHELLS, ids=lambda sh: sh[0])
def shell(request):
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"needs {request.param[0]}")
    return LocalShell(sh=request.param)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 3])
def test_a_file_arrives_as_it_was(shell, tmp_path, size):
    content, path = os.urandom(size), tmp_path / 'it\'s "a" $file\n'
    shell.put(content, str(path), mode=0o640)
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o640
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert shell.get(str(path), limit_bytes=size + 1) == content


def test_a_piece_of_a_file_can_be_read(shell, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)))
    assert shell.get(str(path), offset_bytes=10, limit_bytes=5) == bytes(range(10, 15))
    assert shell.get(str(path), offset_bytes=250, limit_bytes=100) == bytes(range(250, 256))
    assert shell.get(str(path), offset_bytes=999, limit_bytes=100) == b""


def test_a_file_below_the_home_folder_can_be_named(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "my home"))
    (tmp_path / "my home").mkdir()
    shell.put(b"hello", "~/a file")
    assert (tmp_path / "my home" / "a file").read_bytes() == b"hello"
    assert shell.get("~/a file", limit_bytes=10) == b"hello"


def test_a_file_is_replaced_whole(shell, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    shell.put(b"new", str(path))
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_is_told(shell, tmp_path):
    with pytest.raises(JobFailed, match=r"none could not be read on local: .*(No such file|no such file)"):
        shell.get(str(tmp_path / "none"), limit_bytes=10)


def test_a_folder_that_is_not_there_is_told(shell, tmp_path):
    with pytest.raises(JobFailed, match="could not be written on local"):
        shell.put(b"x", str(tmp_path / "none" / "file"))


def test_a_folder_is_no_file(shell, tmp_path):
    with pytest.raises(JobFailed, match="it is a folder"):
        shell.put(b"x", str(tmp_path))
    with pytest.raises(JobFailed, match="it is a folder"):
        shell.get(str(tmp_path), limit_bytes=10)
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_absolute(shell):
    with pytest.raises(JobFailed, match="the path is not absolute"):
        shell.put(b"x", "-file")
