"""The answers of an evaluation on disk: appended one by one beside the output, so that an interrupted one resumes,
and published with the report as one folder."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dflashctl_remote.data.resumable import ORIGIN_NAME, ResumableLines, differing_keys, read_origin
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.bundle import bundle_sha
from dflashctl_remote.spec.errors import ArtifactCorrupt, BadInput
from dflashctl_remote.spec.evaluate import EvalReport
from dflashctl_remote.spec.manifest import MANIFEST_NAME, verify, write_json, write_manifest

_ANSWERS = "answers.jsonl"
_REPORT = "report.json"


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
    proposals_per_step: tuple[tuple[int, ...], ...] | None = None
    """All that was proposed in each step, where the parity gate looks at this answer."""
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
        self._lines = ResumableLines(output, origin, name=_ANSWERS)
        self.was_dropped = self._lines.was_dropped
        try:
            found = [Answer.model_validate(line) for line in self._lines.found]
        except ValidationError as error:
            raise ArtifactCorrupt(
                f"{self._lines.folder}/{_ANSWERS} holds a line that is no answer: {error.errors()[0]['msg']}",
                hint=f"remove {self._lines.folder}",
            ) from error
        self.answers = {answer.id: answer for answer in found}

    def append(self, answer: Answer) -> None:
        """On the disk when this returns."""
        self._lines.append(answer.model_dump_json())
        self.answers[answer.id] = answer

    def publish(self, report: EvalReport) -> None:
        """Write the report and the manifest, and give the folder its name."""
        folder = self._lines.folder
        write_json(folder / _REPORT, report.model_dump(mode="json"))
        about = report.model_dump(mode="json", exclude={"acceptance_by_slot"})
        write_manifest(folder, "evaluation", bundle_sha=bundle_sha(), about=about)
        if self._output.is_dir():
            self._output.rmdir()
        folder.rename(self._output)


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
    found = read_origin(output / ORIGIN_NAME)
    if found != origin:
        raise BadInput(
            f"wanted to write an evaluation to {output}, found a finished one that differs "
            f"({differing_keys(origin, found)})",
            hint="give another --output, or remove it",
        )
    return EvalReport.model_validate_json((output / _REPORT).read_bytes())
