"""The arms of the drafter's benchmark: each gives, for a case, named steps that end with cleared gradients."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from drafter_case import Case, drawn, fill
from torch import Tensor

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.scored import Scored, scored_slots
from dflashctl_remote.drafter.step import drafter_step
from dflashctl_remote.spec.drafter import DrafterConfig, default_gamma
from dflashctl_remote.spec.objective import ObjectiveSpec

Steps = Iterator[tuple[str, bool, Callable[[], Tensor]]]
"""(name, whether the label product is inside, step); a step gives the loss sum over the number of scored slots."""


@dataclass(frozen=True)
class Batch:
    row: Any
    anchors: Any
    taps_TF: Tensor
    scored: Scored


class Ours:
    """`drafter_step` with bf16 weights and gradients."""

    def __init__(self, config: DrafterConfig, device: torch.device, options: Namespace) -> None:
        self._dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        with torch.device(device):
            self._drafter = Drafter(config).to(self._dtype)
        fill(self._drafter)
        shape = (config.vocab_size, config.hidden_size)
        self._embedding_VE = drawn("embed_tokens.weight", shape, 0.02, device, self._dtype)
        self.head_VE = drawn("head", shape, 0.02, device, self._dtype)
        chosen = {"anchors_per_group": options.group, "loss_chunk_rows": options.chunk_rows}
        self._objective = ObjectiveSpec(**{name: value for name, value in chosen.items() if value})
        self._attention: Any = "eager" if device.type == "cpu" else options.attention
        self._trims = options.trims
        self.notes = f"attention by {self._attention}" + ("" if options.trims is None else f", trims {options.trims}")

    def embed(self, ids: Tensor) -> Tensor:
        return self._embedding_VE[ids]

    def steps(self, case: Case) -> Steps:
        given = self._labels(case)
        yield "ours", False, partial(self._step, case, lambda: given)
        yield "ours, label product inside", True, partial(self._step, case, partial(self._labels, case))

    def _labels(self, case: Case) -> Scored:
        size = case.config.block_size
        return scored_slots(self, case.row, case.final_TE, case.anchors, self._objective, size)

    def _step(self, case: Case, labels: Callable[[], Scored]) -> Tensor:
        batch = Batch(case.row, case.anchors, case.taps_TF, labels())
        sums = drafter_step(self._drafter, self, batch, self._objective, attention=self._attention, trims=self._trims)
        for parameter in self._drafter.parameters():
            parameter.grad = None
        return sums.packed[0] / case.num_scored


class Speculators:
    """The package's DFlashDraftModel with its fused cross-entropy, each layer compiled.

    Its own compilation of the whole forward pass fails inside dynamo on torch 2.11 with transformers 5.17, so that the
    decorated function itself is put back, and layers are compiled one by one, as is flex_attention.
    """

    def __init__(self, config: DrafterConfig, device: torch.device, options: Namespace) -> None:
        from speculators.losses import resolve_loss_config
        from speculators.models import attention
        from speculators.models.dflash import DFlashDraftModel, core

        compiled = DFlashDraftModel.forward
        DFlashDraftModel.forward = getattr(compiled, "_torchdynamo_orig_callable", compiled)
        is_cuda = device.type == "cuda"
        self._core = core
        notes = []
        if is_cuda:
            attention.flex_attention = torch.compile(attention.flex_attention)
        core._compiled_create_block_mask = self._mask_maker(core, notes) if is_cuda else None
        self._loss = resolve_loss_config("ce", "fused" if is_cuda else "eager")
        dtype = torch.bfloat16 if is_cuda else torch.float32
        with torch.device(device):
            self._model = DFlashDraftModel(_speculators_config(config, is_cuda)).to(dtype)
        for name, parameter in self._model.named_parameters():
            if any(part in name for part in ("lm_head", "embed", "verifier")):
                parameter.requires_grad_(False)
        fill(self._model)
        if options.compile and is_cuda:
            for layer in self._model.layers:
                layer.compile()
            notes.append("each layer compiled")
        self.notes = "; ".join(notes)

    def steps(self, case: Case) -> Steps:
        device = case.taps_TF.device
        at = torch.from_numpy(case.anchors.indices_N).to(device)
        is_valid = torch.ones_like(at, dtype=torch.bool)
        self._core.select_anchors = lambda *_: (at, is_valid)

        def row(values: Any) -> Tensor:
            return torch.from_numpy(values).to(device)[None]

        inputs = {
            "hidden_states": case.taps_TF[None],
            "input_ids": row(case.row.input_ids_T),
            "loss_mask": row(case.row.is_supervised_T.astype("int64")),
            "verifier_last_hidden_states": case.final_TE[None],
            "document_ids": row(case.row.document_ids_T),
            "position_ids": row(case.row.positions_T),
            "loss_config": self._loss,
            "gamma": float(default_gamma(case.config.block_size)),
            "max_anchors": len(case.anchors),
        }
        yield "speculators", True, partial(self._step, inputs)

    def _step(self, inputs: dict[str, Any]) -> Tensor:
        _, loss, _ = self._model(**inputs)
        loss.backward()
        for parameter in self._model.parameters():
            parameter.grad = None
        return loss.detach()

    def _mask_maker(self, core: Any, notes: list[str]) -> Callable[..., Any]:
        """Its compiled mask where dynamo bears it, else the plain one."""
        plain = core.create_block_mask
        shipped = core._compiled_create_block_mask
        state = {"use": shipped}

        def make(*args: Any, **kwargs: Any) -> Any:
            try:
                return state["use"](*args, **kwargs)
            except (RuntimeError, AssertionError) as error:
                if state["use"] is plain:
                    raise
                notes.append(f"block mask not compiled ({type(error).__name__})")
                state["use"] = plain
                return plain(*args, **kwargs)

        return make


ARMS: dict[str, Callable[..., Any]] = {"ours": Ours, "speculators": Speculators}


def _speculators_config(config: DrafterConfig, is_cuda: bool) -> Any:
    from speculators.models.dflash import DFlashSpeculatorConfig
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

    qwen3 = Qwen3Config(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        head_dim=config.head_dim,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        max_position_embeddings=config.max_position_embeddings,
        layer_types=list(config.layer_types),
        use_sliding_window=False,
        tie_word_embeddings=False,
    )
    qwen3._attn_implementation = "simple_flex_attention" if is_cuda else "eager"
    return DFlashSpeculatorConfig(
        transformer_layer_config=qwen3,
        draft_vocab_size=config.vocab_size,
        block_size=config.block_size,
        aux_hidden_state_layer_ids=[tap + 1 for tap in config.tap_layers],
        mask_token_id=config.mask_token_id,
    )
