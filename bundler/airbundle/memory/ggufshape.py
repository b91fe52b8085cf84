"""ModelShape from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airbundle.memory.config import believable_layers
from airbundle.memory.roles import layer_roles
from airbundle.memory.shape import Attention, Cache, Kind, ModelShape, State
from airbundle_onsite.errors import UsageError

# Every n-th layer attends to everything, by architecture: the file does not say.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma4": 6, "cohere2": 4, "gpt-oss": 2, "olmo3": 4, "exaone4": 4}
_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}


def shape_of_gguf(metadata: Mapping[str, Any]) -> ModelShape:
    """Read it.

    Args:
        metadata: as `gguf.read_header` keeps it.

    Raises:
        UsageError: a number that the formulas need is missing, naming it.
    """
    return _Reader(metadata).shape()


class _Reader:
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._architecture = str(metadata.get("general.architecture", ""))

    def _get(self, key: str, default: Any = 0) -> Any:
        return self._metadata.get(f"{self._architecture}.{key}", default)

    def _number(self, key: str, default: int = 0) -> int:
        value = self._get(key, default)
        return max((int(item) for item in value), default=0) if isinstance(value, (tuple, list)) else int(value)

    def _at(self, key: str, layer: int, default: int = 0) -> int:
        value = self._get(key, default)
        return int(value[layer]) if isinstance(value, (tuple, list)) else int(value)

    def _need(self, key: str) -> int:
        found = self._number(key)
        if found <= 0:
            raise UsageError(f"the GGUF header has no {self._architecture}.{key}", remedy="use another GGUF file")
        return found

    def shape(self) -> ModelShape:
        hidden, heads = self._need("embedding_length"), self._number("attention.head_count")
        drafts = self._number("nextn_predict_layers")
        if not heads and not self._number("ssm.state_size"):
            self._need("attention.head_count")
        layers = believable_layers(self._need("block_count"), f"{self._architecture}.block_count") - drafts
        head_dim = self._number("attention.key_length") or (hidden // heads if heads else 0)
        experts, used = self._number("expert_count"), self._number("expert_used_count")
        width = self._number("expert_feed_forward_length") or self._number("feed_forward_length")
        shared = self._number("expert_shared_feed_forward_length") or self._number("expert_shared_count") * width
        vocab = self._metadata.get("tokenizer.ggml.tokens")
        return ModelShape(
            model_type=self._architecture,
            architecture="",
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=self._number("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab=self._number("vocab_size") or (vocab if isinstance(vocab, int) else len(vocab or ())),
            dense=self._number("feed_forward_length"),
            active=used * width if experts else 0,
            shared=shared if experts else 0,
            max_context=self._number("context_length"),
            caches=tuple(self._layer(index, layers, hidden, heads, head_dim) for index in range(layers)),
            experts=experts,
            experts_per_token=used if experts else 0,
            expert_width=width if experts else 0,
            draft_layers=drafts,
            quantization="gguf",
        )

    def _layer(self, index: int, layers: int, hidden: int, heads: int, head_dim: int) -> tuple[Cache, ...]:
        kv_heads = self._at("attention.head_count_kv", index, heads)
        found: list[Cache] = []
        roles = self._roles(layers)
        if self._number("ssm.state_size") and (not kv_heads or roles[index] != "full" or self._both()):
            per_layer = isinstance(self._get("feed_forward_length"), (tuple, list))
            if not (
                per_layer and self._architecture.startswith("nemotron_h") and self._at("feed_forward_length", index)
            ):
                found.append(self._state())
        if kv_heads and (roles[index] in ("full", "sliding", "chunked")):
            found.append(self._attention(kv_heads, head_dim, roles[index]))
        return tuple(found)

    def _both(self) -> bool:
        """Attention and Mamba in every layer: recurrent sizes, and key-value heads that are the same everywhere."""
        return self._architecture == "falcon-h1"

    def _roles(self, layers: int) -> tuple[str, ...]:
        window = self._number("attention.sliding_window")
        listed = self._get("attention.sliding_window_pattern", None)
        if isinstance(listed, (tuple, list)):
            return tuple("sliding" if flag and window else "full" for flag in listed[:layers])
        interval = self._number("full_attention_interval") or _INTERVALS.get(self._architecture, 0)
        pattern = int(listed or 0) or _PATTERNS.get(self._architecture, 0)
        text: dict[str, Any] = {"num_attention_heads": 1}
        if interval and self._number("ssm.state_size"):
            text |= {"full_attention_interval": interval, "mamba_d_state": 1}
        elif window and pattern:
            text |= {"sliding_window": window, "sliding_window_pattern": pattern}
        return layer_roles(text, layers)

    def _attention(self, kv_heads: int, head_dim: int, role: str) -> Attention:
        latent = self._number("attention.kv_lora_rank")
        if latent:
            return Attention("mla", 1, latent + self._number("rope.dimension_count"), 0)
        heads = self._number("attention.head_count")  # the width of values does not follow that of keys
        value = self._number("attention.value_length") or (self._need("embedding_length") // heads if heads else 0)
        kind: Kind = "sliding" if role == "sliding" else "full"
        window = self._number("attention.sliding_window") if kind == "sliding" else 0
        swa = self._number("attention.key_length_swa") if kind == "sliding" else 0
        return Attention(kind, kv_heads, swa or head_dim, swa or value, window)

    def _state(self) -> State:
        """Mamba, Mamba 2 and gated delta networks keep the same numbers of values under these keys."""
        size, inner = self._need("ssm.state_size"), self._need("ssm.inner_size")
        groups = self._number("ssm.group_count")
        heads = self._number("ssm.time_step_rank") if groups else 0
        return State(heads, inner, self._need("ssm.conv_kernel") - 1, inner * size, 2 * size, groups, "float32")
