"""torch.compile for functions of fixed shapes: compiled once a shape, whole, and never quietly left uncompiled."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_MOST_SHAPES = 32


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled at its first call with each combination of shapes, dtypes and needs of gradients.

    Past _MOST_SHAPES of them it raises (torch's FailOnRecompileLimitHit) where torch would go on uncompiled.
    """
    config: Any = torch._dynamo.config
    # Eight, the default, is soon used up: two sorts of layers, training and validation, with gradients and without.
    config.recompile_limit = max(config.recompile_limit, _MOST_SHAPES)
    return torch.compile(function, dynamic=False, fullgraph=True)
