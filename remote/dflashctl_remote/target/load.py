"""The frozen target: any local Hugging Face causal LM, loaded whole onto one device.

Nothing is fetched, and a model whose embedding or head does more than look up and multiply is refused, because a
drafter shares exactly these two weights.
"""

import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from dflashctl_remote.data.chat import load_tokenizer
from dflashctl_remote.spec.drafter import TargetShape
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.manifest import sha256_of
from dflashctl_remote.spec.train import Device, Dtype
from dflashctl_remote.target.families import why_not_walkable
from dflashctl_remote.target.packed import Walk, packed_forward
from dflashctl_remote.target.taps import Row, TargetStates, batch_states, packed_states

_CONFIG_FILES = ("config.json", "generation_config.json")
_NUM_SAMPLES = 64
_SAMPLE_BYTES = 1 << 16


class Target:
    """A causal LM in eval mode without gradients, and what a drafter must know of it."""

    def __init__(self, model: Any, shape: TargetShape, tokenizer: Any = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.shape = shape
        self.tokenizer = tokenizer
        self.decoder = model.get_decoder()
        self.head_VE: Tensor = model.get_output_embeddings().weight.detach()
        self.device = self.head_VE.device
        self.dtype = self.head_VE.dtype
        self._embedding = model.get_input_embeddings()
        self._why_padded = why_not_walkable(self.decoder)
        self._walk = Walk.of(self.decoder, is_compiled=self.device.type == "cuda") if self._why_padded is None else None

    @property
    def how_packed(self) -> str:
        """How states() runs, for a notice: in one pass, or as padded sequences and why."""
        if self._walk is not None:
            return self._walk.describe()
        return f"each document is its own padded sequence through transformers: {self._why_padded}"

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """The target's own embedding, with its scaling: [...] -> [..., E]."""
        return self._embedding(ids)

    @torch.no_grad()
    def logits(self, final: Tensor) -> Tensor:
        """Head applied to states after the final norm: [..., E] -> [..., V]."""
        return F.linear(final, self.head_VE)

    @torch.no_grad()
    def states(self, row: Row, tap_layers: tuple[int, ...]) -> TargetStates:
        """Taps and final states of a packed row, each document as if it were alone; zeros at padding."""
        if self._walk is None:
            return packed_states(self.decoder, row, tap_layers, self.device)
        return packed_forward(self._walk, row, tap_layers, self.device)


def load_target(path: str | Path, *, device: Device | torch.device, dtype: Dtype | torch.dtype) -> Target:
    """Load the model, its tokenizer and its shape from a folder; auto dtype: bfloat16 on a GPU, float32 on a CPU.

    Raises BadInput: folder, config, weights or tokenizer missing, not a causal LM, a head with bias, embeddings or
    logits that are scaled or capped, fla on a CPU.
    """
    folder = Path(path)
    text_config = _read_config(folder)
    on_device = resolve_device(device)
    _refuse_fla_on_cpu(text_config, on_device)
    tokenizer = load_tokenizer(folder)
    shape = _shape_of(folder, text_config, tokenizer)
    target = Target(_load_model(folder, on_device, resolve_dtype(dtype, on_device)), shape, tokenizer)
    _refuse_extras(folder, target)
    return target


def read_shape(path: str | Path) -> TargetShape:
    """The shape alone, without loading weights. Raises BadInput as load_target does."""
    folder = Path(path)
    return _shape_of(folder, _read_config(folder), load_tokenizer(folder))


def target_sha256(path: str | Path) -> str:
    """Names a target by its configs and its weights' names, sizes and samples; hashing 50 GB takes minutes."""
    folder = Path(path)
    # The generation config says which tokens end an answer.
    configs = [sha256_of(file) for name in _CONFIG_FILES if (file := folder / name).is_file()]
    weights = [(file.name, file.stat().st_size, _sample_sha256(file)) for file in sorted(folder.glob("*.safetensors"))]
    return hashlib.sha256(json.dumps([configs, weights]).encode()).hexdigest()


def resolve_device(device: Device | torch.device) -> torch.device:
    """auto: the GPU if there is one. Raises BadInput if cuda is asked for and there is none."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise BadInput("device cuda was asked for, and torch sees no GPU here", hint="use device cpu or auto")
    return torch.device(device)


def resolve_dtype(dtype: Dtype | torch.dtype, device: torch.device) -> torch.dtype:
    """auto: bfloat16 on a GPU, float32 on a CPU."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]


def _sample_sha256(file: Path) -> str:
    """Of pieces spread evenly over the file: any training moves all weights, and leaves every size as it was."""
    size = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as content:
        for piece in range(_NUM_SAMPLES):
            content.seek(piece * max(0, size - _SAMPLE_BYTES) // (_NUM_SAMPLES - 1))
            digest.update(content.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _read_config(folder: Path) -> Any:
    """The text model's part of config.json."""
    if not folder.is_dir():
        raise BadInput(f"no target at {folder}: there is no such folder", hint="give a local folder, not a hub name")
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} has no config.json, so it is not a Hugging Face model folder")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"transformers cannot read {folder}/config.json: {_first_line(error)}") from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise BadInput(f"{folder} holds a {config.model_type} model, which is not a causal language model")
    return config.get_text_config(decoder=True)


def _refuse_fla_on_cpu(text_config: Any, device: torch.device) -> None:
    is_hybrid = "linear_attention" in (getattr(text_config, "layer_types", None) or ())
    if is_hybrid and device.type == "cpu" and find_spec("fla") is not None:
        raise BadInput(
            "flash-linear-attention is installed, and with it transformers cannot run a Gated DeltaNet target on a CPU",
            hint="pip uninstall flash-linear-attention fla-core in this environment, or use a GPU",
        )


def _load_model(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    transformers_logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"the weights in {folder} cannot be loaded: {_first_line(error)}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadInput(
            f"{folder} lacks {len(missing)} tensors of a {type(model).__name__}, among them {missing[0]}",
            hint="is it the folder of another kind of model, or an unfinished copy?",
        )
    return model.to(device)


def _refuse_extras(folder: Path, target: Target) -> None:
    """Refuse what a drafter cannot share: a head bias, scaled embeddings, scaled or capped logits."""
    name = type(target.model).__name__
    if getattr(target.model.get_output_embeddings(), "bias", None) is not None:
        raise BadInput(f"the head of {folder} has a bias, and the DFlash format has no place for one")
    if not hasattr(target.decoder, "layers"):
        raise BadInput(f"{folder} holds a {name}, in which no list of decoder layers was found to tap")
    cap = getattr(target.model.config.get_text_config(decoder=True), "final_logit_softcapping", None)
    if cap is not None:
        raise BadInput(f"{folder} caps its logits (final_logit_softcapping {cap}), which is not supported yet")
    ids_BT = torch.tensor([[0, 1]], device=target.device)
    first_input_BTE, final_BTE, logits_BTV = _run(target, ids_BT)
    if not _is_close(first_input_BTE, target.embed(ids_BT)):
        raise BadInput(f"{folder} scales its embeddings outside the embedding layer, which is not supported yet")
    if not _is_close(logits_BTV, target.logits(final_BTE)):
        raise BadInput(f"{folder} scales or changes its logits after the head, which is not supported yet")


@torch.no_grad()
def _run(target: Target, ids_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Input of the first decoder layer, state after the final norm, logits: shows scaling by whatever name."""
    seen: list[Tensor] = []

    def keep(module: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        seen.append(arguments[0] if arguments else keywords["hidden_states"])

    handle = target.decoder.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    _, final_BTE = batch_states(target.decoder, ids_BT, (), use_cache=False)
    handle.remove()
    return seen[0], final_BTE, target.model(input_ids=ids_BT, use_cache=False).logits


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding: largest difference against largest value."""
    difference = (one.float() - other.float()).abs().max()
    return bool(difference <= 0.01 * other.float().abs().max())


def _shape_of(folder: Path, config: Any, tokenizer: Any) -> TargetShape:
    def need(name: str) -> Any:
        value = getattr(config, name, None)
        if value is None:
            raise BadInput(f"{folder}/config.json has no {name}, which a drafter takes from its target")
        return value

    return TargetShape(
        num_layers=need("num_hidden_layers"),
        hidden_size=need("hidden_size"),
        intermediate_size=need("intermediate_size"),
        vocab_size=need("vocab_size"),
        rms_norm_eps=need("rms_norm_eps"),
        rope_theta=_rope_theta(folder, config),
        max_position_embeddings=need("max_position_embeddings"),
        mask_token_id=tokenizer.mask_token_id,
        bos_token_id=_first(config.bos_token_id, tokenizer.bos_token_id),
        eos_token_ids=_eos_token_ids(folder, config, tokenizer),
        pad_token_id=_first(config.pad_token_id, tokenizer.pad_token_id),
    )


def _rope_theta(folder: Path, config: Any) -> float:
    """From rope_parameters, flat or by layer type (then of the full-attention layers), or the older rope_theta."""
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    theta = rope.get("rope_theta", getattr(config, "rope_theta", None))
    if theta is None:
        raise BadInput(f"{folder}/config.json has no rope_theta, which a drafter takes from its target")
    return float(theta)


def _eos_token_ids(folder: Path, config: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends an answer: of generation_config.json, config.json and the tokenizer, in this order."""
    found: list[int] = []
    sources = [config.eos_token_id, tokenizer.eos_token_id]
    if (folder / "generation_config.json").is_file():
        sources.insert(0, GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)
    for source in sources:
        found += source if isinstance(source, list) else [] if source is None else [source]
    return tuple(dict.fromkeys(found))


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
