"""What stages leave on disk for one another to read: the shapes of server.json and of a benchmark's run.json."""

from typing import Literal

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.process import ProcessToken


class Proof(Spec):
    """What was seen before a server was called ready: one real completion."""

    at_s: float
    """Unix time."""
    num_tokens: int
    text: str
    """Its beginning."""
    tau: float | None
    """Measured on that completion from the engine's counters; None: the server drafts nothing."""
    num_verify_steps: int


class ServerRecord(Spec):
    """<workdir>/servers/NAME/server.json; rewritten as the server's life goes on."""

    schema_version: Literal[1] = 1
    name: str
    host: str
    engine: str
    base_url: str
    """http://127.0.0.1:8100, without /v1."""
    model: str
    """What requests name as their model."""
    target: str
    drafter: str | None
    """Folder of the checkpoint."""
    drafter_label: str | None
    """As people name it: RUN@STEP."""
    drafter_sha256: str | None = None
    """Of the weights, from the checkpoint's manifest."""
    num_draft_tokens: int | None
    """K as it runs; None: no drafter."""
    argv: tuple[str, ...]
    token: ProcessToken
    bundle_sha: str
    started_at_s: float
    proof: Proof | None = None
    """None: not ready yet, or never was."""
    stopped_at_s: float | None = None
    """When `deploy down` proved it gone, or `deploy up` ended it again."""
    failure: str | None = None
    """Why `deploy up` ended it again."""


class BenchRecord(Spec):
    """<workdir>/benchmarks/.../run.json: what others need of it; the bench stage's own report extends it."""

    schema_version: Literal[1] = 1
    server: str
    engine: str
    drafter_label: str | None
    started_at_s: float
    ended_at_s: float
    num_prompts: int
    """That both arms answered; of those asked, where it was broken off."""
    tau: float | None
    """From the engine's counters, differenced over the speculative arm."""
    num_verify_steps: int
    speedup: float | None
    """Decode rate against the baseline arm, geometric mean of the per-prompt ratios at concurrency 1."""
    is_lossless: bool | None
    """All answers equal the baseline's; None: not compared."""
    is_valid: bool
