"""The parity gate's verdict: whether a drafter proposes when it is served what it proposes when it is trained."""

from typing import Literal

from dflashctl_remote.spec.base import Spec

Cause = Literal[
    "tap offset",
    "tap count",
    "label layer",
    "positions",
    "mask",
    "causal flag",
    "window",
    "chat template",
    "unknown",
]


class Parity(Spec):
    verdict: Literal["agree", "differ", "trained otherwise", "not checked"]
    """agree: the same proposals at the same positions, labels that are the target's own text, prompts that end alike.

    trained otherwise: both ways agree, and the drafter meets the target's text better with its inputs made another way.
    """
    num_slots: int = 0
    """Proposed tokens that were compared, free-running against teacher-forced."""
    num_slots_equal: int = 0
    """Ties within rounding included: the two ways sum in another order."""
    num_labels: int = 0
    num_labels_equal: int = 0
    """Labels of the training path that are the token which the target wrote there itself."""
    cause: Cause | None = None
    """The likely one; None where nothing is wrong."""
    says: str = ""
    """The cause in a sentence and how much agrees under it; or why nothing was checked."""

    @property
    def is_passed(self) -> bool:
        return self.verdict == "agree"
