"""How many requests a cache holds: what engines make of the bytes that are left for it.

vLLM keeps one pool of equally large pages for all layers. Layers alike are put in groups of equally many; a page of the
pool serves one layer of a group, so every kind of layer costs a request whole pages, and models that mix kinds pay for
padding: small windows as much as long ones, and attention blocks grown until they are as large as a recurrent state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from airbundle.memory.kv import (
    KvLayout,
    growing_bytes,
    held_blocks,
    layer_state_bytes,
    stage_caches,
    state_bytes,
    token_bytes,
)
from airbundle.memory.shape import Attention, Cache, ModelShape, State
from airbundle_onsite.contract.record import record

_PADDED_GROUPS = 1.5


@record
class Group:
    """Layers alike that share a block table.

    Attributes:
        cache: of each of them.
        block: tokens per page; 0 for recurrent layers.
        tables: how many such groups there are.
    """

    cache: Cache
    block: int
    tables: int


@record
class Pool:
    """vLLM's pool of pages.

    Attributes:
        page: bytes that one page number stands for on the fullest rank, all layers of a group together.
        groups: what draws on it.
    """

    page: float
    groups: tuple[Group, ...]

    def pages(self, tokens: int, layout: KvLayout) -> int:
        """Pages that one request of `tokens` holds at most."""
        return sum(group.tables * _pages(group, tokens, layout) for group in self.groups)


def _pages(group: Group, tokens: int, layout: KvLayout) -> int:
    if isinstance(group.cache, State):
        return 1 + layout.drafted
    return held_blocks(group.cache, tokens, layout, group.block)


def sequence_bytes(shape: ModelShape, tokens: int, layout: KvLayout) -> float:
    """Bytes that one request of `tokens` holds at most, on the fullest rank, paging and padding included."""
    if layout.paging == "grouped":
        pool = pool_of(shape, layout)
        return pool.pages(tokens, layout) * pool.page
    if layout.paging == "pooled" and layout.window_share:
        windowed = [cache for cache in shape.attention if not cache.grows]
        blocks = math.ceil(tokens / layout.block) * layout.block
        share = layout.window_share if any(cache.grows for cache in shape.attention) else 1
        per_token = sum(token_bytes(cache, layout) for cache in windowed) * share / layout.parallel.pipeline
        return blocks * (growing_bytes(shape, layout) + per_token) + state_bytes(shape, layout)
    return max(
        sum(
            held_blocks(cache, tokens, layout, layout.block) * layout.block * token_bytes(cache, layout)
            for cache in caches
            if isinstance(cache, Attention)
        )
        for caches in stage_caches(shape, layout)
    ) + state_bytes(shape, layout)


def requests_held(shape: ModelShape, available: float, tokens: int, layout: KvLayout) -> float:
    """How many requests of `tokens` a cache of `available` bytes holds at once (on the fullest rank); a fraction too.

    This is what vLLM logs as "Maximum concurrency", and times `tokens` as the size of its cache in tokens.
    """
    if available <= 0:
        return 0.0
    if layout.paging == "grouped":
        pool = pool_of(shape, layout)
        return available // pool.page / max(1, pool.pages(tokens, layout)) if pool.page else math.inf
    states = state_bytes(shape, layout)
    if layout.paging == "pooled" and layout.state_share and states:
        of_states = available * layout.state_share / (1 + layout.state_share)
        per_request = sequence_bytes(shape, tokens, layout) - states
        by_tokens = (available - of_states) / per_request if per_request else math.inf
        return min(of_states / states, by_tokens)
    needed = sequence_bytes(shape, tokens, layout)
    return available / needed if needed else math.inf


@lru_cache(maxsize=256)
def pool_of(shape: ModelShape, layout: KvLayout) -> Pool:
    """The pages of vLLM for a model."""
    caches = [cache for layer in shape.caches for cache in layer]
    if not caches:
        return Pool(0, ())
    if _is_uniform(caches):
        page = max(_sum_pages(stage, layout) for stage in stage_caches(shape, layout))
        return Pool(page, (Group(_longest(caches), layout.block, 1),))
    if not shape.attention:
        page = max(
            (sum(layer_state_bytes(cache, layout) for cache in stage if isinstance(cache, State)))
            for stage in stage_caches(shape, layout)
        )
        return Pool(page, (Group(caches[0], 0, 1),))
    return _mixed_pool(shape, caches, layout)


def _is_uniform(caches: Sequence[Cache]) -> bool:
    """Whether all layers hold equally many tokens: all grow, or all have the same window."""
    if any(isinstance(cache, State) for cache in caches):
        return False
    return len({(cache.grows, cache.kind if not cache.grows else "", cache.window) for cache in caches}) == 1  # type: ignore[union-attr]


def _longest(caches: Sequence[Cache]) -> Cache:
    return caches[0]


def _sum_pages(caches: Sequence[Cache], layout: KvLayout) -> float:
    return sum(token_bytes(cache, layout) * layout.block for cache in caches if isinstance(cache, Attention))


def _mixed_pool(shape: ModelShape, caches: Sequence[Cache], layout: KvLayout) -> Pool:
    block = _attention_block(shape, layout)
    sizes = {cache: token_bytes(cache, layout) * block for cache in caches if isinstance(cache, Attention)}
    page = max([*sizes.values(), *(layer_state_bytes(cache, layout) for cache in shape.state)])
    counts: dict[Cache, int] = {}
    for cache in caches:
        counts[cache] = counts.get(cache, 0) + 1
    size = min(counts.values())
    if max(counts.values()) < size * _PADDED_GROUPS:
        size = max(counts.values())
    groups = []
    for cache, count in counts.items():
        own = 0
        if isinstance(cache, Attention):
            # A page of smaller layers holds more tokens, if it can hold a whole number of their blocks.
            own = block * int(page // sizes[cache]) if page % sizes[cache] == 0 else block
        groups.append(Group(cache, own, math.ceil(count / size)))
    return Pool(page * _layers_per_rank(counts, size, layout), tuple(groups))


def _attention_block(shape: ModelShape, layout: KvLayout) -> int:
    """Tokens per attention page: grown in steps of a block until it is as large as the largest recurrent state."""
    if not shape.state:
        return layout.block
    state = max(layer_state_bytes(cache, layout) for cache in shape.state)
    token = max(token_bytes(cache, layout) for cache in shape.attention)
    return layout.block * max(1, math.ceil(state / (layout.block * token)))


def _layers_per_rank(counts: dict[Cache, int], size: int, layout: KvLayout) -> int:
    """Layers of one group on the fullest pipeline stage; groups are spread evenly over the stages."""
    return math.ceil(size / layout.parallel.pipeline)
