"""The JSON Schema of a spec, made from its records, for editors and for people."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from airbundle.contract.spec import BundleSpec

SCHEMA_FILE = "spec.schema.json"
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
_FIELDS = re.compile(r"^ {0,4}(\w+(?:, \w+)*): (.+(?:\n {5,}.+)*)", re.MULTILINE)


def spec_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a bundle spec."""
    definitions: dict[str, Any] = {}
    root = _of_record(BundleSpec, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "airbundle spec",
        **root,
        "$defs": definitions,
    }


def schema_bytes() -> bytes:
    """`spec_schema` as it stands in manifests/spec.schema.json."""
    return json.dumps(spec_schema(), indent=2, ensure_ascii=False).encode() + b"\n"


def _of_record(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    text = inspect.cleandoc(cls.__doc__ or "")
    notes = {name: " ".join(note.split()) for names, note in _FIELDS.findall(text) for name in names.split(", ")}
    properties, required = {}, []
    for field in dataclasses.fields(cls):
        schema = dict(_of_type(hints[field.name], definitions))
        if field.name in notes:
            schema["description"] = notes[field.name]
        if field.default is not dataclasses.MISSING and isinstance(field.default, (str, int, float)):
            schema["default"] = field.default
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
        properties[field.name] = schema
    made: dict[str, Any] = {
        "type": "object",
        "description": " ".join(text.split("\n\n")[0].split()),
        "properties": properties,
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
    }
    if required:
        made["required"] = required
    return made


def _of_type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        return {}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if dataclasses.is_dataclass(kind):
        name = typing.cast(type, kind).__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _of_record(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _of_type(arguments[0], definitions)}
    if origin is not None and origin is not Union and isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of_type(arguments[1], definitions)}
    return _of_type(next(argument for argument in arguments if argument is not type(None)), definitions)
