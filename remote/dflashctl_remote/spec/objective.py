"""The objective of training: which loss, weighed how, with what noise. docs/losses.md says what each is for.

No torch here: the code of a loss is in its folder below `losses/`, found by its name in `losses/registry.py`.
"""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dflashctl_remote.spec.base import Spec

LossName = Literal["hard_ce", "soft_kl"]
WeightingName = Literal["decay", "d_pace", "streak"]
NoiseName = Literal["gaussian", "uniform"]


class ObjectiveSpec(Spec):
    """A parameter of a loss or weighting that is not chosen is an error, never ignored."""

    labels: Literal["target", "data"] = "target"
    """target: arg-max of the target's final hidden state at p+k-1; data: the token of the text at p+k."""
    loss: LossName = "hard_ce"
    """hard_ce: cross-entropy against the label; soft_kl: divergence from the target's whole distribution."""
    temperature: float | None = Field(default=None, gt=0)
    """Of soft_kl, on both distributions; None: 1."""
    weighting: WeightingName = "decay"
    """decay: by slot; d_pace: by the drafter's own confidence; streak: more while the block is right so far."""
    gamma: float | None = Field(default=None, gt=0)
    """Slot weight exp(-(k-1)/gamma) of decay and streak; None: 7, 5, 4 for blocks of 16, 10, 8."""
    d_pace_alpha: float | None = Field(default=None, gt=0, le=1)
    """Smoothing of d_pace; None: 0.5. Small values starve later slots, 1 ignores the confidence."""
    streak_alpha: float | None = Field(default=None, ge=0)
    """Of streak: so much more weighs a slot while all before it are right; None: 1."""
    confidence_weight: float = Field(default=0.0, ge=0)
    """Of the auxiliary head that learns whether a block is right up to a slot; 0: there is no such head."""
    context_noise: NoiseName = "gaussian"
    """Kind of the noise on the tapped states that the drafter sees; labels stay clean."""
    context_noise_std: float = Field(default=0.0, ge=0)
    """Its standard deviation, relative to the RMS of a token's state at one tap; 0: no noise."""
    context_noise_end_std: float | None = Field(default=None, ge=0)
    """Reached at the last batch by half a cosine; None: `context_noise_std` to the end."""
    loss_chunk_rows: int = Field(default=2048, gt=0)
    """Rows of logits that exist at a time."""
    anchors_per_group: int | None = Field(default=None, gt=0)
    """Blocks that go through the drafter together: memory, not results. None: as many as measured best."""

    @model_validator(mode="after")
    def _parameters_go_with_what_is_chosen(self) -> Self:
        for name, belongs, chosen in (
            ("temperature", "loss: soft_kl", self.loss == "soft_kl"),
            ("gamma", "weighting: decay or streak", self.weighting in ("decay", "streak")),
            ("d_pace_alpha", "weighting: d_pace", self.weighting == "d_pace"),
            ("streak_alpha", "weighting: streak", self.weighting == "streak"),
            ("context_noise_end_std", "a context_noise_std above 0, where it begins", self.context_noise_std > 0),
        ):
            if getattr(self, name) is not None and not chosen:
                raise _refused(f"{name} is set and belongs to {belongs}: choose that, or leave {name} out")
        if self.context_noise != "gaussian" and self.context_noise_std == 0:
            raise _refused(f"context_noise: {self.context_noise} adds nothing while context_noise_std is 0: set both")
        if self.loss == "soft_kl" and self.labels == "data":
            raise _refused("loss: soft_kl learns what the target says, so labels must be target, not data")
        return self


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("objective", "{sentence}", {"sentence": sentence})
