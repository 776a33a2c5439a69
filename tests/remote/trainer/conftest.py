"""A tiny drafter, an optimizer that has stepped, and the state of a trainer between them."""

from collections.abc import Callable, Iterator

import pytest
import torch

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.train import OptimSpec, TrainSpec
from dflashctl_remote.trainer.checkpoint import TrainerState
from dflashctl_remote.trainer.optim import MasterAdamW


@pytest.fixture
def make_drafter() -> Callable[..., Drafter]:
    def make(dtype: torch.dtype = torch.float32) -> Drafter:
        drafter = Drafter(
            DrafterConfig(
                hidden_size=16,
                num_layers=1,
                num_heads=2,
                num_kv_heads=1,
                head_dim=8,
                intermediate_size=24,
                vocab_size=61,
                rms_norm_eps=1e-6,
                rope_theta=1e4,
                max_position_embeddings=512,
                layer_types=("full_attention",),
                sliding_window=None,
                is_causal=None,
                block_size=4,
                mask_token_id=60,
                tap_layers=(1, 3),
                num_target_layers=6,
            )
        )
        drafter.init_weights(seed=3)
        return drafter.to(dtype)

    return make


@pytest.fixture
def make_optimizer() -> Callable[[Drafter], MasterAdamW]:
    def make(drafter: Drafter) -> MasterAdamW:
        """After two steps on made-up gradients."""
        optimizer = MasterAdamW(drafter, OptimSpec())
        generator = torch.Generator().manual_seed(7)
        for _ in range(2):
            for parameter in drafter.parameters():
                drawn = torch.empty(parameter.shape).normal_(generator=generator)
                parameter.grad = drawn.to(parameter.dtype)
            optimizer.take_gradients(weight_sum=5.0)
            optimizer.step(1e-3)
        return optimizer

    return make


@pytest.fixture
def make_state() -> Callable[..., TrainerState]:
    def make(**changes: object) -> TrainerState:
        return TrainerState.model_validate(
            {
                "step": 2,
                "batch": 4,
                "epoch": 0.5,
                "loss": 3.25,
                "dtype": "float32",
                "target_sha256": "t",
                "dataset_sha256": "d",
                "train": TrainSpec(target="t", dataset="d", num_steps=10),
                **changes,
            }
        )

    return make


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    """The trainer settles torch for its whole process; tests give it back."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(False)
