"""Whether adapters, draft models and projectors fit the model they stand beside, from the files of both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airbundle.contract.lock import LockedModel
from airbundle.gguf import GgufError, read_header
from airbundle.modelcard import read_json
from airbundle.weights import read_safetensors
from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.record import record

_CONFIG = "adapter_config.json"
_PAIR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.\w+)?\.weight")
_CLOSE = 128  # entries by which vocabularies may differ; llama.cpp's limit for draft models


@record
class Given:
    """A model and those of its files that are at hand."""

    model: LockedModel
    files: Mapping[str, Path]


def beside_checks(main: Given, extra: Given) -> tuple[CheckResult, ...]:
    """How `extra` fits the model.

    Raises:
        FetchError: one of its JSON files cannot be read.
    """
    role = extra.model.role
    if role == "adapter":
        return tuple(_gguf_adapter(main, extra) if extra.model.format == "gguf" else _adapter(main, extra))
    if role == "draft":
        return tuple(_draft(main, extra))
    return tuple(_projector(main, extra)) if role == "projector" else ()


def adapter_facts(files: Mapping[str, Path]) -> dict[str, str]:
    """``rank``, ``targets`` and ``base_model`` of a LoRA adapter, for plans; empty when it says none."""
    if _CONFIG not in files:
        return {}
    config = read_json(_CONFIG, files[_CONFIG])
    ranks = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    facts = {
        "rank": str(max((rank for rank in ranks if isinstance(rank, int)), default="")),
        "targets": _targets(config.get("target_modules")),
        "base_model": str(config.get("base_model_name_or_path") or ""),
    }
    return {key: value for key, value in facts.items() if value}


def _targets(value: Any) -> str:
    return ",".join(sorted(map(str, value))) if isinstance(value, list) else str(value or "")


# --- adapters ----------------------------------------------------------------------------------------------------


def _adapter(main: Given, extra: Given) -> Iterator[CheckResult]:
    names = {file.path for file in extra.model.files}
    if _CONFIG not in names:
        yield _bad(
            "adapter.config", f"it has no {_CONFIG}, so it is no LoRA adapter", "name the adapter's own directory"
        )
        return
    if not any(name.startswith("adapter_model.") for name in names):
        yield _bad("adapter.weights", "it has no adapter_model.safetensors", "name the adapter's own directory")
    if _CONFIG not in extra.files:
        return
    config = read_json(_CONFIG, extra.files[_CONFIG])
    kind = str(config.get("peft_type") or "LORA").upper()
    if kind != "LORA":
        yield _bad(
            "adapter.kind", f"it is a {kind} adapter; engines serve LoRA", "train a LoRA adapter, or merge this one"
        )
    for key, word in (("use_dora", "DoRA"), ("modules_to_save", "further whole modules")):
        if config.get(key):
            yield _warn("adapter.kind", f"it uses {word}, which engines may refuse", "merge it into the model")
    yield from _base(main.model, str(config.get("base_model_name_or_path") or ""))
    weights = extra.files.get("adapter_model.safetensors")
    if weights is not None:
        yield from _pairs(main, _shapes(weights), config)


def _base(main: LockedModel, named: str) -> Iterator[CheckResult]:
    """Names prove little (a local path, a mirror, a copy), so another one only warns."""
    wanted, found = _last(main.source), _last(named)
    if named and wanted and wanted != found:
        yield _warn(
            "adapter.base",
            f"it says it was trained for {named}, and beside it stands {main.source}",
            "see that both are the same weights",
        )


def _last(name: str) -> str:
    return re.split(r"[/:]", name.rstrip("/"))[-1].lower()


def _pairs(main: Given, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> Iterator[CheckResult]:
    """The two halves of each change against each other, and against the matrix they change."""
    pairs: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        match = _PAIR.fullmatch(name)
        if match and len(shape) == 2:
            pairs.setdefault(match[1], {})[match[2]] = shape
    if not pairs:
        yield _bad("adapter.weights", "its weights hold no LoRA matrices", "name the adapter's own directory")
        return
    single = sorted(name for name, halves in pairs.items() if len(halves) == 1)
    wrong = [] if config.get("rank_pattern") else _of_other_rank(pairs, config.get("r"))
    if single or wrong:
        lines = (*(f"{name}: one half is missing" for name in single), *wrong)
        yield _bad(
            "adapter.weights", "its matrices do not go together", "take the adapter from where it was trained", lines
        )
        return
    known = _main_shapes(main)
    unknown = [name for name in pairs if f"{name}.weight" not in known]
    unfit = sorted(
        _unfit(name, halves, known[f"{name}.weight"]) for name, halves in pairs.items() if name not in unknown
    )
    unfit = [line for line in unfit if line]
    if unfit:
        yield _bad(
            "adapter.base", "it was trained for another model", "name the model it was trained for", tuple(unfit[:5])
        )
    elif known and len(unknown) == len(pairs) and not main.model.quantization:
        yield _warn(
            "adapter.base",
            f"none of the matrices it changes is in the model, such as {unknown[0]}",
            "see that both belong together",
        )
    else:
        yield CheckResult("adapter.weights", "pass", f"it changes {len(pairs)} matrices with rank {config.get('r')}")


def _of_other_rank(pairs: Mapping[str, Mapping[str, tuple[int, ...]]], rank: Any) -> list[str]:
    return [
        f"{name}: rank {halves['A'][0]} and {halves['B'][1]}, its configuration says {rank}"
        for name, halves in sorted(pairs.items())
        if len(halves) == 2 and (halves["A"][0] != halves["B"][1] or halves["A"][0] != rank)
    ]


def _unfit(name: str, halves: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> str:
    found = (halves["B"][0], halves["A"][1])
    return f"{name} is {shape[0]} x {shape[1]}, the adapter's {found[0]} x {found[1]}" if found != shape else ""


def _main_shapes(main: Given) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for path, file in main.files.items():
        if path.endswith(".safetensors"):
            found.update(_shapes(file))
    return {name: shape for name, shape in found.items() if len(shape) == 2}


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by tensor; none of a file that is not whole, which `weights.prove` reports."""
    try:
        header = read_safetensors(file)
    except ValueError:
        return {}
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def _gguf_adapter(main: Given, extra: Given) -> Iterator[CheckResult]:
    found = _metadata(extra)
    if found is None:
        return
    if found.get("general.type") != "adapter" or found.get("adapter.type") != "lora":
        yield _bad(
            "adapter.kind", "this GGUF file is no LoRA adapter", "convert the adapter with convert_lora_to_gguf.py"
        )
        return
    wanted = _metadata(main)
    mine, theirs = str(found.get("general.architecture", "")), str((wanted or {}).get("general.architecture", ""))
    if wanted and mine != theirs:
        yield _bad(
            "adapter.base", f"it was trained for {mine}, the model is {theirs}", "name the model it was trained for"
        )
    else:
        yield CheckResult("adapter.weights", "pass", f"a LoRA adapter for {mine}")


# --- draft models and projectors ---------------------------------------------------------------------------------


def _draft(main: Given, extra: Given) -> Iterator[CheckResult]:
    if _is_head(extra.model):
        return  # shares the model's own vocabulary and layers, and is no model by itself
    wanted, found = _vocabulary(main.model), _vocabulary(extra.model)
    if wanted and found and wanted != found:
        status: Status = "warn" if abs(wanted - found) <= _CLOSE else "fail"
        yield CheckResult(
            "draft.vocabulary",
            status,
            f"its vocabulary has {found} entries, the model's {wanted}: it cannot guess ahead for it"
            if status == "fail"
            else f"its vocabulary has {found} entries, the model's {wanted}; some engines want them equal",
            expected=str(wanted),
            actual=str(found),
            remedy="take a draft model of the same family",
        )
    sizes = [sum(file.size for file in each.model.files) for each in (main, extra)]
    if sizes[1] >= sizes[0]:
        yield _warn(
            "draft.size", "it is not smaller than the model, so guessing ahead gains nothing", "take a smaller one"
        )


def _is_head(model: LockedModel) -> bool:
    return any(word in model.facts.get("architectures", "").lower() for word in ("eagle", "medusa", "mtp"))


def _vocabulary(model: LockedModel) -> int:
    text = model.facts.get("vocab_size") or model.facts.get("vocabulary") or ""
    return int(text) if text.isdecimal() else 0


def _projector(main: Given, extra: Given) -> Iterator[CheckResult]:
    found = _metadata(extra)
    if found is None:
        return
    if found.get("general.type") != "mmproj" and found.get("general.architecture") != "clip":
        yield _bad(
            "projector.kind", "this GGUF file is no projector", "name the file called mmproj-… of the same model"
        )
        return
    width, wanted = found.get("clip.vision.projection_dim"), main.model.facts.get("embedding_length", "")
    if found.get("general.type") == "mmproj" and wanted and width and str(width) != wanted:
        yield _warn(
            "projector.width",
            f"it makes vectors of {width} numbers, the model takes {wanted}",
            "take the model's own projector",
        )
    else:
        yield CheckResult("projector.kind", "pass", "a projector")


def _metadata(given: Given) -> Mapping[str, Any] | None:
    file = given.files.get(given.model.entry)
    if file is None:
        return None
    try:
        return read_header(file).metadata
    except GgufError:
        return None  # `weights.prove` reports it


def _bad(identifier: str, summary: str, remedy: str, evidence: tuple[str, ...] = ()) -> CheckResult:
    return CheckResult(identifier, "fail", summary, remedy=remedy, evidence=evidence)


def _warn(identifier: str, summary: str, remedy: str) -> CheckResult:
    return CheckResult(identifier, "warn", summary, remedy=remedy)
