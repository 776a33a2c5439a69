"""Where a training run's figures go beside events.jsonl, which is always written and is the run's only account."""

from typing import Literal

from pydantic import Field

from dflashctl_remote.spec.base import Spec

WandbMode = Literal["offline", "online"]


class SinksSpec(Spec):
    tensorboard: bool = False
    """Event files in the run's folder `tensorboard`; needs the extra of that name in the run's environment."""
    wandb: WandbMode | None = None
    """offline: files in the run's folder `wandb`, for `wandb sync` later; online: sent while the run goes on, with the
    key that wandb finds by itself. Needs the extra `wandb`."""
    wandb_project: str = Field(default="dflashctl", min_length=1)
