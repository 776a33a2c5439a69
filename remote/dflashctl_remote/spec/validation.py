"""Validation during a run: what is held out, how often it is measured on, and which checkpoints stay because of it."""

from typing import Any, Protocol

from pydantic import Field

from dflashctl_remote.spec.base import Spec


class ValidationSpec(Spec):
    every_steps: int | None = Field(default=None, gt=0)
    """Steps between validations, and one after the last step, whatever they cost. None: before every checkpoint while
    validations take no more than `max_time_share` of the run's time, and after the last step."""
    max_time_share: float = Field(default=0.02, gt=0, le=1)
    """Only where every_steps is None."""
    dataset: str | None = None
    """Folder of held-out documents, written by `data tokenize`; None: a share of the training dataset."""
    held_out_share: float = Field(default=0.02, ge=0, lt=1)
    """Of the training dataset's documents, never trained on; 0: nothing is held out, and nothing validated."""
    num_documents: int = Field(default=64, gt=0)
    """At most so many are held out. Others of the same conversation or prompt are not trained on either."""
    num_rows: int = Field(default=4, gt=0)
    """Packed rows of held-out documents, at most, for the teacher-forced loss and accuracies."""
    num_prompts: int = Field(default=16, gt=0)
    """Held-out prompts, at most, that are answered free-running."""
    max_new_tokens: int = Field(default=128, gt=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the split and of the anchors: the same at every validation."""


class KeepPolicy(Protocol):
    """Which checkpoints stay. Step 0 always does, the newest too."""

    @property
    def keep(self) -> int:
        """The newest so many."""

    @property
    def keep_best(self) -> int:
        """So many of the highest tau measured in a validation at their step."""

    @property
    def every_hours(self) -> float | None:
        """One in so many hours, for as long as the run's folder is there; None: none for their age."""


def about_tau(tau: float | None, tau_low: float | None, tau_high: float | None, num_prompts: int) -> dict[str, Any]:
    """What a checkpoint's manifest says of the validation at its step; nothing where none was measured."""
    if tau is None:
        return {}
    return {"tau": tau, "tau_low": tau_low, "tau_high": tau_high, "tau_num_prompts": num_prompts}
