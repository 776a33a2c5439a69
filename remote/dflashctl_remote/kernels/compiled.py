"""torch.compile for functions of fixed shapes: compiled once a shape, whole, and never quietly left uncompiled."""

import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

MOST_SHAPES = 64
"""Eight, torch's default, is soon used up: two sorts of layers, training and validation, several devices."""

_thread = threading.local()


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled at its first call with each combination of shapes, dtypes, devices and gradients needed.

    Past MOST_SHAPES of them a call raises torch's FailOnRecompileLimitHit, where torch alone would go on uncompiled.
    """
    kernel = torch.compile(function, dynamic=False, fullgraph=True)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        # torch keeps its settings by thread from 2.13 on: each thread that compiles must raise the limit for itself.
        if not getattr(_thread, "is_prepared", False):
            import torch._dynamo.config

            config: Any = torch._dynamo.config
            config.recompile_limit = max(config.recompile_limit, MOST_SHAPES)
            _thread.is_prepared = True
        return kernel(*arguments, **named)

    return call
