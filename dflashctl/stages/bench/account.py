"""What a benchmark writes down while it runs: the lines of requests.jsonl. Append-only; a later line wins."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dflashctl.engines.base import SpecCounters
from dflashctl.errors import ArtifactError
from dflashctl_remote.spec.base import Spec

Arm = Literal["baseline", "speculative"]
ARMS: tuple[Arm, Arm] = ("baseline", "speculative")
JOURNAL_NAME = "requests.jsonl"


class ServerLabel(Spec):
    """A server as it described itself when it was asked."""

    name: str
    base_url: str
    model: str
    engine: str
    target: str
    drafter_label: str | None
    drafter_sha256: str | None
    num_draft_tokens: int | None
    """K; None: no drafter."""
    about: dict[str, Any] = Field(default_factory=dict)
    """Its /version; empty: it has none. Versions, device and dtype where it says them."""
    is_temporary: bool = False
    """Started for this benchmark, and ended after it."""


class Extras(Spec):
    """Which additions to OpenAI's protocol a server took when it was probed."""

    token_ids: bool
    """`return_token_ids`: outputs are compared token by token."""
    continuous_usage: bool
    """`stream_options.continuous_usage_stats`: the size of every chunk is known."""


class Asked(Spec):
    """All that the figures depend on from the client's side; a run is resumed only where this is the same."""

    prompts: str
    prompts_sha256: str
    num_prompts: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    chat_template_kwargs: dict[str, Any]
    concurrency: tuple[int, ...]
    """Empty: open loop."""
    rate_per_s: float | None
    num_repeats: int
    num_warmup: int


class Counted(Spec):
    """An engine's counters at one moment."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_position: tuple[int, ...]

    @classmethod
    def of(cls, seen: SpecCounters | None) -> "Counted | None":
        if seen is None:
            return None
        return cls(
            num_drafts=seen.num_drafts,
            num_draft_tokens=seen.num_draft_tokens,
            num_accepted_tokens=seen.num_accepted_tokens,
            accepted_per_position=seen.accepted_per_position,
        )

    @property
    def counters(self) -> SpecCounters:
        return SpecCounters(
            self.num_drafts, self.num_draft_tokens, self.num_accepted_tokens, self.accepted_per_position
        )


class SegmentRecord(Spec):
    """One start of the command; a run that was resumed has several."""

    kind: Literal["segment"] = "segment"
    segment: int
    began_at_s: float
    """Unix time, read once; all other times are seconds since then by a monotonic clock."""
    machine: str
    dflashctl: str
    asked: Asked
    servers: dict[Arm, ServerLabel]
    extras: dict[Arm, Extras]


class RequestRecord(Spec):
    kind: Literal["request"] = "request"
    segment: int
    turn: int
    arm: Arm
    load: str
    repeat: int
    prompt_id: str
    intended_s: float
    """When it should have been sent: open loop, its arrival; closed loop, when its place was free."""
    sent_s: float
    first_s: float | None
    """First chunk with a token, reasoning included."""
    last_s: float | None
    """Last chunk with a token."""
    ended_s: float
    chunk_times_s: tuple[float, ...]
    chunk_sizes_tokens: tuple[int, ...] | None
    """None: the server does not tell how many tokens a chunk holds."""
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    num_cached_tokens: int | None
    finish_reason: str | None
    text: str
    text_sha256: str
    token_ids: tuple[int, ...] | None
    error: str | None

    @property
    def key(self) -> tuple[Arm, str, int, str]:
        return self.arm, self.load, self.repeat, self.prompt_id


class TurnRecord(Spec):
    """A stretch in which one arm alone was asked, from its first request to the end of its last."""

    kind: Literal["turn"] = "turn"
    segment: int
    turn: int
    """Counts from 0 in a segment."""
    arm: Arm
    load: str
    repeat: int
    block: int
    """The same (load, repeat, block) of the other arm holds the same prompts."""
    began_s: float
    ended_s: float
    prompt_ids: tuple[str, ...]
    before: Counted | None
    """None: the engine counts no speculation, or did not answer."""
    after: Counted | None

    @property
    def pair(self) -> tuple[str, int, int]:
        return self.load, self.repeat, self.block


class EndRecord(Spec):
    """The segment reached its end, or an end that it could still write down."""

    kind: Literal["end"] = "end"
    segment: int
    ended_s: float
    reason: str | None = None
    """None: everything was asked."""


Line = SegmentRecord | RequestRecord | TurnRecord | EndRecord
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


class Journal:
    """requests.jsonl, open to be continued."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL_NAME
        folder.mkdir(parents=True, exist_ok=True)
        _drop_half_line(self.path)

    def append(self, line: Line) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json() + "\n")


def read_journal(folder: Path) -> tuple[Line, ...]:
    """Every whole line; half a line at the end, left by a killed process, does not count. Raises ArtifactError."""
    path = folder / JOURNAL_NAME
    try:
        return tuple(_lines(path))
    except OSError as error:
        raise ArtifactError(f"no benchmark at {folder}: {path.name}: {error.strerror}") from error


def _lines(path: Path) -> Iterator[Line]:
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    # Not splitlines: a text may hold other characters that end lines.
    for number, line in enumerate(whole.split("\n"), start=1):
        if not line:
            continue
        try:
            yield _LINE.validate_json(line)
        except ValidationError as error:
            raise ArtifactError(f"{path}:{number} is not a line of a benchmark of this version") from error


def _drop_half_line(path: Path) -> None:
    if not path.is_file():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
