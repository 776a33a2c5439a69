import importlib.machinery
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
)

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.target.load import load_target, read_shape, resolve_device, target_sha256

DEMO_TARGET = Path(__file__).parents[3] / "dflashctl" / "assets" / "demo_target"
SMALL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
}

Save = Callable[[PreTrainedModel], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """The model as a folder, with the embedded target's tokenizer."""

    def write(model: PreTrainedModel) -> Path:
        folder = tmp_path / "model"
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO_TARGET / name, folder)
        return folder

    return write


def load(folder: Path) -> Any:
    return load_target(folder, device="cpu", dtype="auto")


def test_the_embedded_target_loads_frozen_in_float32_on_a_cpu() -> None:
    target = load(DEMO_TARGET)
    assert target.dtype == torch.float32
    assert not target.model.training
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    assert target.model.config._attn_implementation == "sdpa"
    assert target.tokenizer.mask_token_id == target.shape.mask_token_id


def test_the_shape_is_read_from_config_and_tokenizer() -> None:
    shape = read_shape(DEMO_TARGET)
    config = json.loads((DEMO_TARGET / "config.json").read_text())
    assert (shape.num_layers, shape.hidden_size, shape.vocab_size) == (
        config["num_hidden_layers"],
        config["hidden_size"],
        config["vocab_size"],
    )
    assert shape.rope_theta == config["rope_parameters"]["rope_theta"]
    assert shape.mask_token_id not in (None, shape.pad_token_id, *shape.eos_token_ids)


def test_bfloat16_can_be_asked_for() -> None:
    assert load_target(DEMO_TARGET, device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_embedding_and_head_are_the_targets_own() -> None:
    target = load(DEMO_TARGET)
    ids_BT = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        output = target.model(input_ids=ids_BT, output_hidden_states=True)
    assert torch.equal(target.embed(ids_BT), output.hidden_states[0])
    assert torch.allclose(target.logits(output.hidden_states[-1]), output.logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(**SMALL, rope_theta=5e5)),
        (Qwen3ForCausalLM, Qwen3Config(**SMALL, rope_theta=5e5)),
        (
            Qwen3_5ForCausalLM,
            Qwen3_5TextConfig(
                **SMALL,
                layer_types=["linear_attention", "full_attention"],
                linear_key_head_dim=16,
                linear_value_head_dim=16,
                linear_num_key_heads=1,
                linear_num_value_heads=2,
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 5e5,
                    "partial_rotary_factor": 0.5,
                    "mrope_section": [2, 1, 1],
                },
            ),
        ),
        (
            Qwen3NextForCausalLM,
            Qwen3NextConfig(
                **SMALL,
                layer_types=["linear_attention", "full_attention"],
                linear_key_head_dim=16,
                linear_value_head_dim=16,
                linear_num_key_heads=1,
                linear_num_value_heads=2,
                num_experts=2,
                num_experts_per_tok=1,
                moe_intermediate_size=16,
                shared_expert_intermediate_size=16,
                rope_theta=5e5,
            ),
        ),
    ],
    ids=["llama", "qwen3", "qwen3_5_text", "qwen3_next"],
)
def test_families_load_with_their_rope_theta(make: Any, config: Any, save: Save) -> None:
    target = load(save(make(config)))
    assert target.shape.rope_theta == 5e5
    assert target.shape.intermediate_size == 48


def test_a_config_with_a_nested_text_config_is_read_there(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_TARGET / name, tmp_path)
    text = json.loads((DEMO_TARGET / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    assert read_shape(tmp_path).model_copy(update={"eos_token_ids": ()}) == read_shape(DEMO_TARGET).model_copy(
        update={"eos_token_ids": ()}
    )


def test_stop_tokens_come_from_generation_config_config_and_tokenizer(save: Save) -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SMALL, eos_token_id=9))
    folder = save(model)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [11, 9]}))
    assert read_shape(folder).eos_token_ids == (11, 9, read_shape(DEMO_TARGET).eos_token_ids[0])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no target at .*/nowhere"):
        load(tmp_path / "nowhere")


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no config\.json"):
        load(tmp_path)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match="transformers cannot read"):
        load(tmp_path)


@pytest.mark.parametrize("config", [T5Config()], ids=["t5"])
def test_a_model_that_is_no_causal_lm_is_refused(config: Any, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="t5 model, which is not a causal language model"):
        load(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    Qwen3ForCausalLM(Qwen3Config(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="tokenizer"):
        load(tmp_path)


def test_a_folder_without_weights_is_refused(save: Save) -> None:
    folder = save(Qwen3ForCausalLM(Qwen3Config(**SMALL)))
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"weights in .* cannot be loaded"):
        load(folder)


def test_weights_of_another_kind_of_model_are_refused_not_filled_at_random(save: Save) -> None:
    folder = save(Qwen3ForSequenceClassification(Qwen3Config(**SMALL, pad_token_id=0)))
    with pytest.raises(BadInput, match=r"lacks 1 tensors of a Qwen3ForCausalLM, among them lm_head\.weight"):
        load(folder)


def test_a_head_with_bias_is_refused(save: Save) -> None:
    config = PhiConfig(**SMALL, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=2)
    with pytest.raises(BadInput, match=r"head of .* has a bias"):
        load(save(PhiForCausalLM(config)))


def test_a_causal_lm_that_lacks_what_a_drafter_takes_over_is_refused(save: Save) -> None:
    config = BertConfig(vocab_size=4096, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, is_decoder=True)
    config.save_pretrained(folder := save(Qwen3ForCausalLM(Qwen3Config(**SMALL))))
    with pytest.raises(BadInput, match="has no rms_norm_eps"):
        load(folder)


def test_capped_logits_are_refused(save: Save) -> None:
    with pytest.raises(BadInput, match="final_logit_softcapping 30"):
        load(save(Gemma2ForCausalLM(Gemma2Config(**SMALL))))


def test_embeddings_scaled_inside_the_embedding_layer_are_served_scaled(save: Save) -> None:
    target = load(save(Gemma3ForCausalLM(Gemma3TextConfig(**SMALL))))
    ids = torch.tensor([7])
    plain = target.model.get_input_embeddings().weight[7]
    assert torch.allclose(target.embed(ids)[0], plain * 32**0.5, rtol=1e-3)


def test_embeddings_scaled_elsewhere_are_refused(save: Save) -> None:
    with pytest.raises(BadInput, match="scales its embeddings"):
        load(save(GraniteForCausalLM(GraniteConfig(**SMALL, embedding_multiplier=3.0))))


def test_scaled_logits_are_refused(save: Save) -> None:
    with pytest.raises(BadInput, match="scales or changes its logits"):
        load(save(GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=3.0))))


def test_fla_on_a_cpu_is_refused_for_hybrids_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fla = type(sys)("fla")
    fla.__spec__ = importlib.machinery.ModuleSpec("fla", None)
    monkeypatch.setitem(sys.modules, "fla", fla)
    with pytest.raises(BadInput, match="flash-linear-attention is installed") as caught:
        load(DEMO_TARGET)
    assert "pip uninstall" in caught.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(BadInput, match="torch sees no GPU"):
        resolve_device("cuda")


def test_a_family_that_is_known_is_packed_in_one_pass() -> None:
    assert load(DEMO_TARGET).how_packed == "one pass over packed documents, Gated DeltaNet in torch"


def test_a_family_that_is_not_known_is_packed_as_padded_sequences_and_says_why(save: Save) -> None:
    target = load(save(Gemma3ForCausalLM(Gemma3TextConfig(**SMALL))))
    assert target.how_packed == (
        "each document is its own padded sequence through transformers: "
        "a target of type gemma3_text is not known to the packed forward pass"
    )
    row = PackedRow(
        input_ids_T=np.arange(10, 20),
        positions_T=np.array([0, 1, 2, 3, 4, 5, 0, 1, 2, 3]),
        document_ids_T=np.repeat([0, 1], [6, 4]),
        is_supervised_T=np.ones(10, dtype=bool),
        lengths=(6, 4),
    )
    with torch.no_grad():
        second = target.decoder(input_ids=torch.arange(16, 20)[None], use_cache=False).last_hidden_state[0]
    assert torch.allclose(target.states(row, (1,)).final_TE[6:], second, rtol=0, atol=1e-5)


def test_a_target_is_named_by_config_and_weights(save: Save) -> None:
    folder = save(Qwen3ForCausalLM(Qwen3Config(**SMALL)))
    before = target_sha256(folder)
    assert target_sha256(folder) == before
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert target_sha256(folder) != before


def test_target_is_named_by_its_weights_too_where_their_sizes_stay(save: Save) -> None:
    folder = save(Qwen3ForCausalLM(Qwen3Config(**SMALL)))
    before = target_sha256(folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-100] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert target_sha256(folder) != before
