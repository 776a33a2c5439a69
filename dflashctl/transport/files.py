"""Small files to and from a host, by scripts: they work wherever a script does, behind any login shell.

For control, not for bulk: ten megabytes take about a second.
"""

import base64
import secrets
from collections.abc import Callable
from pathlib import Path

from dflashctl.errors import JobFailed
from dflashctl.transport.shell import Answer, Script

CHUNK_BYTES = 512 * 1024
Run = Callable[..., Answer]

_PATH = """
case "$path" in "~/"*) path=$HOME/${path#"~/"};; esac
case "$path" in /*) ;; *) echo "the path is not absolute" >&2; exit 20;; esac
[ -d "$path" ] && { echo "it is a folder" >&2; exit 21; }
"""
_APPEND = f"""
set -u
umask 077
{_PATH}
part=$path.$nonce.part
if [ "$offset" = 0 ]; then : >"$part" || exit 22; fi
have=$(($(wc -c <"$part"))) || exit 23
[ "$have" = "$offset" ] || {{ rm -f "$part"; echo "$have bytes are there, not $offset" >&2; exit 24; }}
printf %s "$content" | base64 -d >>"$part" || {{ rm -f "$part"; echo "no space left?" >&2; exit 25; }}
[ -n "$total" ] || exit 0
have=$(($(wc -c <"$part")))
[ "$have" = "$total" ] || {{ rm -f "$part"; echo "$have bytes were written, not $total" >&2; exit 26; }}
chmod "$mode" "$part" && sync "$part" 2>/dev/null
mv -f "$part" "$path" || {{ rm -f "$part"; exit 27; }}
"""
_READ = f"""
{_PATH}
exec 3<"$path" || exit 22
tail -c +"$((offset + 1))" <&3 | head -c "$limit"
"""


def put(run: Run, host: str, content: bytes, path: str, *, mode: int, timeout_s: float) -> None:
    """Write a file whole: aside in pieces, compared by size, then renamed. Raises JobFailed, and what `run` raises."""
    nonce = secrets.token_hex(8)
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
            raise JobFailed(f"{path} could not be written on {host}: {reason(answer)}", host=host)


def get(run: Run, host: str, path: str, *, offset_bytes: int, limit_bytes: int, timeout_s: float) -> bytes:
    """A piece of a file. Raises JobFailed if there is no such file, and what `run` raises."""
    values = (("path", path), ("offset", str(offset_bytes)), ("limit", str(limit_bytes)))
    answer = run(Script("get", _READ, values), timeout_s=timeout_s)
    if answer.code != 0:
        raise JobFailed(f"{path} could not be read on {host}: {reason(answer)}", host=host)
    return answer.out


def read_script(folder: Path, *names: str) -> str:
    """The text of .sh files that lie in a package, one after the other."""
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def reason(answer: Answer) -> str:
    """Why a script failed, in a word: the last line of its stderr, else its exit code."""
    lines = answer.err.strip().splitlines()
    return lines[-1] if lines else f"exit code {answer.code}"
