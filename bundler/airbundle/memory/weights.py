"""How many bytes of weights each rank holds: from tensor headers where there are some, else from the configuration.

A tensor is divided among the ranks or copied to each according to its role, found by its name (data/tensors.toml).
The rules are those of the Megatron split that vLLM, SGLang and TensorRT-LLM share: projections by column or row,
embeddings by vocabulary, keys and values by head (and copied when there are fewer heads than ranks), norms, routers and
the down-projections of latent attention copied.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal

from airbundle.memory.config import DATA
from airbundle.memory.parallel import Parallel, stages
from airbundle.memory.shape import ModelShape
from airbundle_onsite.contract.record import record

Role = Literal["skipped", "draft", "vision", "vocab", "output", "experts", "copied", "kv", "qkv", "divided"]

_VOCAB_PADDING = 64
# PyTorch's allocator takes blocks from 10 MiB up from the driver, in steps of 2 MiB.
_LARGE, _STEP = 10 * 1024**2, 2 * 1024**2


@record
class Tensor:
    """One tensor, or `count` equal ones.

    Attributes:
        name: as in the file, e.g. ``model.layers.0.self_attn.q_proj.weight``.
        size: bytes of one.
        count: how many alike.
        dtype: as safetensors or GGUF call it, e.g. ``F32``; empty when not known.
    """

    name: str
    size: int
    count: int = 1
    dtype: str = ""


@record
class Parameter:
    """What the engine allocates in one piece: tensors that it fuses (queries, keys and values; gate and up) are one.

    Attributes:
        layer: its number, or -1 outside the layers.
        role: as the tensors' own; parts of a fused one are told apart below.
        divided, by_kv_head, copied, experts: bytes by what happens to them.
    """

    layer: int
    role: Role
    divided: int = 0
    by_kv_head: int = 0
    copied: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return self.divided + self.by_kv_head + self.copied + self.experts


@record
class WeightPlan:
    """A model's weights by what parallelism does with them.

    Attributes:
        parameters: that are loaded.
        layers, kv_heads, experts, vocab, tied: of the model.
        draft: bytes loaded only when the model's own extra layers speculate.
        skipped: bytes of tensors the engine never loads.
        counted: number of tensors seen.
    """

    parameters: tuple[Parameter, ...]
    layers: int
    kv_heads: int
    experts: int
    vocab: int
    tied: bool
    draft: int = 0
    skipped: int = 0
    counted: int = 0

    @property
    def total(self) -> int:
        """Bytes of the tensors that are loaded, once each, without draft layers."""
        return sum(parameter.total for parameter in self.parameters)

    def per_rank(self, parallel: Parallel, *, draft: bool = False, allocated: bool = False) -> int:
        """Bytes on the fullest rank.

        Args:
            parallel: how the model is spread.
            draft: with the extra layers that predict several tokens (divided like the others).
            allocated: as PyTorch's allocator takes them from the driver, large ones in steps of 2 MiB.
        """
        return max(self.per_stage(parallel, draft=draft, allocated=allocated))

    def per_stage(self, parallel: Parallel, *, draft: bool = False, allocated: bool = False) -> tuple[int, ...]:
        """The same for each pipeline stage."""
        spans = stages(self.layers, parallel.pipeline)
        found = []
        for number in range(len(spans)):
            sizes = self.allocations(parallel, number)
            held = sum(-(-size // _STEP) * _STEP if allocated and size >= _LARGE else size for size in sizes)
            last = number == len(spans) - 1
            found.append(held + (-(-self.draft // parallel.tensor) if draft and last else 0))
        return tuple(found)

    def allocations(self, parallel: Parallel, stage: int = 0) -> tuple[int, ...]:
        """Bytes of every parameter that a rank of one stage holds."""
        spans = stages(self.layers, parallel.pipeline)
        first, after = spans[stage]
        return tuple(
            self._on_rank(parameter, parallel)
            for parameter in self.parameters
            if self._is_on(parameter, stage, len(spans), first, after)
        )

    def _is_on(self, parameter: Parameter, stage: int, count: int, first: int, after: int) -> bool:
        if parameter.layer >= 0:
            return first <= parameter.layer < after
        if parameter.role == "vocab":
            return stage == 0 or (self.tied and stage == count - 1)
        return stage == (0 if parameter.role == "vision" else count - 1)

    def _on_rank(self, parameter: Parameter, parallel: Parallel) -> int:
        ranks = parallel.tensor
        by_head = min(ranks, max(1, self.kv_heads))
        divided = -(-parameter.divided // ranks)
        if parameter.role in ("vocab", "output") and self.vocab:
            padded = -(-self.vocab // _VOCAB_PADDING) * _VOCAB_PADDING
            divided = -(-parameter.divided * padded // (self.vocab * ranks))
        if parallel.experts and self.experts:
            experts = parameter.experts * -(-self.experts // ranks) // self.experts
        else:
            experts = -(-parameter.experts // ranks)
        return divided + -(-parameter.by_kv_head // by_head) + parameter.copied + experts


def plan_weights(tensors: Iterable[Tensor], shape: ModelShape, *, tied: bool) -> WeightPlan:
    """Sort tensors into what is divided and what is copied, and put together what engines fuse.

    Args:
        tensors: all of a model's.
        shape: of the model; tensors of layers beyond its own belong to draft heads.
        tied: whether the output layer is the embedding; a copy of it in the file is then not loaded.
    """
    parts: dict[tuple[int, str, Role], list[int]] = {}
    draft = skipped = counted = 0
    for tensor in tensors:
        counted += tensor.count
        role, layer = role_of(tensor.name), layer_of(tensor.name)
        size = _loaded_size(tensor, shape.dtype) * tensor.count
        if role == "skipped" or (role == "output" and tied):
            skipped += size
        elif role == "draft" or (role != "vision" and layer >= shape.layers):
            draft += size
        else:
            key = (-1 if role == "vision" else layer, _fused_name(tensor.name), _kept_role(role))
            held = parts.setdefault(key, [0, 0, 0, 0])
            for place, share in enumerate(_shares(role, size, shape)):
                held[place] += share
    parameters = tuple(Parameter(layer, role, *held) for (layer, _, role), held in sorted(parts.items()))
    return WeightPlan(
        parameters, shape.layers, shape.kv_heads, shape.experts, shape.vocab, tied, draft, skipped, counted
    )


def role_of(name: str) -> Role:
    """What parallelism does with a tensor of that name."""
    for role, pattern in _rules():
        if pattern.search(name):
            return role
    return "divided"


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|blk|block)\.(\d+)\.")


def layer_of(name: str) -> int:
    """The layer a tensor belongs to, by its name; -1 outside the layers."""
    found = _LAYER.search(name)
    return int(found[1]) if found else -1


def _kept_role(role: Role) -> Role:
    """Parts of one fused parameter must share a role; only those outside the layers need their own."""
    return role if role in ("vision", "vocab", "output") else "divided"


def _shares(role: Role, size: int, shape: ModelShape) -> tuple[int, int, int, int]:
    """Bytes that are divided, by key-value head, copied, and of experts."""
    if role == "experts":
        return 0, 0, 0, size
    if role in ("copied", "vision"):
        return 0, 0, size, 0
    if role == "kv":
        return 0, size, 0, 0
    if role == "qkv" and shape.heads:
        of_kv = size * 2 * shape.kv_heads // (shape.heads + 2 * shape.kv_heads)
        return size - of_kv, of_kv, 0, 0
    return size, 0, 0, 0


_WIDE = {"F32": 4, "F64": 8}
_SCALES = re.compile(r"scale|zero|A_log|\.D$|dt_bias|correction_bias|exp_probs_b")


def _loaded_size(tensor: Tensor, dtype: str) -> int:
    """Engines load plain weights in the serving type; what belongs to a quantisation stays as it is."""
    wide = _WIDE.get(tensor.dtype)
    if wide is None or _SCALES.search(tensor.name):
        return tensor.size
    # A model published in 32 bits is served in 16 all the same: that is every engine's default.
    return tensor.size * 2 // wide


_FUSED = (
    (re.compile(r"\.(q_proj|k_proj|v_proj|wq|wk|wv)\."), ".qkv."),
    (re.compile(r"\.(q_a_proj|kv_a_proj_with_mqa)\."), ".qkv_a."),
    (re.compile(r"(?<![a-z_])experts\.\d+\.(gate_proj|up_proj|w1|w3)\."), "experts.gate_up."),
    (re.compile(r"(?<![a-z_])experts\.\d+\.(down_proj|w2)\."), "experts.down."),
    (re.compile(r"\.(gate_proj|up_proj|w1|w3)\."), ".gate_up."),
)


def _fused_name(name: str) -> str:
    for pattern, replacement in _FUSED:
        name, changed = pattern.subn(replacement, name)
        if changed:
            break
    return name


@cache
def _rules() -> tuple[tuple[Role, re.Pattern[str]], ...]:
    table: Mapping[str, list[dict[str, str]]] = tomllib.loads((DATA / "tensors.toml").read_text(encoding="utf-8"))
    return tuple((rule["role"], re.compile(rule["match"])) for rule in table["rule"])  # type: ignore[misc]
