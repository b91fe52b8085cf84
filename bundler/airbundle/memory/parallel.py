"""How a model is spread over GPUs, and when it cannot be."""

from __future__ import annotations

from airbundle.memory.shape import ModelShape
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError


@record
class Parallel:
    """Ranks.

    Attributes:
        tensor: parts of each layer.
        pipeline: stages, each with some of the layers.
        experts: whether each rank holds whole experts, instead of a part of every one.
    """

    tensor: int = 1
    pipeline: int = 1
    experts: bool = False

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline


def stages(layers: int, count: int) -> tuple[tuple[int, int], ...]:
    """First layer, and the one after the last, of each pipeline stage.

    Left-over layers go to the stages before the last one, from the back, since the last also has the output layer
    (as vLLM and SGLang do).
    """
    sizes = [layers // count] * count
    for number in range(layers % count):
        sizes[-2 - number] += 1
    ends = [sum(sizes[: number + 1]) for number in range(count)]
    return tuple((end - size, end) for end, size in zip(ends, sizes, strict=True))


def check_parallel(shape: ModelShape, parallel: Parallel) -> None:
    """Refuse what the engines refuse.

    Raises:
        UsageError: `details` says everything that cannot be divided; the remedy names sizes that can.
    """
    problems = parallel_problems(shape, parallel)
    if problems:
        fitting = [str(size) for size in (1, 2, 4, 8, 16) if not parallel_problems(shape, Parallel(size))]
        raise UsageError(
            f"the model cannot be spread over {parallel.tensor} × {parallel.pipeline} GPUs",
            details=problems,
            remedy=f"tensor parallel sizes that work: {', '.join(fitting)}",
        )


def parallel_problems(shape: ModelShape, parallel: Parallel) -> list[str]:
    """Why a model cannot be spread so; empty when it can."""
    ranks = parallel.tensor
    if ranks < 1 or parallel.pipeline < 1:
        return [f"{ranks} ranks and {parallel.pipeline} stages: both must be 1 or more"]
    problems = [*_head_problems(shape, ranks), *_width_problems(shape, parallel)]
    if (-(-shape.vocab // 64) * 64) % ranks:
        problems.append(f"the vocabulary of {shape.vocab}, padded to a multiple of 64, is not divisible by {ranks}")
    if parallel.pipeline > shape.layers:
        problems.append(f"{shape.layers} layers cannot make {parallel.pipeline} stages")
    return problems


def _head_problems(shape: ModelShape, ranks: int) -> list[str]:
    problems = []
    if shape.heads % ranks:
        problems.append(f"{shape.heads} attention heads are not divisible by {ranks}")
    for heads in sorted({cache.kv_heads for cache in shape.attention if cache.kind != "mla"}):
        if heads % ranks and ranks % heads:
            problems.append(f"{heads} key-value heads can neither be divided among {ranks} ranks nor copied evenly")
    for heads in sorted({cache.heads for cache in shape.state if cache.heads}):
        if heads % ranks:
            problems.append(f"{heads} heads of its recurrent layers are not divisible by {ranks}")
    for width in sorted({cache.conv for cache in shape.state if not cache.heads}):
        if width % ranks:
            problems.append(f"the width {width} of its recurrent layers is not divisible by {ranks}")
    return problems


def _width_problems(shape: ModelShape, parallel: Parallel) -> list[str]:
    ranks, problems = parallel.tensor, []
    widths = {"feed-forward": shape.dense, "shared expert": shape.shared}
    if not parallel.experts:
        widths["expert"] = shape.expert_width
    for name, width in widths.items():
        if width % ranks:
            problems.append(f"the {name} width {width} is not divisible by {ranks}")
        elif shape.group and ranks > 1 and (width // ranks) % shape.group:
            problems.append(
                f"the {name} width {width} divided by {ranks} is {width // ranks}, which is no multiple of the "
                f"quantisation's group of {shape.group}"
            )
    return problems
