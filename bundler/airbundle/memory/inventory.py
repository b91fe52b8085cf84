"""The tensors a configuration implies, for models whose files are not at hand: names, counts and exact sizes.

Names are those of the common checkpoints, so that `weights.plan_weights` sorts them like real headers. Where a
checkpoint is at hand its headers are exact and are used instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airbundle.memory.shape import ModelShape, expert_count, layer_roles, quantization_config, read_shape, text_config
from airbundle.memory.weights import Tensor
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1}
_UNGATED = frozenset({"phi", "gpt2", "gpt_neox", "falcon", "starcoder2", "mpt", "opt", "nemotron", "nemotron_h"})
"""Families whose feed-forward has two matrices instead of three."""


@record
class Packing:
    """Bytes per element of quantised matrices, scales and zero points included.

    Attributes:
        linear: of ordinary projections.
        expert: of routed experts.
        plain: of everything that is not quantised.
    """

    linear: float
    expert: float
    plain: int


def packing(config: Mapping[str, Any], shape: ModelShape) -> Packing:
    """Read ``quantization_config``.

    Raises:
        UsageError: a method whose sizes are not known, or an unknown dtype.
    """
    plain = _DTYPE_BYTES.get(shape.dtype)
    if plain is None:
        raise UsageError(f"torch_dtype {shape.dtype!r} is not known", remedy=f"one of {', '.join(_DTYPE_BYTES)}")
    quantized = quantization_config(config)
    method = str(quantized.get("quant_method", ""))
    if not method:
        return Packing(plain, plain, plain)
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin"):
        bits, group = int(quantized.get("bits") or quantized.get("w_bit") or 4), int(quantized.get("group_size") or 128)
        size = _grouped(bits, group, zero_points=True)
        return Packing(size, size, plain)
    if method in ("fp8", "fbgemm_fp8"):
        block = quantized.get("weight_block_size")
        size = 1 + (4 / (block[0] * block[1]) if block else 0)
        return Packing(size, size, plain)
    if method == "mxfp4":
        return Packing(plain, _grouped(4, 32, scale_bytes=1), plain)
    if method in ("compressed-tensors", "modelopt"):
        size = _compressed(quantized)
        return Packing(size, size, plain)
    raise UsageError(
        f"quantization method {method!r}: its sizes cannot be computed from config.json alone",
        remedy="lock the model itself; its tensor headers are exact",
    )


def _grouped(bits: int, group: int, *, zero_points: bool = False, scale_bytes: int = 2) -> float:
    per_group = scale_bytes + (bits / 8 if zero_points else 0)
    return bits / 8 + (per_group / group if group > 0 else 0)


def _compressed(quantized: Mapping[str, Any]) -> float:
    algorithm = str(quantized.get("quant_algo", ""))
    if algorithm:
        return {"FP8": 1.0, "NVFP4": _grouped(4, 16, scale_bytes=1)}.get(algorithm.upper(), 2.0)
    groups = quantized.get("config_groups") or {}
    weights = next((group.get("weights") for group in groups.values() if group.get("weights")), None) or {}
    bits, group = int(weights.get("num_bits", 16)), int(weights.get("group_size") or 0)
    scale = 1 if bits == 4 and weights.get("type") == "float" else 2
    return _grouped(bits, group, scale_bytes=scale)


def infer_tensors(config: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """All tensors of the model proper.

    Raises:
        UsageError: see `packing` and `shape.read_shape`.
    """
    shape, text = read_shape(config), text_config(config)
    made = _Maker(text, shape, packing(config, shape))
    return tuple(made.all())


class _Maker:
    def __init__(self, text: Mapping[str, Any], shape: ModelShape, sizes: Packing) -> None:
        self._text, self._shape, self._sizes = text, shape, sizes
        self._hidden = shape.hidden

    def all(self) -> Iterator[Tensor]:
        embedding = self._shape.vocab * self._hidden * self._sizes.plain
        yield Tensor("model.embed_tokens.weight", embedding)
        if not self._text.get("tie_word_embeddings", False):
            yield Tensor("lm_head.weight", embedding)
        yield Tensor("model.norm.weight", self._hidden * self._sizes.plain)
        for index, role in enumerate(layer_roles(self._text, self._shape.layers)):
            yield from self._layer(f"model.layers.{index}", index, role)

    def _layer(self, name: str, index: int, role: str) -> Iterator[Tensor]:
        yield Tensor(f"{name}.input_layernorm.weight", self._hidden * self._sizes.plain, 2)
        kinds = role.split("+")
        if "mamba" in kinds:
            yield from self._mamba(f"{name}.mamba")
        if "linear" in kinds:
            yield from self._delta(f"{name}.linear_attn")
        if not {"mamba", "linear", "mlp"} & set(kinds) or "full" in kinds:
            latent = bool(self._text.get("kv_lora_rank"))
            yield from (self._latent if latent else self._heads)(f"{name}.self_attn")
        if self._has_feed_forward(role):
            yield from self._feed_forward(f"{name}.mlp", index)

    def _has_feed_forward(self, role: str) -> bool:
        """In Nemotron-H a layer is either a mixer or a feed-forward; elsewhere every layer has both."""
        return role == "mlp" or not isinstance(self._text.get("hybrid_override_pattern"), str)

    def _matrix(self, name: str, rows: int, columns: int, *, each: float | None = None, count: int = 1) -> Tensor:
        return Tensor(name, round(rows * columns * (self._sizes.linear if each is None else each)), count)

    def _heads(self, name: str) -> Iterator[Tensor]:
        shape = self._shape
        queries, values = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        gate = 2 if self._text.get("attn_output_gate") or self._text.get("model_type") == "qwen3_next" else 1
        yield self._matrix(f"{name}.q_proj.weight", self._hidden, queries * gate)
        yield self._matrix(f"{name}.k_proj.weight", self._hidden, values)
        yield self._matrix(f"{name}.v_proj.weight", self._hidden, values)
        yield self._matrix(f"{name}.o_proj.weight", queries, self._hidden)
        if self._text.get("attention_bias") or self._text.get("model_type") in ("qwen2", "qwen2_moe"):
            yield Tensor(f"{name}.qkv.bias", (queries + 2 * values) * self._sizes.plain)

    def _latent(self, name: str) -> Iterator[Tensor]:
        text, heads = self._text, self._shape.heads
        nope, rope, value = (int(text[key]) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        latent, query = int(text["kv_lora_rank"]), int(text.get("q_lora_rank") or 0)
        if query:
            yield self._matrix(f"{name}.q_a_proj.weight", self._hidden, query)
            yield self._matrix(f"{name}.q_b_proj.weight", query, heads * (nope + rope))
        else:
            yield self._matrix(f"{name}.q_proj.weight", self._hidden, heads * (nope + rope))
        yield self._matrix(f"{name}.kv_a_proj_with_mqa.weight", self._hidden, latent + rope)
        yield self._matrix(f"{name}.kv_b_proj.weight", latent, heads * (nope + value))
        yield self._matrix(f"{name}.o_proj.weight", heads * value, self._hidden)

    def _mamba(self, name: str) -> Iterator[Tensor]:
        text, hidden = self._text, self._hidden
        size = int(text.get("mamba_d_state") or text.get("ssm_state_size") or text.get("state_size") or 0)
        heads = int(text.get("mamba_n_heads") or text.get("mamba_num_heads") or 0)
        if heads:
            dim = int(text.get("mamba_d_head") or text.get("mamba_head_dim") or 0)
            groups = int(text.get("mamba_n_groups") or text.get("n_groups") or 1)
            inner = heads * dim
            yield self._matrix(f"{name}.in_proj.weight", hidden, 2 * inner + 2 * groups * size + heads)
        else:
            inner = int(text.get("mamba_expand") or text.get("expand") or 2) * hidden
            rank = int(text.get("mamba_dt_rank") or text.get("time_step_rank") or -(-hidden // 16))
            yield self._matrix(f"{name}.in_proj.weight", hidden, 2 * inner)
            yield self._matrix(f"{name}.x_proj.weight", inner, rank + 2 * size)
            yield self._matrix(f"{name}.dt_proj.weight", rank, inner)
            yield Tensor(f"{name}.A", inner * size * 4)
        yield self._matrix(f"{name}.out_proj.weight", inner, hidden)

    def _delta(self, name: str) -> Iterator[Tensor]:
        text = self._text
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        values = int(text["linear_num_value_heads"]) * int(text["linear_value_head_dim"])
        yield self._matrix(f"{name}.in_proj_qkvz.weight", self._hidden, 2 * keys + 2 * values)
        yield self._matrix(f"{name}.in_proj_ba.weight", self._hidden, 2 * int(text["linear_num_value_heads"]))
        yield self._matrix(f"{name}.out_proj.weight", values, self._hidden)

    def _feed_forward(self, name: str, index: int) -> Iterator[Tensor]:
        text, experts = self._text, expert_count(self._text)
        matrices = 2 if text.get("model_type") in _UNGATED else 3
        dense = int(text.get("intermediate_size") or 4 * self._hidden)
        if not experts or not self._is_sparse(index):
            yield self._matrix(
                f"{name}.proj.weight", self._hidden, int(text.get("intermediate_size_mlp") or dense), count=matrices
            )
            return
        width = int(text.get("moe_intermediate_size") or dense)
        yield self._matrix(
            f"{name}.experts.weight", self._hidden, width, each=self._sizes.expert, count=matrices * experts
        )
        yield Tensor(f"{name}.gate.weight", self._hidden * experts * self._sizes.plain)
        shared = int(text.get("shared_expert_intermediate_size") or int(text.get("n_shared_experts") or 0) * width)
        if not shared and text.get("model_type") in ("llama4_text", "llama4"):
            shared = width
        if shared:
            yield self._matrix(f"{name}.shared_experts.weight", self._hidden, shared, count=matrices)

    def _is_sparse(self, index: int) -> bool:
        """Whether a layer has experts, by the keys that configurations use to say so."""
        text = self._text
        if isinstance(text.get("moe_layers"), list):
            return index in text["moe_layers"]
        if index in (text.get("mlp_only_layers") or ()) or index < int(text.get("first_k_dense_replace") or 0):
            return False
        step = int(text.get("interleave_moe_layer_step") or text.get("decoder_sparse_step") or 1)
        frequency = text.get("moe_layer_freq") or 1
        if text.get("expert_layer_period"):
            return index % int(text["expert_layer_period"]) == int(text.get("expert_layer_offset", 0))
        return (index + 1) % step == 0 and index % (frequency if isinstance(frequency, int) else 1) == 0
