"""Reads what a model's own files say about it: how it is stored, what it brings, what it lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any

from airbundle import customcode, quantization
from airbundle.cache import Cache
from airbundle.contract.lock import LockedModel
from airbundle.gguf import GgufError, GgufHeader, layer_facts, read_header, shape_facts
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

_LARGEST_JSON = 64 * 1024 * 1024
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")
_TOKENIZER_ENDINGS = (".tiktoken", ".model.v1", ".model.v2", ".model.v3", ".model.v7", ".spm")
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/default.jinja")
_MISTRAL = ("tekken.json", "params.json")


@record
class Card:
    """What is known of a model from its files.

    Attributes:
        names: paths inside the model.
        config: whether a config.json (or Mistral's params.json) is there.
        quantization: see `airbundle.quantization`; empty for plain floating point.
        tokenizer: the file that holds it, ``GGUF`` for one inside, or empty.
        chat_template: the file that holds it, ``GGUF``, ``mistral-common`` (the engine has it), or empty.
        generation_config: whether it is there.
        code: classes named by an ``auto_map``.
        sources: Python files that are at hand, by path.
        unlisted: safetensors beside an index that does not know them.
        facts: short facts for plans, see `LockedModel.facts`.
    """

    names: tuple[str, ...]
    config: bool = False
    quantization: str = ""
    tokenizer: str = ""
    chat_template: str = ""
    generation_config: bool = False
    code: tuple[customcode.Reference, ...] = ()
    sources: Mapping[str, bytes] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def at_hand(model: LockedModel, cache: Cache) -> dict[str, Path]:
    """The files of a model that the cache holds: path inside the model -> the file."""
    return {file.path: cache.path(file.sha256) for file in model.files if cache.has(file.sha256, file.size)}


def from_gguf(header: GgufHeader) -> dict[str, Any]:
    """Fields of a `LockedModel` that a GGUF header gives: ``quantization``, ``chat_template``, ``facts``."""
    return {
        "quantization": quantization.of_gguf(header),
        "chat_template": _gguf_template(header),
        "facts": {**shape_facts(header.metadata), **layer_facts(header)},
    }


def model_facts(model: LockedModel, cache: Cache) -> Mapping[str, str]:
    """`Card.facts` of a locked model; none when the file that is served is not at hand. Raises FetchError."""
    files = at_hand(model, cache)
    if model.entry and model.entry not in files:
        return {}
    return read_card([file.path for file in model.files], files, model.entry).facts


def read_card(names: Iterable[str], files: Mapping[str, Path], entry: str = "") -> Card:
    """Read it.

    Args:
        names: every path of the model.
        files: those that are at hand; what the others say is left out.
        entry: the GGUF file that is served, or empty.

    Raises:
        FetchError: a GGUF or JSON file cannot be read.
    """
    listed = tuple(sorted(names))
    if entry:
        return _gguf_card(listed, files, entry)
    documents = {name: read_json(name, files[name]) for name in _top(listed, ".json") if name in files}
    config = documents.get("config.json", {})
    sources = {name: files[name].read_bytes() for name in listed if name.endswith(".py") and name in files}
    return Card(
        names=listed,
        config="config.json" in listed or "params.json" in listed,
        quantization=quantization.of_config(config, documents),
        tokenizer=_tokenizer(listed),
        chat_template=_template(listed, documents),
        generation_config="generation_config.json" in listed,
        code=customcode.references(documents),
        sources=sources,
        unlisted=_unlisted(listed, documents),
        facts=_config_facts(config),
    )


def read_json(name: str, file: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one for another kind of value. Raises FetchError when it is not JSON."""
    if file.stat().st_size > _LARGEST_JSON:
        return {}
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FetchError(
            f"{name}: not JSON: {error}", remedy="fetch it again from where the model comes from"
        ) from error
    return value if isinstance(value, Mapping) else {}


def _gguf_card(names: tuple[str, ...], files: Mapping[str, Path], entry: str) -> Card:
    if entry not in files:
        return Card(names)
    try:
        header = read_header(files[entry])
    except GgufError as error:
        raise FetchError(f"{entry}: {error}", remedy="see that the source holds a whole GGUF file") from error
    given = from_gguf(header)
    return Card(
        names,
        config=True,
        quantization=given["quantization"],
        tokenizer="GGUF" if header.metadata.get("tokenizer.ggml.tokens") else "",
        chat_template="GGUF" if given["chat_template"] else "",
        generation_config=True,
        facts=given["facts"],
    )


def _gguf_template(header: GgufHeader) -> bool:
    return bool(header.metadata.get("tokenizer.chat_template") or header.metadata.get("tokenizer.chat_templates"))


def _top(names: Iterable[str], ending: str) -> list[str]:
    return [name for name in names if "/" not in name and name.endswith(ending)]


def _tokenizer(names: tuple[str, ...]) -> str:
    top = _top(names, "")
    return next((name for name in (*_TOKENIZERS, *top) if name in top and _is_tokenizer(name)), "")


def _is_tokenizer(name: str) -> bool:
    return name in _TOKENIZERS or name.endswith(_TOKENIZER_ENDINGS)


def _template(names: tuple[str, ...], documents: Mapping[str, Mapping[str, Any]]) -> str:
    found = next((name for name in _TEMPLATES if name in names), "")
    if not found and documents.get("tokenizer_config.json", {}).get("chat_template"):
        return "tokenizer_config.json"
    return found or ("mistral-common" if all(name in names for name in _MISTRAL) else "")


def _unlisted(names: tuple[str, ...], documents: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Weights at the top that no index there knows; none when there is no index."""
    known: set[str] = set()
    for name, document in documents.items():
        places = document.get("weight_map")
        if name.endswith(".safetensors.index.json") and isinstance(places, Mapping):
            known.update(str(place) for place in places.values())
    return tuple(name for name in _top(names, ".safetensors") if name not in known) if known else ()


def _config_facts(config: Mapping[str, Any]) -> dict[str, str]:
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    facts = {
        "model_type": str(config.get("model_type") or ""),
        "architectures": ",".join(map(str, config.get("architectures") or ())),
        "dtype": str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or ""),
        "hidden_size": str(text.get("hidden_size") or ""),
        "num_hidden_layers": str(text.get("num_hidden_layers") or ""),
        "vocab_size": str(text.get("vocab_size") or ""),
        "config": json.dumps(config, sort_keys=True, separators=(",", ":")) if config else "",  # for the memory plan
    }
    return {key: value for key, value in facts.items() if value}


def package_names(card: Card) -> tuple[str, ...]:
    """Top-level import names that the model's Python files need beyond the standard library."""
    found: set[str] = set()
    for name, source in card.sources.items():
        if PurePosixPath(name).suffix == ".py":
            found.update(customcode.imports(source).packages)
    return tuple(sorted(found))
