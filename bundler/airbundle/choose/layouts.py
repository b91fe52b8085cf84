"""Ways of spreading a model over GPUs, best first, each with its reason; and those that are out, with theirs."""

from __future__ import annotations

from airbundle.choose.request import Layout, Rejected
from airbundle.choose.situation import Target
from airbundle.engines.facts import EngineFacts
from airbundle.memory.parallel import Parallel, parallel_problems
from airbundle.memory.shape import ModelShape

_LATENCY = ("interactive", "long-context")


def layouts(
    shape: ModelShape, target: Target, facts: EngineFacts, workload: str
) -> tuple[tuple[Layout, ...], tuple[Rejected, ...]]:
    """Candidates in order of preference.

    A group of GPUs holds one copy of the model. Where only latency counts and NVLink joins the GPUs, large groups come
    first, since each GPU then reads fewer weights for a token. Elsewhere the smallest group that fits comes first, and
    the other GPUs get copies of their own, which need not talk to each other. A model of experts is not copied: its
    engines would share the experts between the copies, which then wait for each other at every layer.
    """
    if not target.gpus:
        return (Layout(reason="no GPU"),), ()
    if "layers" in facts.parallel:
        return (_by_layers(target),), ()
    found: list[Layout] = []
    out: list[Rejected] = []
    sizes = [size for size in range(1, target.gpus + 1) if target.gpus % size == 0]
    wide_first = workload in _LATENCY and target.link == "nvlink"
    for size in sorted(sizes, reverse=wide_first or bool(shape.experts)):
        copies = target.gpus // size
        if copies > 1 and ("data" not in facts.parallel or shape.experts):
            continue
        for tensor in _divisions(size, target.link):
            pipeline = size // tensor
            if pipeline > 1 and "pipeline" not in facts.parallel:
                continue
            experts, problems = _fitting(shape, tensor, pipeline)
            if problems:
                out.append(Rejected(f"tensor parallel {tensor}", problems[0]))
            else:
                reason = _reason(tensor, pipeline, copies, target, wide_first, bool(shape.experts))
                found.append(Layout(tensor, pipeline, copies, reason, experts))
    if not found:  # an engine without copies, on a number of GPUs that the model cannot be divided by
        found.append(Layout(reason=f"one GPU of {target.gpus}: the model cannot be spread over all of them"))
    return tuple(found), tuple(dict.fromkeys(out))


def _fitting(shape: ModelShape, tensor: int, pipeline: int) -> tuple[bool, list[str]]:
    """Whether experts have to stay whole, and what then still speaks against it."""
    problems = parallel_problems(shape, Parallel(tensor, pipeline))
    if not problems or not shape.experts:
        return False, problems
    whole = parallel_problems(shape, Parallel(tensor, pipeline, experts=True))
    return not whole, problems if whole else []


def _divisions(size: int, link: str) -> list[int]:
    """Tensor parallel sizes of a group: all of it over NVLink; over PCIe stages first, since they exchange far less."""
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    return divisors if link != "nvlink" else divisors[::-1]


def _by_layers(target: Target) -> Layout:
    if target.gpus == 1:
        return Layout(reason="one GPU")
    return Layout(1, target.gpus, 1, f"its layers are dealt out to the {target.gpus} GPUs, one after the other")


def _reason(tensor: int, pipeline: int, copies: int, target: Target, wide: bool, experts: bool) -> str:
    link = {"nvlink": "NVLink", "pcie": "PCIe", "none": "PCIe alone"}[target.link]
    parts = []
    if tensor > 1 and target.link == "nvlink":
        why = "the model does not fit fewer"
        if wide or experts:
            why = "each reads a part of the weights for every token"
        parts.append(f"{tensor} GPUs share each layer over NVLink: {why}")
    elif tensor > 1:
        parts.append(f"{tensor} GPUs share each layer over {link}, which costs time in every layer")
    if pipeline > 1:
        parts.append(f"{pipeline} stages of layers, since stages exchange little over {link}")
    if copies > 1:
        what = f"groups of {tensor * pipeline} GPUs" if tensor * pipeline > 1 else "GPUs"
        parts.append(f"{copies} {what} hold a copy each and need not talk to each other")
    return "; ".join(parts) or "one GPU"
