"""How many bytes of weights each rank holds: from tensor headers where there are some, else from the configuration.

A tensor is divided among the ranks or copied to each according to its role, found by its name. The rules are those
of the Megatron split that vLLM, SGLang and TensorRT-LLM share: projections by column or row, embeddings by
vocabulary, keys and values by head (and copied when there are fewer heads than ranks), norms and routers copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from airbundle_onsite.contract.record import record

Split = Literal["ranks", "kv", "copied"]


@record
class Tensor:
    """One tensor, or `count` equal ones.

    Attributes:
        name: as in the file, e.g. ``model.layers.0.self_attn.q_proj.weight``.
        size: bytes of one.
        count: how many alike.
    """

    name: str
    size: int
    count: int = 1


@record
class WeightPlan:
    """Bytes of a model's weights by what tensor parallelism does with them.

    Attributes:
        divided: split among all ranks.
        by_kv_head: split among as many ranks as there are key-value heads, then copied.
        copied: on every rank.
        kv_heads: key-value heads.
        skipped: bytes of tensors the engine does not load (draft layers, rotary tables).
    """

    divided: int
    by_kv_head: int
    copied: int
    kv_heads: int
    skipped: int = 0

    @property
    def total(self) -> int:
        """Bytes of the tensors that are loaded, once each."""
        return self.divided + self.by_kv_head + self.copied

    def per_rank(self, tensor_parallel: int, pipeline_parallel: int = 1) -> int:
        """Bytes on the fullest rank; pipeline stages are taken as equal, with the copied part on each."""
        by_head = self.by_kv_head / min(tensor_parallel, max(1, self.kv_heads))
        return round((self.divided / tensor_parallel + by_head) / pipeline_parallel + self.copied)


_COPIED = re.compile(
    r"norm|\.bias$|rotary|\.gate\.weight$|\.gate\.e_score_correction_bias$|router|shared_expert_gate|kv_a_proj"
    r"|q_a_proj|fused_qkv_a_proj|conv1d|A_log|dt_bias|sinks|vision|visual|mm_projector|multi_modal"
)
_BY_KV_HEAD = re.compile(r"\.(k_proj|v_proj)\.(weight|qweight|qzeros|scales|weight_scale\w*|weight_packed)$")
_SKIPPED = re.compile(r"rotary_emb\.inv_freq|\.g_idx$|masked_bias$|attn\.bias$")
_LAYER = re.compile(r"\blayers\.(\d+)\.")


def plan_weights(tensors: Iterable[Tensor], *, layers: int, kv_heads: int, tied: bool) -> WeightPlan:
    """Sort tensors into what is divided and what is copied.

    Args:
        tensors: all of a model's.
        layers: of the model proper; tensors of later layers belong to draft heads and are not loaded.
        kv_heads: key-value heads.
        tied: whether the output layer is the embedding; a copy of it in the file is then not loaded.
    """
    divided = by_head = copied = skipped = 0
    for tensor in tensors:
        size = tensor.size * tensor.count
        if _is_skipped(tensor.name, layers, tied):
            skipped += size
        elif _COPIED.search(tensor.name):
            copied += size
        elif _BY_KV_HEAD.search(tensor.name):
            by_head += size
        else:
            divided += size
    return WeightPlan(divided, by_head, copied, kv_heads, skipped)


def _is_skipped(name: str, layers: int, tied: bool) -> bool:
    found = _LAYER.search(name)
    beyond = found is not None and int(found[1]) >= layers
    return beyond or bool(_SKIPPED.search(name)) or (tied and name.startswith("lm_head"))
