"""What a benchmark asks of a server: prompts, sampling, load."""

from typing import Any

from pydantic import Field

from dflashctl_remote.spec.base import Spec


class BenchSpec(Spec):
    """`bench` in run.yaml."""

    server: str
    baseline: str | None = None
    """A second server that decodes plainly; None: one like `server`, without its drafter, is started for the time."""
    prompts: str
    """JSONL of rows {"id", "messages"} (or "prompt"), "category" if there is one."""
    num_prompts: int | None = Field(default=None, gt=0)
    """Only the first so many; None: all."""
    max_new_tokens: int = Field(default=128, gt=0)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0: all."""
    seed: int = 0
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """E.g. enable_thinking; it moves acceptance by more than most drafters differ."""
    concurrency: tuple[int, ...] = (1,)
    """Closed loop: so many requests at any time, one row of the table each."""
    rate_per_s: float | None = Field(default=None, gt=0)
    """Open loop instead: requests arrive at random (Poisson) times at this rate, whatever is still running."""
    num_repeats: int = Field(default=1, gt=0)
    num_warmup: int = Field(default=1, ge=0)
    """Requests before the clock starts, to each arm; their tokens count nowhere."""
    request_timeout_s: float = Field(default=600.0, gt=0)
