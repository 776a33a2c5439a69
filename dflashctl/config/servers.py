"""A server as its operator describes it, whatever engine it runs on."""

from pydantic import Field

from dflashctl_remote.spec.base import Spec


class ServerSpec(Spec):
    """A server as its operator names it: `deploy` in run.yaml, `servers` in hosts.yaml."""

    name: str = "default"
    host: str = "local"
    engine: str = "reference"
    target: str
    drafter: str | None = None
    """RUN, RUN@STEP, RUN@latest or a folder; None: plain decoding."""
    port: int = Field(default=8100, ge=0, le=65535)
    """0: any free one, chosen at the start."""
    served_name: str | None = None
    """What requests name as their model; None: the server's name."""
    num_draft_tokens: int | None = Field(default=None, gt=0)
    """K, the anchor not counted, on every engine; None: the drafter's block size - 1."""
    max_running: int = Field(default=4, gt=0)
    max_length_tokens: int | None = Field(default=None, gt=0)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """The engine's own, by its own names."""
