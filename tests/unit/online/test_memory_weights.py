"""Weights on a rank, and tensors from real headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from airbundle.estimate import from_config
from airbundle.gguf import read_header
from airbundle.memory.adapters import Adapters, lora_bytes
from airbundle.memory.ggufshape import shape_of_gguf
from airbundle.memory.headers import tensors_of
from airbundle.memory.inventory import infer_tensors
from airbundle.memory.kv import KvLayout, growing_bytes
from airbundle.memory.offload import plan_offload
from airbundle.memory.parallel import Parallel
from airbundle.memory.shape import read_shape
from airbundle.memory.weights import Tensor, plan_weights, role_of
from airbundle_onsite.errors import UsageError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "divided"),
        ("model.layers.0.self_attn.k_proj.qweight", "kv"),
        ("model.layers.0.self_attn.v_proj.bias", "kv"),
        ("model.layers.0.self_attn.k_norm.weight", "copied"),
        ("model.layers.0.self_attn.qkv_proj.weight", "qkv"),
        ("transformer.h.0.self_attention.query_key_value.weight", "qkv"),
        ("h.0.attn.c_attn.weight", "qkv"),
        ("h.0.attn.c_attn.bias", "qkv"),
        ("h.0.attn.bias", "skipped"),
        ("model.layers.0.self_attn.o_proj.bias", "copied"),
        ("model.layers.0.self_attn.sinks", "divided"),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "copied"),
        ("model.layers.0.self_attn.kv_b_proj.weight", "divided"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "skipped"),
        ("model.layers.0.mlp.gate_up_proj.weight", "divided"),
        ("model.layers.0.mlp.gate_proj.weight", "divided"),
        ("model.layers.0.mlp.gate.weight", "copied"),
        ("model.layers.0.mlp.experts.17.down_proj.weight", "experts"),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "experts"),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", "divided"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "copied"),
        ("model.layers.0.block_sparse_moe.experts.3.w1.weight", "experts"),
        ("model.layers.0.block_sparse_moe.gate.weight", "copied"),
        ("backbone.layers.0.mixer.in_proj.weight", "divided"),
        ("backbone.embeddings.weight", "vocab"),
        ("model.embed_tokens.weight", "vocab"),
        ("lm_head.weight", "output"),
        ("output.weight", "output"),
        ("output_norm.weight", "copied"),
        ("token_embd.weight", "vocab"),
        ("blk.0.attn_k.weight", "kv"),
        ("blk.0.attn_output.weight", "divided"),
        ("blk.0.ffn_gate_exps.weight", "experts"),
        ("blk.0.ffn_gate_inp.weight", "copied"),
        ("blk.0.attn_kv_a_mqa.weight", "copied"),
        ("layers.0.attention.wk.weight", "kv"),
        ("layers.0.feed_forward.w2.weight", "divided"),
        ("vision_tower.encoder.layers.0.self_attn.k_proj.weight", "vision"),
        ("visual.blocks.0.attn.qkv.weight", "vision"),
        ("multi_modal_projector.linear_1.weight", "vision"),
        ("mtp.layers.0.mlp.gate.weight", "draft"),
        ("model.layers.61.eh_proj.weight", "draft"),
    ],
)
def test_role_by_name(name: str, role: str) -> None:
    assert role_of(name) == role


def test_one_rank_holds_everything_once() -> None:
    shape = read_shape(CONFIG)
    tensors = infer_tensors(CONFIG)
    plan = plan_weights(tensors, shape, tied=False)
    padding = 2 * (128 - 100) * 64 * 2  # the vocabulary of 100, padded to 128, twice
    assert plan.total == sum(tensor.size * tensor.count for tensor in tensors)
    assert plan.per_rank(Parallel()) == plan.total + padding


def test_keys_and_values_are_copied_beyond_their_heads() -> None:
    shape = read_shape(CONFIG)
    kv = plan_weights([Tensor("model.layers.0.self_attn.k_proj.weight", 800)], shape, tied=False)
    assert [kv.per_rank(Parallel(ranks)) for ranks in (1, 2, 4, 8)] == [800, 400, 400, 400]
    fused = plan_weights([Tensor("model.layers.0.self_attn.qkv_proj.weight", 1200)], shape, tied=False)
    assert [fused.per_rank(Parallel(ranks)) for ranks in (1, 2, 4)] == [1200, 600, 200 + 200]


def test_experts_by_width_or_whole() -> None:
    shape = read_shape({**CONFIG, "model_type": "qwen3_moe", "num_experts": 6, "moe_intermediate_size": 32})
    plan = plan_weights([Tensor("model.layers.0.mlp.experts.0.up_proj.weight", 1000, 6)], shape, tied=False)
    assert plan.per_rank(Parallel(4)) == 1500
    assert plan.per_rank(Parallel(4, experts=True)) == 2000  # two of six on the fullest rank


def test_tied_output_is_not_loaded_twice() -> None:
    shape = read_shape(CONFIG)
    tensors = [Tensor("model.embed_tokens.weight", 12800), Tensor("lm_head.weight", 12800)]
    assert plan_weights(tensors, shape, tied=False).total == 25600
    tied = plan_weights(tensors, shape, tied=True)
    assert (tied.total, tied.skipped) == (12800, 12800)
    # With stages both ends need it.
    assert tied.per_stage(Parallel(1, 2)) == (16384, 16384)


def test_layers_beyond_the_model_are_drafts() -> None:
    shape = read_shape(CONFIG)
    tensors = [Tensor("model.layers.1.mlp.up_proj.weight", 100), Tensor("model.layers.2.mlp.up_proj.weight", 700)]
    plan = plan_weights(tensors, shape, tied=False)
    assert (plan.total, plan.draft) == (100, 700)
    assert (plan.per_rank(Parallel()), plan.per_rank(Parallel(), draft=True)) == (100, 800)


def test_stages_hold_whole_layers_and_their_own_ends() -> None:
    shape = read_shape({**CONFIG, "num_hidden_layers": 5})
    layers = [Tensor(f"model.layers.{number}.mlp.up_proj.weight", 100) for number in range(5)]
    ends = [Tensor("visual.x.weight", 7), Tensor("model.norm.weight", 3)]
    plan = plan_weights([*layers, *ends], shape, tied=False)
    assert plan.per_stage(Parallel(1, 3)) == (207, 200, 103)


def test_wide_tensors_are_loaded_in_16_bits_but_not_their_scales() -> None:
    shape = read_shape(CONFIG)
    tensors = [
        Tensor("model.layers.0.mlp.up_proj.weight", 400, dtype="F32"),
        Tensor("model.layers.0.mlp.up_proj.weight_scale_inv", 40, dtype="F32"),
        Tensor("model.layers.0.mlp.down_proj.weight", 100, dtype="F8_E4M3"),
    ]
    assert plan_weights(tensors, shape, tied=False).total == 200 + 40 + 100


def test_large_allocations_come_in_steps() -> None:
    shape = read_shape(CONFIG)
    mib = 2**20
    tensors = [
        Tensor("model.layers.0.mlp.gate_proj.weight", 5 * mib + 1),
        Tensor("model.layers.0.mlp.up_proj.weight", 6 * mib),
    ]
    plan = plan_weights(tensors, shape, tied=False)
    assert plan.per_rank(Parallel(), allocated=True) == 12 * mib  # one allocation, fused
    assert plan.per_rank(Parallel(2), allocated=True) == plan.per_rank(Parallel(2))  # small ones share blocks


def test_headers_are_exact_and_used_instead_of_the_configuration(tiny_model: Path) -> None:
    files = {path.name: path for path in tiny_model.iterdir()}
    tensors = tensors_of(files)
    index = json.loads((tiny_model / "model.safetensors.index.json").read_text())
    assert sum(tensor.size for tensor in tensors) == index["metadata"]["total_size"]
    assert {tensor.name for tensor in tensors} == set(index["weight_map"])
    model = from_config("tiny", json.loads((tiny_model / "config.json").read_text()), tensors)
    assert model.weights.total + model.weights.skipped == index["metadata"]["total_size"]
    assert "tensors" in model.seen


def test_weights_beside_the_index_are_not_counted_twice(tmp_path: Path) -> None:
    one = {"model.norm.weight": numpy.zeros(8, numpy.float16)}
    for name in ("model-00001-of-00001.safetensors", "consolidated.safetensors"):
        save_file(one, tmp_path / name)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    files = {path.name: path for path in tmp_path.iterdir()}
    assert [tensor.size for tensor in tensors_of(files)] == [16]
    del files["model-00001-of-00001.safetensors"]
    with pytest.raises(UsageError, match="1 files that are not there"):
        tensors_of(files)


def test_damaged_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        tensors_of({"model.safetensors": tmp_path / "model.safetensors"})
    with pytest.raises(UsageError, match="neither"):
        tensors_of({})


def test_real_gguf(smollm2_gguf: Path) -> None:
    header = read_header(smollm2_gguf)
    tensors = tensors_of({smollm2_gguf.name: smollm2_gguf})
    held = sum(tensor.size for tensor in tensors)
    assert held == pytest.approx(smollm2_gguf.stat().st_size, rel=0.03)  # the rest is its vocabulary
    shape = shape_of_gguf(header.metadata)
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (30, 576, 9, 3, 64)
    assert shape.vocab == 49152
    assert growing_bytes(shape, KvLayout(paging="slots")) == 30 * 3 * 128 * 2


GGUF: dict[str, Any] = {
    "general.architecture": "x",
    "x.block_count": 4,
    "x.embedding_length": 64,
    "x.attention.head_count": 8,
    "x.attention.head_count_kv": 2,
    "x.feed_forward_length": 128,
    "x.vocab_size": 100,
}


def test_gguf_shapes() -> None:
    windowed = {
        **GGUF,
        "x.attention.sliding_window": 32,
        "x.attention.sliding_window_pattern": (True, True, True, False),
    }
    assert [cache.kind for cache in shape_of_gguf(windowed).attention] == ["sliding"] * 3 + ["full"]
    hybrid = {**GGUF, "x.attention.head_count_kv": (0, 0, 0, 2), "x.ssm.state_size": 16, "x.ssm.inner_size": 128}
    found = shape_of_gguf({**hybrid, "x.ssm.conv_kernel": 4})
    assert (len(found.state), len(found.attention)) == (3, 1)
    latent = {**GGUF, "x.attention.kv_lora_rank": 512, "x.rope.dimension_count": 64}
    assert growing_bytes(shape_of_gguf(latent), KvLayout(paging="slots")) == 4 * 576 * 2
    with pytest.raises(UsageError, match=r"x\.block_count"):
        shape_of_gguf({**GGUF, "x.block_count": 0})


def test_offload_fills_the_gpu_from_the_last_layer() -> None:
    shape = shape_of_gguf(GGUF)
    layers = [Tensor(f"blk.{number}.ffn_up.weight", 10_000) for number in range(4)]
    tensors = [Tensor("token_embd.weight", 5000), Tensor("output.weight", 5000), *layers]
    plan = plan_weights(tensors, shape, tied=False)
    layout = KvLayout(paging="slots")
    cache = 2 * 16 * 2 * 64  # two heads, keys and values of 8, 16 bits, 64 tokens
    each = 10_000 + cache
    found = plan_offload(shape, plan, 64, 1, 2.5 * each, layout)
    assert (found.layers, found.most, found.on_gpu) == (2, 5, 2 * each)
    assert found.on_host == 2 * each + 5000 + 5000
    whole = plan_offload(shape, plan, 64, 1, 10 * each, layout)
    assert (whole.layers, whole.on_host) == (5, 5000)


def test_lora_slots() -> None:
    shape = read_shape(CONFIG)
    only = Adapters(slots=4, rank=16, modules=("q_proj", "o_proj"))
    assert lora_bytes(shape, only, Parallel()) == 2 * ((64 + 64) + (64 + 64)) * 16 * 4 * 2
    # The narrow matrix of a projection by columns is copied, and by rows the wide one.
    assert lora_bytes(shape, only, Parallel(2)) == 2 * ((64 + 32) + (32 + 64)) * 16 * 4 * 2
    assert lora_bytes(shape, Adapters(4, 16), Parallel()) > lora_bytes(shape, only, Parallel())
    with pytest.raises(UsageError, match="embedding"):
        lora_bytes(shape, Adapters(1, 1, ("embedding",)), Parallel())
