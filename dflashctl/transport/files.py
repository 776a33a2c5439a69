"""Small files to and from a host, by scripts: they work wherever a script does, behind any login shell.

For control, not for bulk: a megabyte takes about a second.
"""

import base64
import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

from dflashctl.errors import JobFailed
from dflashctl.transport.shell import Answer, Script

CHUNK_BYTES = 512 * 1024
Run = Callable[..., Answer]

_APPEND = """
set -u
umask 077
case "$path" in "~/"*) path=$HOME/${path#"~/"};; esac
part=$path.$nonce.part
[ "$offset" = 0 ] && { rm -f "$part"; : >"$part" || exit 21; }
have=$(($(wc -c <"$part")))
[ "$have" = "$offset" ] || { echo "it has $have bytes, wanted $offset" >&2; exit 22; }
printf %s "$content" | base64 -d >>"$part" || { rm -f "$part"; exit 23; }
[ -n "$total" ] || exit 0
have=$(($(wc -c <"$part")))
[ "$have" = "$total" ] || { rm -f "$part"; echo "it has $have bytes, wanted $total" >&2; exit 24; }
chmod "$mode" "$part" && mv -f "$part" "$path" || { rm -f "$part"; exit 25; }
"""
_READ = """
case "$path" in "~/"*) path=$HOME/${path#"~/"};; esac
exec 3<"$path" || exit 21
tail -c +"$((offset + 1))" <&3 | head -c "$limit"
"""


def put(run: Run, host: str, content: bytes, path: str, *, mode: int, timeout_s: float) -> None:
    """Write a file aside in pieces, compare its size, rename it. Raises JobFailed, and what `run` raises."""
    nonce = hashlib.sha256(content).hexdigest()[:8] + secrets.token_hex(4)
    for offset in range(0, max(1, len(content)), CHUNK_BYTES):
        piece = content[offset : offset + CHUNK_BYTES]
        is_last = offset + len(piece) >= len(content)
        values = (
            ("path", path),
            ("nonce", nonce),
            ("offset", str(offset)),
            ("mode", f"{mode:o}"),
            ("total", str(len(content)) if is_last else ""),
        )
        # As a secret: what a file holds is nobody's business in a dry run.
        script = Script("put", _APPEND, values, (("content", base64.b64encode(piece).decode("ascii")),))
        answer = run(script, timeout_s=timeout_s)
        if answer.code != 0:
            raise JobFailed(f"{path} could not be written on {host}: {reason(answer.code, answer.err)}", host=host)


def get(run: Run, host: str, path: str, *, offset_bytes: int, limit_bytes: int, timeout_s: float) -> bytes:
    """A piece of a file. Raises JobFailed if there is no such file, and what `run` raises."""
    values = (("path", path), ("offset", str(offset_bytes)), ("limit", str(limit_bytes)))
    answer = run(Script("get", _READ, values), timeout_s=timeout_s)
    if answer.code != 0:
        raise JobFailed(f"{path} could not be read on {host}: {reason(answer.code, answer.err)}", host=host)
    return answer.out


def read_script(folder: Path, *names: str) -> str:
    """The text of .sh files that lie in a package, one after the other."""
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def reason(code: int, err: str) -> str:
    """Why a script failed, in a word: the last line of its stderr, else its exit code."""
    lines = err.strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"
