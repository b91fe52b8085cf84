"""What a model needs on a hardware profile: reads the model, plans its memory, finds what would make it fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airbundle import web
from airbundle.memory.adapters import Adapters, Draft, draft_bytes, lora_bytes
from airbundle.memory.budget import GIB, Device, Load, MemoryPlan, overheads, plan_memory
from airbundle.memory.config import is_quantised, normalized, whole
from airbundle.memory.cure import Cure, Means, find_cures
from airbundle.memory.ggufshape import shape_of_gguf
from airbundle.memory.headers import gguf_header, gguf_tensors, tensors_of
from airbundle.memory.hub import read_remote
from airbundle.memory.inventory import infer_tensors, is_tied
from airbundle.memory.kv import KvDtype, KvLayout
from airbundle.memory.offload import Offload, plan_offload
from airbundle.memory.parallel import Parallel, parallel_problems
from airbundle.memory.shape import ModelShape, read_shape
from airbundle.memory.weights import Tensor, WeightPlan, plan_weights
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError

_CONTEXT, _CONCURRENCY = 8192, 8
_HUB = "https://huggingface.co"
_HOST_SHARE = 0.9  # of a host's memory, the rest being the system's
_SLOTS = ("llama.cpp", "ollama")
_WIDTHS = ("intermediate_size", "dense_intermediate_size", "intermediate_size_mlp")


@record
class Model:
    """A model as far as its memory is concerned.

    Attributes:
        name: as it was named.
        shape, weights: see their classes.
        seen: what the weights were counted from, for people.
        assumed: what the configuration does not say and was taken all the same, each in words.
        gguf, quantised: how it is stored.
    """

    name: str
    shape: ModelShape
    weights: WeightPlan
    seen: str
    gguf: bool = False
    quantised: bool = False
    assumed: tuple[str, ...] = ()


@record
class Wish:
    """What is asked for; 0 or empty stands for a default.

    Attributes:
        engine, version: e.g. ``vllm``, ``0.24.0``.
        context, concurrency: tokens of the longest request, and requests at once.
        tensor, pipeline, experts: how to spread the model.
        gpus: how many there are; the profile's number unless said.
        kv_dtype: of the cache.
        sequences, batched_tokens, utilization, graphs: of the engine.
        drafted: tokens predicted ahead by the model's own extra layers.
        adapters: LoRA slots.
    """

    engine: str = ""
    version: str = ""
    context: int = 0
    concurrency: int = 0
    tensor: int = 0
    pipeline: int = 1
    experts: bool = False
    gpus: int = 0
    kv_dtype: KvDtype = "bf16"
    sequences: int = 0
    batched_tokens: int = 0
    utilization: float = 0.0
    graphs: bool = True
    drafted: int = 0
    adapters: Adapters | None = None


@record
class Estimate:
    """The answer.

    Attributes:
        model: what was planned.
        profile: its id; memory: bytes of one of its GPUs.
        engine, version, load: what was planned with.
        plan: see `MemoryPlan`.
        cures: changes that would make it runnable; empty when it is.
        offload: with llama.cpp, the layers that fit on the GPU when not all do.
        source: where the engine's overheads are known from.
    """

    model: Model
    profile: str
    memory: int
    engine: str
    version: str
    load: Load
    plan: MemoryPlan
    cures: tuple[Cure, ...] = ()
    offload: Offload | None = None
    source: str = ""


def read_model(name: str, environ: Callable[[str], str | None]) -> Model:
    """A model by a path or on the hub.

    Args:
        name: a config.json, a directory (its configuration and headers), a GGUF file, or a source as specs name it:
            ``local:PATH`` or ``hf:ORG/NAME[@REVISION]``.
        environ: reads one variable (HF_ENDPOINT).

    Raises:
        UsageError: nothing there can be planned, naming what is missing.
        FetchError: the hub did not answer.
    """
    scheme, _, rest = name.partition(":")
    if scheme == "hf" and rest:
        repository, _, revision = rest.partition("@")
        found = read_remote(repository, revision, environ("HF_ENDPOINT") or _HUB, web.new_session(environ))
        return from_config(name, found.config, found.tensors)
    path = Path(rest if scheme == "local" and rest else name)
    if path.is_dir():
        return _from_directory(name, path)
    if path.suffix == ".gguf":
        return _from_gguf(name, {path.name: path})
    if path.is_file():
        return from_config(name, _config(path))
    raise UsageError(
        f"{name}: no such file or directory",
        remedy="name a config.json, a directory, a GGUF file, local:PATH or hf:ORG/NAME",
    )


def from_config(name: str, config: Mapping[str, Any], tensors: tuple[Tensor, ...] = ()) -> Model:
    """A model from its configuration, and from its tensors when they are known. Raises UsageError."""
    _require_attention(config)
    shape = read_shape(config)
    seen = f"the headers of {len(tensors)} tensors" if tensors else "config.json alone, without tensor headers"
    weights = plan_weights(tensors or infer_tensors(config), shape, tied=is_tied(config))
    assumed = tuple(_assumed(config, shape, headers=bool(tensors)))
    return Model(name, shape, weights, seen, quantised=is_quantised(config), assumed=assumed)


def _require_attention(config: Mapping[str, Any]) -> None:
    """Without heads or a recurrent state the cache has no size, and no figure would mean anything."""
    text = normalized(config)
    if not whole(text, "num_attention_heads") and not whole(text, "mamba_d_state"):
        raise UsageError(
            "config.json: num_attention_heads is missing, and so is the size of any recurrent state",
            remedy="use the model's own config.json, whole",
        )


def _assumed(config: Mapping[str, Any], shape: ModelShape, *, headers: bool) -> Iterator[str]:
    """What neither the configuration nor the defaults of its model_type say; headers show the weights themselves."""
    text = normalized(config)
    by_layer = bool(text.get("block_configs"))  # heads and widths stand there, layer for layer
    if shape.heads and not shape.latent and not by_layer and text.get("num_key_value_heads") is None:
        yield f"num_key_value_heads {shape.kv_heads}"
    if not shape.max_context:
        yield "max_position_embeddings unlimited"
    if headers:
        return
    if shape.dense and not by_layer and not any(text.get(key) for key in _WIDTHS):
        yield f"intermediate_size {shape.dense}"
    if not text.get("torch_dtype") and not text.get("dtype"):
        yield f"torch_dtype {shape.dtype}"
    if text.get("tie_word_embeddings") is None:
        yield f"tie_word_embeddings {str(is_tied(config)).lower()}"


def _from_directory(name: str, directory: Path) -> Model:
    files = {path.name: path for path in sorted(directory.iterdir()) if path.is_file()}
    if "config.json" not in files:
        ggufs = {key: path for key, path in files.items() if key.endswith(".gguf")}
        if not ggufs:
            raise UsageError(f"{name}: has neither config.json nor GGUF files", remedy="name the model's own directory")
        return _from_gguf(name, ggufs)
    config = dict(_config(files["config.json"]))
    beside = files.get("hf_quant_config.json")
    if beside and "quantization_config" not in config:
        config["quantization_config"] = {"quant_method": "modelopt", **_config(beside).get("quantization", {})}
    has_weights = any(key.endswith(".safetensors") for key in files)
    return from_config(name, config, tensors_of(files) if has_weights else ())


def _from_gguf(name: str, files: Mapping[str, Path]) -> Model:
    models = {key: path for key, path in sorted(files.items()) if "mmproj" not in key.lower()}
    headers = [gguf_header(key, path) for key, path in models.items()]
    if not headers:
        raise UsageError(f"{name}: only a projector, no model", remedy="name the GGUF file of the model itself")
    shape = shape_of_gguf(headers[0].metadata)
    tensors = tuple(tensor for header in headers for tensor in gguf_tensors(header))
    tied = not any(tensor.name.startswith("output.") for tensor in tensors)
    projectors = sum(path.stat().st_size for key, path in files.items() if key not in models)
    weights = plan_weights((*tensors, Tensor("mm.projector.weight", projectors)), shape, tied=tied)
    return Model(name, shape, weights, f"the headers of {len(tensors)} tensors", gguf=True, quantised=True)


def _config(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a JSON file that can be read ({error})", remedy="name a config.json") from error
    if not isinstance(found, Mapping):
        raise UsageError(f"{path}: not a JSON object", remedy="name a config.json")
    return found


def estimate(model: Model, profile: HardwareProfile, wish: Wish, draft: Model | None = None) -> Estimate:
    """Plan a model's memory on a profile; without a tensor parallel size, on as few of its GPUs as suffice.

    Args:
        model, profile, wish: what is to run where and how.
        draft: a smaller model that drafts tokens for it, on the same ranks.

    Raises:
        UsageError: the engine cannot serve it there, or the model cannot be spread as asked.
    """
    engine = wish.engine or ("llama.cpp" if model.gguf else "vllm")
    _check(model, profile, engine, wish)
    facts, device = overheads(engine, wish.version), _device(profile)
    gpus = wish.gpus or (profile.gpu.count if profile.gpu else 1)
    plans = []
    for parallel in _spreads(model, wish, gpus, engine in _SLOTS):
        load = _load(model, wish, parallel, draft)
        plan = plan_memory(engine, wish.version, model.shape, model.weights, device, load)
        plans.append((load, plan))
        if plan.verdict == "runnable":
            break
    load, plan = plans[-1]
    means = Means(_kv_dtypes(profile, engine), gpus, model.quantised)
    cures: tuple[Cure, ...] = ()
    if plan.verdict != "runnable":
        cures = find_cures(engine, wish.version, model.shape, model.weights, device, load, means)
    offload = _offload(model, plan, load, facts) if engine in _SLOTS and profile.gpu else None
    return Estimate(
        model, profile.id, device.memory, engine, wish.version, load, plan, cures, offload, str(facts["source"])
    )


def _check(model: Model, profile: HardwareProfile, engine: str, wish: Wish) -> None:
    if model.gguf != (engine in _SLOTS):
        stored = "GGUF" if model.gguf else "not GGUF"
        raise UsageError(
            f"{engine} does not serve {model.name}, which is {stored}",
            remedy="choose --engine llama.cpp or ollama"
            if model.gguf
            else "choose --engine vllm, sglang or tensorrt-llm",
        )
    if profile.gpu is None and engine not in _SLOTS:
        raise UsageError(
            f"the memory of {engine} on a CPU is not planned", remedy="name a profile with GPUs, or a GGUF model"
        )
    if model.shape.max_context and wish.context > model.shape.max_context:
        raise UsageError(
            f"a context of {wish.context} tokens, but the model is made for {model.shape.max_context}",
            remedy=f"choose --context {model.shape.max_context} or less",
        )


def _device(profile: HardwareProfile) -> Device:
    if profile.gpu is None:
        return Device(int(profile.min_memory * _HOST_SHARE))
    return Device(profile.gpu.memory, profile.gpu.capability)


def _spreads(model: Model, wish: Wish, gpus: int, slots: bool) -> Iterator[Parallel]:
    """Ways to spread the model, from the fewest GPUs on; one that cannot be divided is left out."""
    if wish.tensor:
        yield Parallel(wish.tensor, wish.pipeline, wish.experts)
        return
    sizes = [size for size in (1, 2, 4, 8, 16) if size * wish.pipeline <= gpus] or [1]
    choices = [Parallel(size, wish.pipeline, wish.experts) for size in sizes]
    fitting = [choice for choice in choices if slots or not parallel_problems(model.shape, choice)]
    yield from fitting or choices[:1]


def _load(model: Model, wish: Wish, parallel: Parallel, draft: Model | None) -> Load:
    limit = model.shape.max_context or _CONTEXT
    load = Load(
        context=wish.context or min(_CONTEXT, limit),
        concurrency=wish.concurrency or _CONCURRENCY,
        parallel=parallel,
        kv_dtype=wish.kv_dtype,
        sequences=wish.sequences,
        batched_tokens=wish.batched_tokens,
        utilization=wish.utilization,
        graphs=wish.graphs,
        drafted=wish.drafted,
    )
    if wish.adapters:
        load = replace(load, extra=lora_bytes(model.shape, wish.adapters, parallel))
    if draft:
        held, token = draft_bytes(Draft(draft.shape, draft.weights), KvLayout(wish.kv_dtype, parallel))
        load = replace(load, extra=load.extra + held, extra_token=token)
    return load


def _kv_dtypes(profile: HardwareProfile, engine: str) -> tuple[KvDtype, ...]:
    """Smaller types of the cache that the engine has on these GPUs without further parts."""
    if engine in _SLOTS:
        return ("q8_0",)
    capability = float(profile.gpu.capability or 0) if profile.gpu else 0
    return ("fp8",) if capability >= 8.9 else ()


def _offload(model: Model, plan: MemoryPlan, load: Load, facts: Mapping[str, Any]) -> Offload | None:
    if plan.verdict == "runnable":
        return None
    layout = KvLayout(load.kv_dtype, paging="slots", batched_tokens=plan.batched_tokens, conv_bytes=4, state_bytes=4)
    free = (plan.budget.low - plan.activation.high - plan.runtime.high - load.extra) * load.parallel.gpus
    return plan_offload(model.shape, model.weights, load.context, load.concurrency, free, layout)


def gib(size: float) -> str:
    """Bytes for people, in GiB."""
    return f"{size / GIB:.2f} GiB"
