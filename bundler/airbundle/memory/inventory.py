"""The tensors a configuration implies, for models whose files are not at hand: names, counts and sizes.

Names are those of the common checkpoints, so that `weights.plan_weights` sorts them like real headers. Where a
checkpoint is at hand its headers are exact and are used instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airbundle.memory.config import normalized, reads_config, whole
from airbundle.memory.packing import Packing, packing
from airbundle.memory.roles import layer_roles
from airbundle.memory.shape import (
    Attention,
    ModelShape,
    dense_width,
    is_pure_mamba,
    is_sparse,
    read_shape,
    shared_width,
)
from airbundle.memory.weights import Tensor
from airbundle_onsite.errors import UsageError

# Activations of feed-forwards with two matrices; with three, the gate's is a smooth one.
_TWO_MATRICES = frozenset({"relu", "relu2", "xielu"})


@reads_config
def infer_tensors(config: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """All tensors of the model proper.

    Raises:
        UsageError: see `packing.packing` and `shape.read_shape`; or the layers share or adapt their weights in a way
            that the configuration does not tell.
    """
    shape, text = read_shape(config), normalized(config)
    if text.get("num_mem_blocks") or text.get("adapter_rank"):
        raise UsageError(
            "the layers of this model share their weights, with adapters; config.json does not tell their sizes",
            remedy="give the directory with the weights, whose headers are exact",
        )
    made = _Maker(text, shape, packing(config, shape))
    return (*made.all(), *_vision(config))


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the output layer is the embedding."""
    return bool(normalized(config).get("tie_word_embeddings", False))


class _Maker:
    def __init__(self, text: Mapping[str, Any], shape: ModelShape, sizes: Packing) -> None:
        self._text, self._shape, self._sizes = text, shape, sizes
        self._hidden = shape.hidden
        self._roles = layer_roles(text, shape.layers)
        self._model = str(text.get("model_type", ""))

    def all(self) -> Iterator[Tensor]:
        plain, text = self._sizes.plain, self._text
        embedding = self._shape.vocab * self._hidden * plain
        yield Tensor("model.embed_tokens.weight", embedding)
        if not text.get("tie_word_embeddings", False):
            yield Tensor("lm_head.weight", embedding)
        yield Tensor("model.norm.weight", self._hidden * plain)
        each = whole(text, "hidden_size_per_layer_input")
        if each:
            width = each * self._shape.layers
            rows = whole(text, "vocab_size_per_layer_input") or self._shape.vocab
            yield Tensor("model.embed_tokens_per_layer.weight", rows * width * plain)
            yield Tensor("model.per_layer_model_projection.weight", self._hidden * width * plain)
        for index in range(self._shape.layers):
            yield from self._layer(f"model.layers.{index}", index)
        for number in range(self._shape.draft_layers):  # like the last layer, with a projection into it
            name = f"model.layers.{self._shape.layers + number}"
            yield Tensor(f"{name}.eh_proj.weight", 2 * self._hidden * self._hidden * plain)
            yield from self._layer(name, self._last_attention())

    def _last_attention(self) -> int:
        with_attention = [index for index, role in enumerate(self._roles) if role in ("full", "sliding")]
        return with_attention[-1] if with_attention else self._shape.layers - 1

    def _layer(self, name: str, index: int) -> Iterator[Tensor]:
        yield Tensor(f"{name}.input_layernorm.weight", self._hidden * self._sizes.plain, 2)
        makers = {"mamba": self._mamba, "delta": self._delta, "kda": self._kda, "conv": self._conv}
        for kind in self._roles[index].split("+"):
            if kind in makers:
                yield from makers[kind](f"{name}.{kind}")
            elif kind == "lightning":
                yield from self._heads(f"{name}.self_attn", self._shape.kv_heads, self._shape.head_dim, 0)
            elif kind != "mlp":
                yield from self._attention(f"{name}.self_attn", index)
        each = whole(self._text, "hidden_size_per_layer_input")
        if each:
            yield Tensor(f"{name}.per_layer_projection.weight", self._hidden * each * self._sizes.plain, 2)
        if self._has_feed_forward(index):
            yield from self._feed_forward(f"{name}.mlp", index)

    def _has_feed_forward(self, index: int) -> bool:
        """With a one-letter pattern a layer is a mixer or a feed-forward, in a pure Mamba a mixer; elsewhere both."""
        pattern = self._text.get("hybrid_override_pattern")
        if isinstance(pattern, str):
            return self._roles[index] == "mlp"
        if is_pure_mamba(self._text):
            return False
        blocks = self._text.get("block_configs")
        return not (isinstance(blocks, list) and (blocks[index].get("ffn") or {}).get("no_op"))

    def _matrix(self, name: str, rows: int, columns: int, each: float | None = None, count: int = 1) -> Tensor:
        return Tensor(name, round(rows * columns * (self._sizes.linear if each is None else each)), count)

    def _attention(self, name: str, index: int) -> Iterator[Tensor]:
        if self._shape.latent:
            yield from self._latent(name)
            return
        own = next((cache for cache in self._shape.caches[index] if isinstance(cache, Attention)), None)
        if own is None:  # reuses another layer's keys and values, but has its own queries
            own = Attention("full", 0, self._shape.head_dim, self._shape.head_dim)
        yield from self._heads(name, own.kv_heads, own.key_dim, own.value_dim)

    def _heads(self, name: str, kv_heads: int, key_dim: int, value_dim: int) -> Iterator[Tensor]:
        text, heads, plain, each = self._text, self._shape.heads, self._sizes.plain, self._sizes.attention
        gate = 2 if text.get("attn_output_gate") or "linear_num_value_heads" in text else 1
        same = bool(text.get("attention_k_eq_v")) and key_dim == whole(text, "global_head_dim")
        yield self._matrix(f"{name}.q_proj.weight", self._hidden, heads * key_dim * gate, each)
        yield self._matrix(f"{name}.k_proj.weight", self._hidden, kv_heads * key_dim, each)
        if not same:  # else the keys serve as values too
            yield self._matrix(f"{name}.v_proj.weight", self._hidden, kv_heads * (value_dim or key_dim), each)
        yield self._matrix(f"{name}.o_proj.weight", heads * (value_dim or key_dim), self._hidden, each)
        if any(text.get(key) for key in ("attention_bias", "qkv_bias", "add_qkv_bias", "use_qkv_bias")):
            yield Tensor(f"{name}.q_proj.bias", heads * key_dim * plain)
            yield Tensor(f"{name}.k_proj.bias", kv_heads * (key_dim + value_dim) * plain)

    def _latent(self, name: str) -> Iterator[Tensor]:
        text, heads, each = self._text, self._shape.heads, self._sizes.attention
        nope, rope, value = (whole(text, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        latent, query = whole(text, "kv_lora_rank"), whole(text, "q_lora_rank")
        if query:
            yield self._matrix(f"{name}.q_a_proj.weight", self._hidden, query, each)
            yield self._matrix(f"{name}.q_b_proj.weight", query, heads * (nope + rope), each)
        else:
            yield self._matrix(f"{name}.q_proj.weight", self._hidden, heads * (nope + rope), each)
        yield self._matrix(f"{name}.kv_a_proj_with_mqa.weight", self._hidden, latent + rope, each)
        yield self._matrix(f"{name}.kv_b_proj.weight", latent, heads * (nope + value), each)
        yield self._matrix(f"{name}.o_proj.weight", heads * value, self._hidden, each)
        if text.get("mla_use_output_gate"):
            yield self._matrix(f"{name}.g_proj.weight", self._hidden, heads * value, each)
        index_dim, index_heads = whole(text, "index_head_dim"), whole(text, "index_n_heads")
        if index_dim and index_heads:
            yield self._matrix(f"{name}.indexer.wq_b.weight", query or self._hidden, index_heads * index_dim)
            yield self._matrix(f"{name}.indexer.wk.weight", self._hidden, index_dim)
            yield self._matrix(f"{name}.indexer.weights_proj.weight", self._hidden, index_heads, self._sizes.plain)

    def _mamba(self, name: str) -> Iterator[Tensor]:
        text, hidden, state = self._text, self._hidden, self._shape.state[0]
        size = whole(text, "mamba_d_state")
        inner, plain = state.conv, self._sizes.plain
        if state.heads:
            extra = state.groups * state.group
            yield self._matrix(f"{name}.in_proj.weight", hidden, 2 * inner + extra + state.heads)
            yield Tensor(f"{name}.conv1d.weight", (inner + extra) * (state.kernel + 2) * plain)
        else:
            rank = whole(text, "mamba_dt_rank") or -(-hidden // 16)
            yield self._matrix(f"{name}.in_proj.weight", hidden, 2 * inner)
            yield self._matrix(f"{name}.x_proj.weight", inner, rank + 2 * size)
            yield self._matrix(f"{name}.dt_proj.weight", rank + 1, inner)
            yield Tensor(f"{name}.conv1d.weight", inner * (state.kernel + 2) * plain)
            yield Tensor(f"{name}.A_log", inner * size * 4)
        yield self._matrix(f"{name}.out_proj.weight", inner, hidden)

    def _delta(self, name: str) -> Iterator[Tensor]:
        text = self._text
        keys = whole(text, "linear_num_key_heads") * whole(text, "linear_key_head_dim")
        values = whole(text, "linear_num_value_heads") * whole(text, "linear_value_head_dim")
        yield self._matrix(f"{name}.in_proj_qkvz.weight", self._hidden, 2 * keys + 2 * values)
        yield self._matrix(f"{name}.in_proj_ba.weight", self._hidden, 2 * whole(text, "linear_num_value_heads"))
        yield Tensor(f"{name}.conv1d.weight", (2 * keys + values) * 4 * self._sizes.plain)
        yield self._matrix(f"{name}.out_proj.weight", values, self._hidden)

    def _kda(self, name: str) -> Iterator[Tensor]:
        own = self._text["linear_attn_config"]
        width, dim = own["num_heads"] * own["head_dim"], own["head_dim"]
        yield self._matrix(f"{name}.q_proj.weight", self._hidden, width, count=4)  # queries, keys, values, output
        yield self._matrix(f"{name}.f_a_proj.weight", self._hidden + width, dim, count=2)
        yield self._matrix(f"{name}.b_proj.weight", self._hidden, own["num_heads"])

    def _conv(self, name: str) -> Iterator[Tensor]:
        width = whole(self._text, "conv_dim") or self._hidden
        yield self._matrix(f"{name}.in_proj.weight", self._hidden, 3 * width)
        yield self._matrix(f"{name}.out_proj.weight", width, self._hidden)

    def _feed_forward(self, name: str, index: int) -> Iterator[Tensor]:
        matrices, hidden = self._matrices(), self._hidden
        if not is_sparse(self._text, index):
            yield self._matrix(f"{name}.proj.weight", hidden, self._dense_width(index), count=matrices)
            return
        experts, width, plain = self._shape.experts, self._shape.expert_width, self._sizes.plain
        narrow = whole(self._text, "expert_hidden_size")
        number = matrices * experts
        yield self._matrix(f"{name}.experts.weight", narrow or hidden, width, self._sizes.expert, number)
        if narrow:  # the experts work in a narrower space, with a projection into it and one out of it
            yield Tensor(f"{name}.router_latent_proj.weight", hidden * narrow * plain, 2)
        yield Tensor(f"{name}.gate.weight", hidden * experts * plain)
        if self._sizes.expert != self._sizes.linear and self._text.get("attention_bias"):
            yield Tensor(f"{name}.experts.bias", experts * (2 * width + hidden) * plain)
        shared = shared_width(self._text)
        if shared:
            yield self._matrix(f"{name}.shared_experts.weight", hidden, shared, count=matrices)

    def _dense_width(self, index: int) -> int:
        blocks = self._text.get("block_configs")
        if isinstance(blocks, list):
            own = blocks[index].get("ffn") or {}
            if own.get("intermediate_size"):
                return int(own["intermediate_size"])
            if own.get("ffn_mult"):
                wide = int(2 * own["ffn_mult"] * self._hidden / 3)
                return -(-wide // 256) * 256
        # A model of a family with experts, without any: its shared feed-forward is all there is.
        own_width = whole(self._text, "shared_intermediate_size")
        return own_width or dense_width(self._text, index)

    def _matrices(self) -> int:
        act = str(self._text.get("hidden_act") or "")
        return 2 if act in _TWO_MATRICES or self._text.get("gated_mlp") is False else 3


def _vision(config: Mapping[str, Any]) -> Iterator[Tensor]:
    """An encoder of the usual kind, roughly: attention and feed-forward of each layer."""
    for key in ("vision_config", "audio_config"):
        own = config.get(key)
        if not isinstance(own, Mapping):
            continue
        hidden = whole(own, "hidden_size") or whole(own, "embed_dim") or whole(own, "width")
        layers = whole(own, "num_hidden_layers") or whole(own, "depth") or whole(own, "layers")
        wide = whole(own, "intermediate_size") or int(hidden * float(own.get("mlp_ratio") or 4))
        matrices = 3 if own.get("hidden_act") in ("silu", "swiglu") else 2
        yield Tensor(
            f"{key.removesuffix('_config')}_model.layers.weight", (4 * hidden + matrices * wide) * hidden * 2, layers
        )
