"""What the tool must know of a serving engine: how to start it, when it is ready, how it ends, what its counters say.

Nothing here starts or asks anything: an engine translates. One folder an engine, found by name in registry.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dflashctl.config.servers import ServerSpec


@dataclass(frozen=True)
class Launch:
    """Exactly what starts a server: shown by --dry-run."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    files: tuple[tuple[Path, str], ...]
    """Written before the start: path and content."""
    needs_modules: tuple[str, ...]
    """Python modules that the host's interpreter must find."""


@dataclass(frozen=True)
class Readiness:
    """How to see that it serves. Health alone is not ready: a real completion must come, drafts accepted on it."""

    health_path: str
    metrics_path: str
    timeout_s: float
    fatal_log_lines: tuple[str, ...]
    """Text in the log after which waiting is pointless."""


@dataclass(frozen=True)
class Shutdown:
    grace_s: float
    """From the polite signal to the hard one."""


@dataclass(frozen=True)
class SpecCounters:
    """Since the server started; two of them differenced are a measurement. Names as vLLM's `spec_decode_*`."""

    num_drafts: int
    """Verify steps that had drafts."""
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    """Position 0 is the first draft; unconditional: steps whose drafts up to there were all accepted."""

    @property
    def tau(self) -> float | None:
        """1 + accepted / verify steps: tokens per target pass, bonus included; None without steps."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; falls as K grows, so that it compares nothing but the same K."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    def since(self, earlier: "SpecCounters") -> "SpecCounters":
        """Raises ValueError if a counter fell: the server was started anew in between."""
        length = max(len(self.accepted_per_position), len(earlier.accepted_per_position))
        ours = (*self.accepted_per_position, *[0] * (length - len(self.accepted_per_position)))
        theirs = (*earlier.accepted_per_position, *[0] * (length - len(earlier.accepted_per_position)))
        difference = SpecCounters(
            self.num_drafts - earlier.num_drafts,
            self.num_draft_tokens - earlier.num_draft_tokens,
            self.num_accepted_tokens - earlier.num_accepted_tokens,
            tuple(one - other for one, other in zip(ours, theirs, strict=True)),
        )
        if min(difference.num_drafts, difference.num_draft_tokens, difference.num_accepted_tokens) < 0:
            raise ValueError("the engine's counters fell: it was started anew in between")
        return difference


@dataclass(frozen=True)
class LaunchSite:
    """What an engine may know of the place that it is to run on."""

    python: str
    bundle_root: Path
    folder: Path
    """The server's own: spec, events and log lie there."""


class Engine(Protocol):
    name: str
    readiness: Readiness
    shutdown: Shutdown

    def launch(self, spec: ServerSpec, drafter: Path | None, site: LaunchSite) -> Launch:
        """Pure. `drafter` is the resolved checkpoint folder. Raises ConfigError for options that it does not have."""
        ...

    def counters(self, metrics_text: str) -> SpecCounters | None:
        """From the text of its metrics endpoint; None if it counts no speculation."""
        ...
