"""A tiny drafter, an optimizer that has stepped, the state of a trainer between them; and a whole tiny run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from dflashctl_remote.data.chat import tokenizer_sha256
from dflashctl_remote.data.shards import Document, ShardWriter
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.drafter import DrafterConfig, DrafterSpec
from dflashctl_remote.spec.manifest import write_manifest
from dflashctl_remote.spec.train import BatchSpec, CheckpointSpec, OptimSpec, RunRecord, TrainSpec
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


@pytest.fixture(scope="session")
def target_folder(hybrid_target, tmp_path_factory) -> Path:
    """The tiny hybrid target as a Hugging Face folder, with a tokenizer of made-up words."""
    folder = tmp_path_factory.mktemp("target")
    hybrid_target.model.save_pretrained(folder)
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<mask>": 3} | {f"w{i}": i for i in range(4, 300)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w4")),
        pad_token="<pad>",
        eos_token="<eos>",
        mask_token="<mask>",
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def dataset_folder(target_folder, tmp_path_factory) -> Path:
    """24 documents of 20 to 60 tokens; the first 6 of each are the prompt."""
    folder = tmp_path_factory.mktemp("dataset")
    generator = np.random.default_rng(4)
    with ShardWriter(folder) as writer:
        for index in range(24):
            length = int(generator.integers(20, 61))
            ids = generator.integers(4, 300, length)
            writer.add(Document(ids, np.arange(length) >= 6, f"doc-{index}"))
    info = DatasetInfo(
        num_documents=writer.num_documents,
        num_tokens=writer.num_tokens,
        num_supervised_tokens=writer.num_supervised,
        num_skipped_rows=0,
        num_truncated=0,
        max_document_tokens=writer.max_document_tokens,
        max_length_tokens=64,
        target=str(target_folder),
        tokenizer_sha256=tokenizer_sha256(target_folder),
        template_sha256="",
        input_sha256="",
    )
    write_manifest(folder, "dataset", bundle_sha="b", about=info.model_dump())
    return folder


@pytest.fixture
def make_record(target_folder, dataset_folder) -> Callable[..., RunRecord]:
    def make(**changes: Any) -> RunRecord:
        """7 steps of 2 batches, checkpoints after 3 and 6, of a drafter of one layer."""
        train: dict[str, Any] = {
            "target": str(target_folder),
            "dataset": str(dataset_folder),
            "num_steps": 7,
            "drafter": DrafterSpec(
                num_layers=1,
                num_heads=4,
                num_kv_heads=2,
                head_dim=16,
                intermediate_size=64,
                block_size=4,
                tap_layers=(0, 2),
            ),
            "optim": OptimSpec(accumulation=2),
            "batch": BatchSpec(tokens_per_batch=128, max_length_tokens=64),
            "checkpoint": CheckpointSpec(every_steps=3),
            "seed": 5,
            "device": "cpu",
            "num_threads": 1,
        }
        return RunRecord(run_id="r", created_at_s=0.0, bundle_sha="b", train=TrainSpec(**train | changes))

    return make


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    """The trainer settles torch for its whole process; tests give it back."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(False)
