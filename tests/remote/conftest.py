"""Tiny random targets of both kinds, built in memory; the hybrid forgets slowly, so that its state matters.

And all that a tiny training run on it needs, as folders.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflashctl_remote.data.chat import tokenizer_sha256
from dflashctl_remote.data.shards import Document, ShardWriter
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.drafter import DrafterSpec, TargetShape
from dflashctl_remote.spec.manifest import write_manifest
from dflashctl_remote.spec.train import BatchSpec, CheckpointSpec, OptimSpec, RunRecord, TrainSpec
from dflashctl_remote.target.load import Target

VOCAB = 300


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """These models are too small to share out; threads that wait for one another cost more than they compute."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def attention_target() -> Target:
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
    )
    return _target(Qwen3ForCausalLM(config))


@pytest.fixture(scope="session")
def hybrid_target() -> Target:
    torch.manual_seed(2)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )
    model = Qwen3_5ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            # The default draws decays that forget within a token and hide a wrong state.
            torch.nn.init.constant_(parameter, -3.0)
    return _target(model)


@pytest.fixture(params=["attention", "hybrid"])
def target(request: pytest.FixtureRequest) -> Target:
    """Both kinds, one after the other."""
    return request.getfixturevalue(f"{request.param}_target")


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


def _target(model: PreTrainedModel) -> Target:
    config = model.config
    shape = TargetShape(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        mask_token_id=3,
        bos_token_id=None,
        eos_token_ids=(2,),
        pad_token_id=0,
    )
    return Target(model, shape)
