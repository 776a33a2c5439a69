"""Use flash-linear-attention's short convolution in training.

transformers takes fla's delta-rule kernels by itself, but its convolution only from the package
causal-conv1d; without that one a grouped conv1d runs instead.
"""

from __future__ import annotations

from transformers.models.qwen3_5 import modeling_qwen3_5


def use_fla_convolution() -> None:
    """Replace the module's causal_conv1d_fn; raises ImportError where fla is not installed."""
    from fla.modules.causal_conv1d import causal_conv1d

    def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):  # type: ignore[no-untyped-def]
        inputs_BTC = hidden_states.transpose(1, 2).contiguous()
        outputs_BTC, _ = causal_conv1d(inputs_BTC, weight.to(inputs_BTC.dtype), bias, activation=activation)
        return outputs_BTC.transpose(1, 2)

    modeling_qwen3_5.causal_conv1d_fn = causal_conv1d_fn
