"""What configurations say about layers, heads and widths."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from airbundle.memory.kv import KvLayout, growing_bytes, layer_state_bytes, token_bytes
from airbundle.memory.parallel import Parallel, check_parallel, parallel_problems, stages
from airbundle.memory.shape import ModelShape, read_shape
from airbundle_onsite.errors import UsageError

BASE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}


def shape(**changes: Any) -> ModelShape:
    return read_shape({**BASE, **changes})


def kinds(found: ModelShape) -> Counter[str]:
    return Counter(cache.kind for cache in found.attention)


def test_values_are_as_wide_as_keys_unless_said() -> None:
    assert growing_bytes(shape(), KvLayout()) == 12 * 4 * (64 + 64) * 2
    assert growing_bytes(shape(head_dim=96), KvLayout()) == 12 * 4 * (96 + 96) * 2
    assert growing_bytes(shape(head_dim=192, v_head_dim=128), KvLayout()) == 12 * 4 * (192 + 128) * 2


@pytest.mark.parametrize(
    ("changes", "full", "windowed"),
    [
        ({"sliding_window": 512}, 12, 0),  # bare: charged in full
        ({"sliding_window": 512, "sliding_window_pattern": 6}, 2, 10),
        ({"sliding_window": 512, "sliding_window_pattern": "LLLG"}, 3, 9),
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 8}, 8, 4),
        ({"sliding_window": 512, "use_sliding_window": False, "max_window_layers": 8}, 12, 0),
        ({"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 6}, 6, 6),
        ({"sliding_window": 512, "hybrid_layer_pattern": [0, 1, 1] * 4}, 4, 8),
        ({"model_type": "gemma2"}, 6, 6),
        ({"model_type": "gemma3_text"}, 2, 10),
        ({"model_type": "qwen2", "sliding_window": 512}, 12, 0),
    ],
)
def test_windowed_layers(changes: dict[str, Any], full: int, windowed: int) -> None:
    found = kinds(shape(**changes))
    assert (found["full"], found["sliding"]) == (full, windowed)


def test_chunked_layers_are_those_with_positions() -> None:
    found = shape(model_type="llama4_text", attention_chunk_size=2048, no_rope_layers=[1, 1, 1, 0] * 3)
    assert kinds(found) == {"chunked": 9, "full": 3}
    assert {cache.window for cache in found.attention} == {2048, 0}
    assert kinds(shape(model_type="llama4_text")) == {"chunked": 9, "full": 3}


def test_windowed_layers_may_have_heads_of_their_own() -> None:
    found = shape(
        sliding_window=128,
        hybrid_layer_pattern=[0, 1] * 6,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        swa_v_head_dim=128,
    )
    assert {(cache.kind, cache.kv_heads, cache.key_dim, cache.value_dim) for cache in found.attention} == {
        ("full", 4, 64, 64),
        ("sliding", 8, 192, 128),
    }


def test_layers_that_share_a_cache_hold_none() -> None:
    assert len(shape(num_kv_shared_layers=5).attention) == 7


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"model_type": "falcon", "multi_query": True}, 1),
        ({"model_type": "falcon", "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}, 8),
        ({"model_type": "gpt2", "n_embd": 1024, "n_layer": 12, "n_head": 16}, 16),
        ({"model_type": "chatglm", "num_layers": 12, "multi_query_group_num": 2, "padded_vocab_size": 65024}, 2),
        ({"model_type": "", "dim": 1024, "n_layers": 12, "n_heads": 16, "n_kv_heads": 4, "hidden_dim": 2816}, 4),
    ],
)
def test_other_names_for_the_same_numbers(config: dict[str, Any], heads: int) -> None:
    own = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "vocab_size": 32000}
    aliases = {"n_embd": "hidden_size", "dim": "hidden_size", "n_layer": "num_hidden_layers"}
    aliases |= {"n_layers": "num_hidden_layers", "num_layers": "num_hidden_layers"}
    aliases |= {"n_head": "num_attention_heads", "n_heads": "num_attention_heads"}
    for key in config:
        own.pop(aliases.get(key, ""), None)
    found = read_shape({**own, **config})
    assert (found.layers, found.hidden, found.heads, found.kv_heads) == (12, 1024, 16, heads)


def test_language_model_of_a_multimodal_configuration() -> None:
    found = read_shape({"model_type": "x", "text_config": BASE, "vision_config": {"hidden_size": 64}})
    assert found.layers == 12
    assert found.vision


def test_searched_architecture_with_layers_that_have_no_attention() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8}},
        {"attention": {"no_op": True}},
        {"attention": {"n_heads_in_group": 4}},
    ]
    found = shape(block_configs=blocks * 4)
    assert [cache.kv_heads for cache in found.attention] == [2, 4] * 4


MAMBA2 = {"mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 32, "mamba_d_head": 64}


def test_recurrent_layers() -> None:
    mamba = shape(layer_types=["mamba"] * 9 + ["attention"] * 3, mamba_n_groups=2, **MAMBA2)
    assert (len(mamba.state), len(mamba.attention)) == (9, 3)
    assert layer_state_bytes(mamba.state[0], KvLayout()) == (2048 + 2 * 2 * 128) * 3 * 2 + 32 * 64 * 128 * 2
    # Two groups cannot be divided by four ranks: each rank gets one of its own.
    halved = layer_state_bytes(mamba.state[0], KvLayout(parallel=Parallel(4)))
    assert halved == (2048 + 4 * 2 * 128) / 4 * 3 * 2 + 32 * 64 * 128 / 4 * 2


def test_the_first_mamba_has_no_heads() -> None:
    found = shape(model_type="jamba", attn_layer_period=4, attn_layer_offset=2, mamba_d_state=16, mamba_d_conv=4)
    assert (len(found.state), len(found.attention)) == (9, 3)
    assert layer_state_bytes(found.state[0], KvLayout()) == 2048 * 3 * 2 + 2048 * 16 * 2


def test_attention_and_mamba_side_by_side() -> None:
    found = shape(model_type="falcon_h1", mamba_d_ssm=1536, **{**MAMBA2, "mamba_n_heads": 24})
    assert (len(found.state), len(found.attention)) == (12, 12)


def test_gated_delta_network() -> None:
    keys = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128}
    found = shape(full_attention_interval=4, linear_value_head_dim=128, linear_conv_kernel_dim=4, **keys)
    assert (len(found.state), len(found.attention)) == (9, 3)
    state = found.state[0]
    assert (state.conv, state.recurrent) == (2 * 16 * 128 + 32 * 128, 32 * 128 * 128)


def test_one_letter_pattern_keeps_its_states_in_32_bits_unless_told_otherwise() -> None:
    config = {"hybrid_override_pattern": "M-M*M-M*ME-*", **MAMBA2}
    assert {state.dtype for state in shape(**config).state} == {"float32"}
    assert {state.dtype for state in shape(**config, mamba_ssm_cache_dtype="bfloat16").state} == {"bfloat16"}
    assert len(shape(**config).attention) == 3


def test_latent_attention_with_an_index() -> None:
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    assert growing_bytes(shape(**latent), KvLayout()) == 12 * 576 * 2
    assert growing_bytes(shape(**latent, index_head_dim=128), KvLayout()) == 12 * (576 * 2 + 132)


def test_quantised_caches() -> None:
    cache = shape().attention[0]
    sizes = {dtype: token_bytes(cache, KvLayout(dtype)) for dtype in ("bf16", "fp8", "nvfp4", "q8_0", "q4_0")}
    assert sizes == {"bf16": 1024, "fp8": 512, "nvfp4": 288, "q8_0": 544, "q4_0": 288}
    assert token_bytes(cache, KvLayout("fp8_token")) == 512 + 4 * 2 * 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers"),
        ({"layer_types": ["full_attention"] * 11 + ["wavelet_attention"]}, "wavelet_attention"),
        ({"layer_types": ["full_attention"] * 11}, "11 layer types for 12 layers"),
        ({"hybrid_override_pattern": "MQM*"}, "Q"),
        ({"compress_ratios": [4, 128]}, "compress_ratios"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "qk_nope_head_dim"),
    ],
)
def test_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_shape({**BASE, "model_type": "unknown", **changes})


@pytest.mark.parametrize(
    ("changes", "parallel", "said"),
    [
        ({"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 768}, Parallel(4), "6 key-value heads"),
        ({}, Parallel(3), "16 attention heads"),
        ({"intermediate_size": 2817}, Parallel(2), "width 2817"),
        ({"vocab_size": 32001}, Parallel(128), "vocabulary of 32001"),
        ({}, Parallel(1, 13), "12 layers cannot make 13 stages"),
        (
            {"intermediate_size": 29568, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
            Parallel(2),
            "no multiple of the quantisation's group of 128",
        ),
        (
            {
                "num_experts": 8,
                "moe_intermediate_size": 1536,
                "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
                "model_type": "qwen3_moe",
            },
            Parallel(8),
            "expert width 1536 divided by 8 is 192",
        ),
        ({"layer_types": ["mamba", "attention"] * 6, **MAMBA2, "mamba_n_heads": 30}, Parallel(4), "30 heads"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(changes: dict[str, Any], parallel: Parallel, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_parallel(shape(**changes), parallel)
    assert said in "\n".join(refused.value.lines())


def test_fewer_key_value_heads_than_ranks_are_copied() -> None:
    assert parallel_problems(shape(), Parallel(8)) == []
    assert growing_bytes(shape(), KvLayout(parallel=Parallel(8))) == 12 * 1 * 128 * 2


def test_left_over_layers_go_before_the_last_stage() -> None:
    assert stages(10, 4) == ((0, 2), (2, 5), (5, 8), (8, 10))
    assert stages(61, 2) == ((0, 31), (31, 61))
