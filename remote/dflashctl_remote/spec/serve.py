"""The job `serve`: the reference engine, an OpenAI-compatible server for one target and, perhaps, one drafter."""

from pydantic import Field

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.train import Device, Dtype


class ServeSpec(Spec):
    target: str
    drafter: str | None = None
    """Checkpoint folder in the z-lab layout, with manifest; None: plain decoding."""
    served_name: str
    """What requests must name as their `model`."""
    address: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)
    """0: any free one; the `serving` event says which."""
    num_draft_tokens: int | None = Field(default=None, gt=0)
    """K, the anchor not counted; None: the drafter's block size - 1. Tau is at most K + 1."""
    max_running: int = Field(default=4, gt=0)
    """Requests decoded at once, step by step in turn; the others wait."""
    max_waiting: int = Field(default=64, ge=0)
    """Beyond these a request is refused (503)."""
    max_length_tokens: int | None = Field(default=None, gt=0)
    """Prompt and answer together; None: the target's max_position_embeddings."""
    device: Device = "auto"
    dtype: Dtype = "auto"
    num_threads: int | None = Field(default=None, gt=0)
