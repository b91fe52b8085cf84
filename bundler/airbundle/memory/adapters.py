"""Memory of what stands beside a model: LoRA slots, a draft model, the model's own extra layers."""

from __future__ import annotations

from dataclasses import replace

from airbundle.memory.kv import KvLayout, growing_bytes
from airbundle.memory.parallel import Parallel
from airbundle.memory.shape import Attention, ModelShape
from airbundle.memory.weights import WeightPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

_BYTES = 2
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@record
class Adapters:
    """LoRA adapters that are held at once.

    Attributes:
        slots: how many.
        rank: the largest of theirs; slots are as large as that.
        modules: projections they may change; all linear ones unless said otherwise.
    """

    slots: int
    rank: int
    modules: tuple[str, ...] = _MODULES


def lora_bytes(shape: ModelShape, adapters: Adapters, parallel: Parallel) -> int:
    """Bytes of the adapters' slots on each rank, which engines set aside at the start.

    The narrow matrix of a projection by columns is on every rank, and its wide one divided; by rows it is the
    other way round.

    Raises:
        UsageError: a module is not known, or the model has experts in place of a dense feed-forward that is asked for.
    """
    unknown = sorted(set(adapters.modules) - set(_MODULES))
    if unknown:
        raise UsageError(f"LoRA modules {', '.join(unknown)} are not known", remedy=f"known: {', '.join(_MODULES)}")
    ranks, hidden = parallel.tensor, shape.hidden
    per_rank = 0.0
    for cache in shape.attention:
        kv = cache.kv_heads * cache.key_dim / min(ranks, cache.kv_heads)
        queries = shape.heads * cache.key_dim / ranks
        columns = {"q_proj": queries, "k_proj": kv, "v_proj": kv}
        per_rank += sum(hidden + columns[name] for name in adapters.modules if name in columns)
        per_rank += (queries + hidden) * ("o_proj" in adapters.modules)
    if shape.dense:
        width = shape.dense / ranks
        per_rank += shape.layers * sum(hidden + width for name in adapters.modules if name in _MODULES[4:])
    return round(per_rank / parallel.pipeline * adapters.rank * adapters.slots * _BYTES)


@record
class Draft:
    """A smaller model that drafts tokens for the large one, on the same ranks."""

    shape: ModelShape
    weights: WeightPlan


def draft_bytes(draft: Draft, layout: KvLayout) -> tuple[int, float]:
    """Bytes of its weights on each rank, and of its cache per token."""
    parallel = Parallel(layout.parallel.tensor)
    return draft.weights.per_rank(parallel, allocated=True), growing_bytes(
        draft.shape, replace(layout, parallel=parallel)
    )


def with_draft_layers(shape: ModelShape) -> ModelShape:
    """The shape with the caches of its own extra layers, which are like its last attention layer.

    Raises:
        UsageError: it has none.
    """
    own = [cache for cache in shape.attention if isinstance(cache, Attention)]
    if not shape.draft_layers or not own:
        raise UsageError(
            "the model has no layers of its own that predict tokens ahead", remedy="name a draft model instead"
        )
    return replace(shape, caches=(*shape.caches, *(((own[-1],),) * shape.draft_layers)))
