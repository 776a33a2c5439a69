"""A new run that begins with the weights of another drafter: a checkpoint of ours, or a public one of that layout."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dflashctl_remote.drafter.checkpoint import load_drafter, read_config
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.manifest import sha256_of


@dataclass(frozen=True)
class WarmStart:
    drafter: Drafter
    """In the run's dtype."""
    masters: dict[str, Tensor]
    """The weights as they were read, fp32 on the CPU, under `master/NAME`: what the optimizer's masters begin from."""
    sha256: str
    """Of the folder's model.safetensors."""


def warm_started(config: DrafterConfig, folder: Path, *, device: torch.device, dtype: torch.dtype) -> WarmStart:
    """A drafter of `config` with the weights that lie in `folder`; its manifest, if it has one, is not asked for.

    Raises BadInput for a path that is not absolute, and naming the first setting in which the folder's drafter computes
    something else; ArtifactIncomplete, ArtifactCorrupt.
    """
    if not folder.is_absolute():
        raise BadInput(
            f"train.warm_start must be an absolute path on the host that trains, found {folder}",
            hint="write it from / or from ~/ on",
        )
    refuse_other_drafter(config, read_config(folder), folder)
    drafter = load_drafter(folder, device=torch.device("cpu"), dtype=torch.float32)
    masters = {f"master/{name}": weight.detach() for name, weight in drafter.named_parameters()}
    return WarmStart(drafter.to(device=device, dtype=dtype), masters, sha256_of(folder / "model.safetensors"))


def refuse_other_drafter(config: DrafterConfig, source: DrafterConfig, folder: Path) -> None:
    """Raise BadInput naming the first setting that differs, with both values and what to write in run.yaml."""
    for setting, wanted, found, hint in _compared(config, source):
        if wanted != found:
            raise BadInput(
                f"{folder} cannot warm-start this run: its {setting} is {_shown(found)}, the run's {_shown(wanted)}",
                hint=hint,
            )


def _compared(run: DrafterConfig, source: DrafterConfig) -> tuple[tuple[str, object, object, str], ...]:
    """(setting, the run's, the source's, what to do) in the order in which a reader would look for the cause."""
    other_target = "it was made for another target: train from new weights, or name its target"
    return (
        ("hidden size", run.hidden_size, source.hidden_size, other_target),
        ("vocabulary", run.vocab_size, source.vocab_size, other_target),
        ("number of target layers", run.num_target_layers, source.num_target_layers, other_target),
        (
            "number of taps",
            len(run.tap_layers),
            len(source.tap_layers),
            f"set drafter.num_taps to {len(source.tap_layers)} and drafter.tap_layers to {list(source.tap_layers)}",
        ),
        ("tap layers", run.tap_layers, source.tap_layers, f"set drafter.tap_layers to {list(source.tap_layers)}"),
        *(
            (name.replace("_", " "), getattr(run, name), getattr(source, name), f"set drafter.{name} to it")
            for name in (
                "block_size",
                "num_layers",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "intermediate_size",
                "mask_token_id",
            )
        ),
        (
            "layer pattern",
            run.layer_pattern,
            source.layer_pattern,
            f"set drafter.layer_pattern to {source.layer_pattern}",
        ),
        (
            "sliding window",
            run.sliding_window,
            source.sliding_window,
            f"set drafter.sliding_window_tokens to {source.sliding_window}",
        ),
        ("causality inside a block", _causality(run), _causality(source), "set drafter.is_causal"),
        ("rope theta", run.rope_theta, source.rope_theta, other_target),
        ("rms norm eps", run.rms_norm_eps, source.rms_norm_eps, other_target),
    )


def _causality(config: DrafterConfig) -> tuple[bool, ...]:
    return tuple(config.is_layer_causal(layer) for layer in range(config.num_layers))


def _shown(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
