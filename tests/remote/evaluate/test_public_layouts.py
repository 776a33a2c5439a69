"""Folders as the hub has them: z-lab's config.json of either generation, four or five taps, and no manifest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.evaluate.measure import evaluate
from dflashctl_remote.spec.drafter import DrafterConfig, even_taps
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete
from dflashctl_remote.spec.evaluate import EvalReport, EvalSpec
from dflashctl_remote.spec.events import Event, Notice

NUM_LAYERS, WIDTH, VOCAB = 8, 32, 300
TEMPLATE = (
    "{% for m in messages %}{{ '<bos> ' + m['content'] + ' ' }}{% endfor %}{% if add_generation_prompt %}w4{% endif %}"
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public") / "target"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<mask>": 3} | {f"w{i}": i for i in range(4, VOCAB)}
    plain = Tokenizer(WordLevel(words, unk_token="w4"))
    plain.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", mask_token="<mask>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def public_config(taps: tuple[int, ...], *, is_nested: bool) -> dict[str, Any]:
    """The fields that z-lab writes, with the block size at the top (older) or in dflash_config (newer)."""
    dflash: dict[str, Any] = {"mask_token_id": 3, "target_layer_ids": list(taps)}
    config = {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "bos_token_id": None,
        "dflash_config": dflash,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.1,
        "intermediate_size": 48,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 256,
        "max_window_layers": 2,
        "model_type": "qwen3",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "num_target_layers": NUM_LAYERS,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "sliding_window": 16,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": True,
        "vocab_size": VOCAB,
    }
    if is_nested:
        dflash["block_size"] = 4
        return {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    return {**config, "block_size": 4, "rope_theta": 1e6, "rope_scaling": None}


@pytest.fixture
def make_public(tmp_path: Path) -> Callable[..., Path]:
    def make(taps: tuple[int, ...], *, is_nested: bool = True) -> Path:
        folder = tmp_path / "public-drafter"
        folder.mkdir()
        raw = public_config(taps, is_nested=is_nested)
        (folder / "config.json").write_text(json.dumps(raw))
        drafter = Drafter(DrafterConfig.from_zlab(raw))
        drafter.init_weights(seed=0)
        tensors = {name: value.to(torch.bfloat16) for name, value in drafter.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


def run(target: Path, checkpoint: Path, *, is_public: bool = True) -> tuple[EvalReport, str]:
    prompts = checkpoint.parent / "prompts.jsonl"
    rows = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"w{10 + i} w{20 + i}"}]} for i in range(5)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = EvalSpec(
        target=str(target),
        checkpoint=str(checkpoint),
        prompts=str(prompts),
        output=str(checkpoint.parent / "evaluation"),
        max_new_tokens=16,
        is_public=is_public,
    )
    events: list[Event] = []
    report = evaluate(spec, events.append)
    return report, "\n".join(event.message for event in events if isinstance(event, Notice))


@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize(("num_taps", "taps"), [(5, (1, 2, 3, 4, 5)), (4, (1, 2, 4, 5))])
def test_a_public_drafter_of_four_or_five_taps_is_evaluated_and_named_so(
    target: Path, make_public: Callable[..., Path], num_taps: int, taps: tuple[int, ...], is_nested: bool
) -> None:
    assert even_taps(NUM_LAYERS, num_taps) == taps
    report, notices = run(target, make_public(taps, is_nested=is_nested))
    assert report.taps == taps
    assert (report.block_size, report.num_prompts, report.step) == (4, 5, None)
    assert report.num_greedy_equal == report.num_greedy_checked == 2
    assert report.parity is not None and report.parity.verdict == "agree"
    assert "has no manifest" in notices


def test_a_folder_without_manifest_is_refused_unless_it_is_said_to_be_public(
    target: Path, make_public: Callable[..., Path]
) -> None:
    with pytest.raises(ArtifactIncomplete):
        run(target, make_public((1, 2, 3, 4, 5)), is_public=False)


@pytest.mark.parametrize(
    ("of_weights", "listed", "said"),
    [
        ((1, 2, 3, 4, 5), [1, 2, 4, 5], r"lists 4 taps \(1, 2, 4, 5\), and fc.weight reads 5: 160 columns"),
        ((1, 2, 4, 5), [1, 2, 3, 4, 5], r"lists 5 taps \(1, 2, 3, 4, 5\), and fc.weight reads 4: 128 columns"),
    ],
)
def test_a_tap_list_that_is_not_that_of_fc_is_an_error_that_says_both(
    target: Path, make_public: Callable[..., Path], of_weights: tuple[int, ...], listed: list[int], said: str
) -> None:
    folder = make_public(of_weights)
    raw = json.loads((folder / "config.json").read_text())
    raw["dflash_config"]["target_layer_ids"] = listed
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ArtifactCorrupt, match=said):
        run(target, folder)


def test_an_fc_that_is_no_number_of_taps_wide_is_an_error(target: Path, make_public: Callable[..., Path]) -> None:
    folder = make_public((1, 2, 4, 5))
    tensors = load_file(folder / "model.safetensors")
    tensors["fc.weight"] = tensors["fc.weight"][:, :-1].contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ArtifactCorrupt, match=r"and fc.weight has 127 columns, no multiple of the width 32"):
        run(target, folder)
