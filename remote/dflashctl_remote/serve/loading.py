"""What is served: target and drafter, checked against one another before any weights are read, and then loaded."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dflashctl_remote.data.chat import ChatTokenizer
from dflashctl_remote.drafter.checkpoint import load_drafter, read_config
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.serve.generation import DraftPlan, Generation
from dflashctl_remote.serve.sampling import Sampler
from dflashctl_remote.spec.bundle import bundle_sha
from dflashctl_remote.spec.drafter import DrafterConfig, TargetShape, check_fit
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import Event, Notice
from dflashctl_remote.spec.manifest import verify
from dflashctl_remote.spec.serve import ServeSpec
from dflashctl_remote.target.load import Target, load_target, read_shape

ABOUT = "the reference engine of dflashctl: for correctness, small machines and tests, not for speed"


@dataclass(frozen=True)
class ServedModel:
    name: str
    target: Target
    drafter: Drafter | None
    num_draft_tokens: int
    """K; 0 without a drafter."""
    max_length_tokens: int
    chat: ChatTokenizer | None
    """None: the tokenizer has no chat template."""
    decode: Callable[[list[int]], str]
    """Text of tokens without special ones. Only for the thread that decodes."""
    about: dict[str, Any]

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset(self.target.shape.eos_token_ids)

    def generation(self, prompt_ids: Sequence[int], sampler: Sampler) -> Generation:
        """An answer that begins."""
        plan: DraftPlan | None = None
        if self.drafter is not None:
            session = DraftSession(self.drafter, self.target)
            plan = DraftPlan(session, self.drafter.config.tap_layers, self.num_draft_tokens)
        return Generation(self.target, plan, prompt_ids, sampler, max_length_tokens=self.max_length_tokens)


def load_model(spec: ServeSpec, emit: Callable[[Event], None]) -> ServedModel:
    """Raises BadInput (target, fit, sizes), ArtifactIncomplete and ArtifactCorrupt (checkpoint)."""
    shape = read_shape(spec.target)
    config = _checked_drafter(spec, shape)
    num_draft_tokens = _num_draft_tokens(spec, config, emit)
    max_length_tokens = _max_length_tokens(spec, shape)
    target = load_target(spec.target, device=spec.device, dtype=spec.dtype)
    drafter: Drafter | None = None
    if spec.drafter is not None:
        drafter = load_drafter(Path(spec.drafter), device=target.device, dtype=target.dtype).eval()
    chat = ChatTokenizer.open(Path(spec.target)) if target.tokenizer.chat_template else None
    if chat is None:
        emit(Notice(message=f"the tokenizer in {spec.target} has no chat template: /v1/chat/completions is refused"))
    about = {
        "engine": "reference",
        "about": ABOUT,
        "bundle_sha": bundle_sha(),
        "target": spec.target,
        "drafter": spec.drafter,
        "block_size": config.block_size if config else None,
        "num_draft_tokens": num_draft_tokens,
        "max_length_tokens": max_length_tokens,
        "max_running": spec.max_running,
        "device": torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else "cpu",
        "dtype": str(target.dtype).removeprefix("torch."),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    return ServedModel(
        name=spec.served_name,
        target=target,
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        max_length_tokens=max_length_tokens,
        chat=chat,
        decode=_decoder(target.tokenizer),
        about=about,
    )


def _checked_drafter(spec: ServeSpec, shape: TargetShape) -> DrafterConfig | None:
    if spec.drafter is None:
        return None
    verify(Path(spec.drafter), "checkpoint")
    config = read_config(Path(spec.drafter))
    check_fit(config, shape)
    return config


def _num_draft_tokens(spec: ServeSpec, config: DrafterConfig | None, emit: Callable[[Event], None]) -> int:
    if config is None:
        if spec.num_draft_tokens is not None:
            emit(Notice(message=f"no drafter, so num_draft_tokens {spec.num_draft_tokens} means nothing"))
        return 0
    most = config.block_size - 1
    if spec.num_draft_tokens is not None and spec.num_draft_tokens > most:
        raise BadInput(
            f"num_draft_tokens is {spec.num_draft_tokens}, and the drafter was trained on blocks of "
            f"{config.block_size}, the anchor included",
            hint=f"set num_draft_tokens to {most} or less, or leave it out",
        )
    return spec.num_draft_tokens or most


def _max_length_tokens(spec: ServeSpec, shape: TargetShape) -> int:
    if spec.max_length_tokens is not None and spec.max_length_tokens > shape.max_position_embeddings:
        raise BadInput(
            f"max_length_tokens is {spec.max_length_tokens}, and the target takes {shape.max_position_embeddings}",
            hint="lower it, or leave it out",
        )
    return spec.max_length_tokens or shape.max_position_embeddings


def _decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    # A copy: prompts are tokenised in another thread, and a tokenizer may not be used by two at once.
    own = copy.deepcopy(tokenizer)

    def decode(ids: list[int]) -> str:
        return own.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    return decode
