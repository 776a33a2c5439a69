"""Collect permissively licensed Python sources into one JSON-lines file, split by file.

Sources are the standard library of the running interpreter, installed distributions and wheels on
disk; nothing is fetched. Not for tokenising: see `encode.py`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.metadata
import json
import re
import sysconfig
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from email.parser import HeaderParser
from pathlib import Path

PERMISSIVE = re.compile(r"\b(BSD|0BSD|MIT|Apache|PSF|Python Software Foundation|ISC|Unlicense)\b", re.I)
COPYLEFT = re.compile(r"\b[AL]?GPL|General Public|\bMPL\b|Mozilla Public|EUPL|CeCILL", re.I)
SKIPPED_FOLDERS = {
    "test",
    "tests",
    "testing",
    "_vendor",
    "vendor",
    "vendored",
    "site-packages",
    "migrations",
    "locale",
    "idle_test",
    "node_modules",
    "lib2to3",
    "pydoc_data",
}
MAX_FILE_BYTES = 200_000
MIN_FILE_BYTES = 400
# A file that deflates better than this is a table or a family of near copies: it teaches looping.
MAX_DEFLATE_RATIO = 7.0


@dataclass(frozen=True)
class Source:
    """One file: where it comes from, under which licence, in which split."""

    package: str
    version: str
    licence: str
    path: str
    split: str
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, help="folder of wheels to read")
    parser.add_argument("--installed", nargs="*", default=[], help="names of installed distributions to read")
    parser.add_argument("--out", type=Path, required=True, help="JSON-lines file to write")
    args = parser.parse_args()

    candidates = list(_stdlib())
    for name in args.installed:
        candidates += _installed(name)
    for wheel in sorted(args.wheels.glob("*.whl")) if args.wheels else []:
        candidates += _wheel(wheel)
    kept = list(_without_near_copies(candidates))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", encoding="utf-8") as out:
        for source in kept:
            out.write(json.dumps(asdict(source)) + "\n")
    sizes: Counter[tuple[str, str, str]] = Counter()
    for source in kept:
        sizes[source.package, source.version, source.licence] += len(source.text.encode())
    for (package, version, licence), size in sizes.most_common():
        print(f"{package}\t{version}\t{licence}\t{size}")
    print(f"{len(kept)} of {len(candidates)} files, {sum(sizes.values())} bytes")


def split_of(package: str, path: str) -> str:
    """Held-out and validation files are 1.5 % each, chosen by a hash of the file's name."""
    draw = int(hashlib.sha256(f"{package}/{path}".encode()).hexdigest()[:8], 16) % 1000
    return "heldout" if draw < 15 else "valid" if draw < 30 else "train"


def functions_of(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a module, methods included; raises SyntaxError."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _stdlib() -> Iterator[Source]:
    root = Path(sysconfig.get_paths()["stdlib"])
    version = sysconfig.get_python_version()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        yield from _source("python-stdlib", version, "PSF-2.0", relative, path.read_bytes())


def _installed(name: str) -> Iterator[Source]:
    distribution = importlib.metadata.distribution(name)
    licence = _licence(distribution.metadata.items())
    for entry in sorted(distribution.files or [], key=str):
        if entry.suffix == ".py" and ".." not in entry.parts:
            content = Path(str(entry.locate())).read_bytes()
            yield from _source(name, distribution.version, licence, entry.as_posix(), content)


def _wheel(wheel: Path) -> Iterator[Source]:
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(archive.namelist())
        metadata_name = next(n for n in names if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(metadata_name).decode(errors="replace"))
        licence = _licence(metadata.items())
        for name in names:
            if name.endswith(".py"):
                yield from _source(metadata["Name"], metadata["Version"], licence, name, archive.read(name))


def _licence(fields: list[tuple[str, str]]) -> str:
    """The licence as the package states it; an expression wins over classifiers, those over free text."""
    for wanted, prefix in (("License-Expression", ""), ("Classifier", "License ::"), ("License", "")):
        values = [v.split("::")[-1].strip() for k, v in fields if k == wanted and v.startswith(prefix)]
        if values:
            return " / ".join(v.splitlines()[0][:60] for v in values)
    return "unknown"


def _source(package: str, version: str, licence: str, path: str, content: bytes) -> Iterator[Source]:
    """The file as a Source, or nothing where licence, folder, size, text or repetitiveness rule it out."""
    if COPYLEFT.search(licence) or not PERMISSIVE.search(licence):
        return
    folders = set(path.lower().split("/")[:-1])
    is_test = path.rsplit("/", 1)[-1].startswith(("test_", "conftest"))
    if folders & SKIPPED_FOLDERS or is_test or not MIN_FILE_BYTES <= len(content) <= MAX_FILE_BYTES:
        return
    if len(content) / len(zlib.compress(content, 6)) > MAX_DEFLATE_RATIO:
        return
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
        ast.parse(text)
    except (UnicodeDecodeError, SyntaxError, ValueError):
        return
    is_foreign = sum(ord(c) > 127 for c in text) > 0.005 * len(text)
    if is_foreign or max(map(len, text.split("\n"))) > 400 or COPYLEFT.search(text[:3000]):
        return
    yield Source(package, version, licence, path, split_of(package, path), _without_header(text))


def _without_header(text: str) -> str:
    """Drop the opening comment block: licence texts would else be the best learned part of the corpus."""
    lines = text.split("\n")
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(line.rstrip() for line in lines)


def _without_near_copies(sources: list[Source]) -> Iterator[Source]:
    """Skip files whose code lines were mostly seen before; held-out files come first, so none leaks."""
    order = {"heldout": 0, "valid": 1, "train": 2}
    seen: set[int] = set()
    for source in sorted(sources, key=lambda s: (order[s.split], s.package, s.path)):
        lines = {hash(line.strip()) for line in source.text.split("\n") if len(line.strip()) > 24}
        if not lines or len(lines & seen) > 0.5 * len(lines):
            continue
        seen |= lines
        yield source


if __name__ == "__main__":
    main()
