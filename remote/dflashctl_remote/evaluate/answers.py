"""The answers of an evaluation on disk: appended one by one beside the output, so that an interrupted one resumes,
and published with the report as one folder."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.bundle import bundle_sha
from dflashctl_remote.spec.errors import ArtifactCorrupt, BadInput
from dflashctl_remote.spec.evaluate import EvalReport
from dflashctl_remote.spec.manifest import MANIFEST_NAME, verify, write_json, write_manifest

_ANSWERS = "answers.jsonl"
_REPORT = "report.json"
_ORIGIN = "origin.json"
"""What the answers depend on; others are never mixed in."""


class Answer(Spec):
    """A line of answers.jsonl."""

    id: str
    category: str | None
    num_prompt_tokens: int
    tokens: tuple[int, ...]
    """With the stop token that ended it."""
    text: str
    accepted_per_step: tuple[int, ...]
    """Tokens that each verify step emitted, bonus included; the first token of the answer is in none."""
    drafts_per_step: tuple[int, ...]
    """Accepted drafts of each step."""
    lookup_per_step: tuple[int, ...]
    """As accepted_per_step, had the bigram look-up in the own text drafted."""
    table_per_step: tuple[int, ...] | None
    """As accepted_per_step, had the bigram table drafted; None without one."""
    repeated_share: float
    """Tokens inside a repeated 16-gram of this answer."""
    is_greedy_equal: bool | None
    """Same tokens as plain greedy decoding; None: not compared."""
    wall_s: float
    """Seconds that this prompt took."""


class AnswerLog:
    """`<output>.partial` while the work goes on, `<output>` once it is complete."""

    def __init__(self, output: Path, origin: dict[str, Any]) -> None:
        """Picks up the answers of an interrupted evaluation of the same origin; drops those of another."""
        self._output = output
        self._aside = output.with_name(f"{output.name}.partial")
        self.answers: dict[str, Answer] = {}
        self.was_dropped = False
        """An unfinished evaluation of something else lay there and is gone."""
        if self._aside.is_dir():
            self.was_dropped = _read_json(self._aside / _ORIGIN) != origin
            if self.was_dropped:
                shutil.rmtree(self._aside)
            else:
                self.answers = {answer.id: answer for answer in _read_whole_lines(self._aside / _ANSWERS)}
        self._aside.mkdir(parents=True, exist_ok=True)
        write_json(self._aside / _ORIGIN, origin)

    def append(self, answer: Answer) -> None:
        """On the disk when this returns."""
        with (self._aside / _ANSWERS).open("a", encoding="utf-8") as file:
            file.write(answer.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.answers[answer.id] = answer

    def publish(self, report: EvalReport) -> None:
        """Write the report and the manifest, and give the folder its name."""
        write_json(self._aside / _REPORT, report.model_dump(mode="json"))
        about = report.model_dump(mode="json", exclude={"acceptance_by_slot"})
        write_manifest(self._aside, "evaluation", bundle_sha=bundle_sha(), about=about)
        if self._output.is_dir():
            self._output.rmdir()
        self._aside.rename(self._output)


def finished_report(output: Path, origin: dict[str, Any]) -> EvalReport | None:
    """The report of a complete evaluation of the same origin; None if the output is free.

    Raises BadInput if something else lies there, ArtifactCorrupt if it is this evaluation and damaged.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    if not (output / MANIFEST_NAME).is_file():
        raise BadInput(
            f"wanted to write an evaluation to {output}, found something there that is not a finished one",
            hint="give another --output, or remove it",
        )
    verify(output, "evaluation")
    found = _read_json(output / _ORIGIN)
    if found != origin:
        differing = sorted(key for key in origin.keys() | found.keys() if origin.get(key) != found.get(key))
        raise BadInput(
            f"wanted to write an evaluation to {output}, found a finished one that differs ({', '.join(differing)})",
            hint="give another --output, or remove it",
        )
    return EvalReport.model_validate_json((output / _REPORT).read_bytes())


def _read_json(path: Path) -> dict[str, Any]:
    """Empty if there is none, or none that was written whole."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_whole_lines(path: Path) -> Sequence[Answer]:
    """The answers of an interrupted evaluation; a last line cut short by a kill is taken off the file."""
    if not path.is_file():
        return ()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    try:
        return [Answer.model_validate_json(line) for line in whole.splitlines()]
    except ValidationError as error:
        raise ArtifactCorrupt(
            f"{path} holds a line that is no answer: {error.errors()[0]['msg']}", hint=f"remove {path.parent}"
        ) from error
