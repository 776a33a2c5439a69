import pytest

from dflashctl_remote.spec.drafter import (
    DrafterConfig,
    DrafterSpec,
    TargetShape,
    check_fit,
    default_gamma,
    even_taps,
    resolve_drafter,
)
from dflashctl_remote.spec.errors import ArtifactCorrupt, BadInput

TARGET = TargetShape(
    num_layers=64,
    hidden_size=5120,
    intermediate_size=17408,
    vocab_size=248320,
    rms_norm_eps=1e-6,
    rope_theta=1e7,
    max_position_embeddings=262144,
    mask_token_id=248070,
    bos_token_id=None,
    eos_token_ids=(248046, 248044),
    pad_token_id=248055,
)


@pytest.mark.parametrize(
    ("num_layers", "num_taps", "taps"),
    [
        (64, 5, (1, 16, 31, 46, 61)),
        (36, 5, (1, 9, 17, 25, 33)),
        (32, 5, (1, 8, 15, 22, 29)),
        (40, 8, (1, 6, 11, 16, 22, 27, 32, 37)),
        (36, 1, (18,)),
    ],
)
def test_taps_follow_the_even_spacing_of_the_published_drafters(
    num_layers: int, num_taps: int, taps: tuple[int, ...]
) -> None:
    assert even_taps(num_layers, num_taps) == taps


def test_defaults_give_the_published_drafter_of_qwen3_6_27b() -> None:
    config = resolve_drafter(DrafterSpec(), TARGET)
    assert config.tap_layers == (1, 16, 31, 46, 61)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (5120, 17408, 248320)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.block_size) == (32, 8, 128, 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tap_layers": (1, 64)}, "out of range"),
        ({"tap_layers": (-1, 3)}, "out of range"),
        ({"tap_layers": (3, 1)}, "must be rising"),
        ({"mask_token_id": 248055}, "is the pad token"),
        ({"mask_token_id": 248044}, "is an eos token"),
        ({"mask_token_id": 248320}, "outside the vocabulary"),
        ({"num_heads": 30}, "evenly"),
        ({"num_sliding_layers": 4}, "go together"),
        ({"num_sliding_layers": 6, "sliding_window_tokens": 64}, "6 sliding layers of 5"),
        ({"layer_pattern": "SSSSF"}, "go together"),
        ({"layer_pattern": "F", "sliding_window_tokens": 64}, "go together"),
        ({"layer_pattern": "SSF", "sliding_window_tokens": 64}, "3 letters, which do not fill 5 layers"),
        ({"layer_pattern": "S", "num_sliding_layers": 4, "sliding_window_tokens": 64}, "set one of them"),
    ],
)
def test_what_would_make_a_drafter_useless_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        resolve_drafter(DrafterSpec.model_validate(change), TARGET)


def test_a_target_without_mask_token_needs_one_named() -> None:
    with pytest.raises(BadInput, match="no mask token"):
        resolve_drafter(DrafterSpec(), TARGET.model_copy(update={"mask_token_id": None}))


def test_config_survives_the_z_lab_layout() -> None:
    for spec in (
        DrafterSpec(),
        DrafterSpec(num_sliding_layers=4, sliding_window_tokens=2048),
        DrafterSpec(is_causal=True),
    ):
        config = resolve_drafter(spec, TARGET)
        assert (
            DrafterConfig.from_zlab(config.to_zlab("bfloat16")).model_copy(update={"is_causal": config.is_causal})
            == config
        )
        read = DrafterConfig.from_zlab(config.to_zlab("bfloat16"))
        assert [read.is_layer_causal(i) for i in range(5)] == [config.is_layer_causal(i) for i in range(5)]


def test_sliding_layers_are_causal_and_full_ones_are_not_unless_said() -> None:
    config = resolve_drafter(DrafterSpec(num_sliding_layers=4, sliding_window_tokens=2048), TARGET)
    assert [config.is_layer_causal(i) for i in range(5)] == [True, True, True, True, False]
    assert [config.window_of(i) for i in range(5)] == [2048, 2048, 2048, 2048, None]


def test_gamma_goes_with_the_block_size() -> None:
    assert [default_gamma(size) for size in (16, 10, 8)] == [7.0, 5.0, 4.0]


def test_new_weights_of_a_narrow_drafter_are_larger() -> None:
    assert resolve_drafter(DrafterSpec(), TARGET).initializer_range == 0.02
    narrow = TARGET.model_copy(update={"hidden_size": 256})
    assert resolve_drafter(DrafterSpec(), narrow).initializer_range == pytest.approx(0.0625)
    assert resolve_drafter(DrafterSpec(initializer_range=0.05), narrow).initializer_range == 0.05


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 512}, "hidden size is 512, the target's 5120"),
        ({"vocab_size": 100}, "vocabulary is 100"),
        ({"num_target_layers": 9}, "number of target layers is 9"),
        ({"tap_layers": (1, 64)}, "the target has 0 to 63"),
    ],
)
def test_a_drafter_of_another_target_does_not_fit(change: dict[str, object], words: str) -> None:
    fits = resolve_drafter(DrafterSpec(), TARGET)
    check_fit(fits, TARGET)
    with pytest.raises(BadInput, match=words):
        check_fit(fits.model_copy(update=change), TARGET)


@pytest.mark.parametrize(
    ("pattern", "num_layers", "wanted"),
    [("SSSSF", 5, "SSSSF"), ("S", 5, "SSSSS"), ("SF", 6, "SFSFSF"), ("FSF", 3, "FSF")],
)
def test_a_layer_pattern_says_which_layers_slide_and_survives_the_z_lab_layout(
    pattern: str, num_layers: int, wanted: str
) -> None:
    spec = DrafterSpec(num_layers=num_layers, layer_pattern=pattern, sliding_window_tokens=2048)
    config = resolve_drafter(spec, TARGET)
    assert config.layer_pattern == wanted
    assert [config.window_of(i) for i in range(num_layers)] == [2048 if c == "S" else None for c in wanted]
    assert [config.is_layer_causal(i) for i in range(num_layers)] == [c == "S" for c in wanted]
    written = config.to_zlab("bfloat16")
    assert written["layer_types"] == [{"S": "sliding_attention", "F": "full_attention"}[c] for c in wanted]
    read = DrafterConfig.from_zlab(written)
    assert (read.layer_types, read.sliding_window) == (config.layer_types, 2048)
    assert [read.is_layer_causal(i) for i in range(num_layers)] == [c == "S" for c in wanted]


def test_a_pattern_of_full_layers_needs_no_window() -> None:
    assert resolve_drafter(DrafterSpec(layer_pattern="F"), TARGET) == resolve_drafter(DrafterSpec(), TARGET)


def test_the_older_way_to_write_leading_sliding_layers_gives_the_same_drafter() -> None:
    one = DrafterSpec(layer_pattern="SSSSF", sliding_window_tokens=2048)
    other = DrafterSpec(num_sliding_layers=4, sliding_window_tokens=2048)
    assert resolve_drafter(one, TARGET) == resolve_drafter(other, TARGET)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": ["full_attention"] * 3}, "3 layer types for 5 layers"),
        ({"sliding_window": None}, "sliding layers and no sliding_window"),
    ],
)
def test_a_config_whose_layers_do_not_add_up_is_refused(change: dict[str, object], words: str) -> None:
    written = resolve_drafter(DrafterSpec(layer_pattern="SSSSF", sliding_window_tokens=64), TARGET).to_zlab("bfloat16")
    with pytest.raises(ArtifactCorrupt, match=words):
        DrafterConfig.from_zlab(written | change)
