"""Families whose feed-forward has two matrices: weights and cache from config.json alone.

The parameter counts are the published totals, from general knowledge.
"""

from __future__ import annotations

from typing import Any

import pytest

from airbundle.memory.inventory import infer_tensors
from airbundle.memory.kv import KvLayout, growing_bytes
from airbundle.memory.shape import read_shape
from airbundle_onsite.errors import UsageError

_STARCODER = {"hidden_size": 4608, "intermediate_size": 18432, "num_hidden_layers": 32, "num_attention_heads": 36}
_FALCON = {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True, "bias": False}
_PHI = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32}
_BLOOM = {"hidden_size": 4096, "n_layer": 30, "n_head": 32}
_PYTHIA = {"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32, "num_attention_heads": 32}


@pytest.mark.parametrize(
    ("model_type", "parameters", "token", "config"),
    [
        ("starcoder2", 7.174e9, 2 * 32 * 4 * 128 * 2, {**_STARCODER, "num_key_value_heads": 4, "vocab_size": 49152}),
        ("phi", 2.780e9, 2 * 32 * 32 * 80 * 2, {**_PHI, "vocab_size": 51200}),
        ("gpt2", 124.4e6, 2 * 12 * 12 * 64 * 2, {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}),
        ("gpt_neox", 6.857e9, 2 * 32 * 32 * 128 * 2, {**_PYTHIA, "vocab_size": 50432, "tie_word_embeddings": False}),
        ("falcon", 6.922e9, 2 * 32 * 1 * 64 * 2, {**_FALCON, "vocab_size": 65024, "new_decoder_architecture": False}),
        ("bloom", 7.069e9, 2 * 30 * 32 * 128 * 2, {**_BLOOM, "vocab_size": 250880}),
        ("mpt", 6.649e9, 2 * 32 * 32 * 128 * 2, {"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432}),
        ("gptj", 6.051e9, 2 * 28 * 16 * 256 * 2, {"n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400}),
    ],
)  # fmt: skip
def test_feed_forwards_of_two_matrices(model_type: str, parameters: float, token: int, config: dict[str, Any]) -> None:
    whole = {"model_type": model_type, "torch_dtype": "bfloat16", **config}
    found = sum(tensor.size * tensor.count for tensor in infer_tensors(whole)) / 2
    assert found == pytest.approx(parameters, rel=0.01)
    assert growing_bytes(read_shape(whole), KvLayout("bf16")) == token


_MAMBA = {"hidden_size": 4096, "num_hidden_layers": 64, "conv_kernel": 4, "expand": 2, "tie_word_embeddings": False}
_MAMBA_2 = {"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "vocab_size": 32768}
_MAMBA_1 = {"intermediate_size": 8192, "time_step_rank": 256, "state_size": 16, "vocab_size": 65024}


@pytest.mark.parametrize(
    ("model_type", "parameters", "config"),
    [("mamba2", 7.285e9, {**_MAMBA, **_MAMBA_2}), ("falcon_mamba", 7.273e9, {**_MAMBA, **_MAMBA_1})],
)
def test_a_pure_mamba_has_no_feed_forward(model_type: str, parameters: float, config: dict[str, Any]) -> None:
    whole = {"model_type": model_type, "torch_dtype": "bfloat16", **config}
    found = sum(tensor.size * tensor.count for tensor in infer_tensors(whole)) / 2
    assert found == pytest.approx(parameters, rel=0.005)
    assert growing_bytes(read_shape(whole), KvLayout("bf16")) == 0


def test_more_layers_than_any_model_has_are_damage() -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 10**9, "num_attention_heads": 1, "vocab_size": 10}
    with pytest.raises(UsageError, match="num_hidden_layers is 1000000000; at most 1024"):
        read_shape(config)


@pytest.mark.parametrize(
    "wrong",
    [
        {"quantization_config": {"quant_method": "awq", "bits": "four"}},
        {"num_experts": 4, "expert_layer_period": "0"},
        {"num_experts": 4, "moe_layer_freq": [1]},
        {"layer_types": [["full_attention"], {}]},
        {"num_key_value_heads": ["a", "b"]},
        {"vision_config": {"hidden_size": 8, "num_hidden_layers": 1, "mlp_ratio": "wide"}},
    ],
)
def test_words_where_numbers_belong_are_the_configuration_s_fault(wrong: dict[str, Any]) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 10, **wrong}
    with pytest.raises(UsageError) as caught:
        infer_tensors(config)
    assert caught.value.remedy
