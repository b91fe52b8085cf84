"""A bound on the time to the first token, by arithmetic: what a prompt costs, and how many can be read a second."""

from __future__ import annotations

import tomllib
from functools import cache

from airbundle.choose.request import Layout, Request
from airbundle.choose.situation import Target
from airbundle.choose.table import DATA
from airbundle.memory.shape import ModelShape
from airbundle_onsite.contract.checks import CheckResult, Status

_EFFICIENCY = (0.35, 0.65)
"""Share of the data sheet's throughput that engines reach while reading prompts, from bad to good."""


@cache
def _flops() -> dict[str, float]:
    table: dict[str, float] = tomllib.loads((DATA / "gpus.toml").read_text(encoding="utf-8"))["flops"]
    return table


def active_parameters(shape: ModelShape) -> float:
    """Parameters that one token passes, without the embedding: projections, feed-forward, active and shared experts."""
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    widths = [width for width in (shape.active + shape.shared, shape.dense) if width]
    feed_forward = 3 * shape.hidden * (widths[0] if widths else 4 * shape.hidden)
    return shape.layers * (attention + feed_forward)


def prefill_seconds(shape: ModelShape, tokens: int, flops: float) -> tuple[float, float]:
    """Seconds to read a prompt alone, at good and at bad efficiency: 2 operations per parameter and token."""
    work = 2 * active_parameters(shape) * tokens
    return work / (flops * _EFFICIENCY[1]), work / (flops * _EFFICIENCY[0])


def first_token_check(shape: ModelShape, target: Target, layout: Layout, request: Request) -> CheckResult | None:
    """Whether the wanted first token is within reach; None when nothing is wanted or the GPU's speed is not known.

    A prompt that arrives while others are being read waits for them, so the bound also says how many prompts a second
    the GPUs can take before a queue grows.
    """
    speed = _flops().get(target.kind)
    if not request.ttft_ms or speed is None:
        return None
    tokens = request.prompt or (request.typical or request.context) // 2
    fast, slow = prefill_seconds(shape, tokens, speed * layout.tensor)
    rate = (layout.copies * layout.pipeline / slow, layout.copies * layout.pipeline / fast)
    waiting = request.concurrency / rate[0], request.concurrency / rate[1]
    wanted = request.ttft_ms / 1000
    status: Status = "fail" if fast > wanted else "warn"
    return CheckResult(
        "plan.first-token",
        status,
        f"reading a prompt of {tokens} tokens alone takes {fast * 1000:.0f} to {slow * 1000:.0f} ms; the GPUs together "
        f"read {rate[0]:.0f} to {rate[1]:.0f} such prompts a second, so {request.concurrency} that arrive in one "
        f"moment are through after {waiting[1]:.1f} to {waiting[0]:.1f} s",
        expected=f"the first token within {request.ttft_ms} ms",
        actual=f"{fast * 1000:.0f} to {slow * 1000:.0f} ms without waiting",
        remedy="measure it at the site with --bench; it holds while prompts arrive more slowly than they are read, and "
        "prefixes that are cached cost nothing"
        if status == "warn"
        else "use a faster GPU, share each layer among GPUs with NVLink, quantise, or shorten the prompt",
        evidence=(
            f"{active_parameters(shape) / 1e9:.1f} billion parameters a token, {speed / 1e12:.0f} TFLOP/s by the data "
            f"sheet, {_EFFICIENCY[0]:.0%} to {_EFFICIENCY[1]:.0%} of it reached",
        ),
    )
