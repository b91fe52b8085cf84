"""Strict, typed JSON documents: ``@record`` classes, `decode` and `encode`.

A record is a frozen dataclass with slots. Decoding checks every key and type and collects all problems before
it raises; an unknown key is an error that names it, unless it starts with ``x-``. Encoding is canonical: the
same value always gives the same bytes.

Supported field types: ``str``, ``int``, ``float``, ``bool``, ``Optional[T]``, ``Literal[...]``, ``Any``,
``tuple[T, ...]`` (a JSON array), ``Mapping[str, T]`` (a JSON object) and other records.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import sys
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from airbundle_onsite.errors import ContractError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options):
        return lambda decorator: decorator


T = TypeVar("T")
_UNIONS = (Union, getattr(types, "UnionType", Union))  # Optional[T], and T | None where Python can
_SLOTS: dict[str, Any] = {"slots": True} if sys.version_info >= (3, 10) else {}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass, with slots where the running Python can."""
    made: type[T] = dataclasses.dataclass(frozen=True, **_SLOTS)(cls)
    return made


def decode(cls: type[T], value: Any, document: str) -> T:
    """Turn parsed JSON (or TOML) into a record.

    Args:
        cls: the record class wanted.
        value: what `json.loads` or `tomllib.loads` returned.
        document: how to call the document in messages, e.g. its file name.

    Raises:
        ContractError: with every problem found, each as ``path: reason``.
    """
    problems: list[str] = []
    result = _convert(cls, value, "", problems)
    if problems:
        raise ContractError(document, problems)
    made: T = result
    return made


def decode_json(cls: type[T], data: bytes, document: str) -> T:
    """Like `decode`, from bytes. Duplicate keys, NaN and invalid UTF-8 are problems too."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        if b"\\u" in data:  # an escape may name half of a character, which no file and no terminal can hold
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ContractError(document, [f"not valid JSON: {error}"]) from error
    return decode(cls, value, document)


def to_plain(value: Any) -> Any:
    """A record as dicts, lists and scalars. Fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if not _is_default(field, item):
                plain[field.name] = to_plain(item)
        return plain
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def encode(value: Any) -> bytes:
    """Canonical JSON: sorted keys, one-space indent (so that people can diff it), UTF-8, final newline."""
    text = json.dumps(to_plain(value), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def _is_default(field: dataclasses.Field[Any], item: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return type(item) is type(field.default) and bool(item == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(item == field.default_factory())
    return False


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} appears twice")
        found[key] = item
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@functools.lru_cache(maxsize=None)
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def near_miss(word: str, known: typing.Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` when a known word is close, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _convert(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """Convert `value` to `kind`; on a problem, note it and return None."""
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _convert_record(typing.cast(type, kind), value, path, problems)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return _convert_optional(arguments, value, path, problems)
    if origin is Literal:
        return _convert_literal(arguments, value, path, problems)
    if origin is tuple:
        return _convert_array(arguments[0], value, path, problems)
    if origin is not None and issubclass(origin, Mapping):
        return _convert_mapping(arguments[1], value, path, problems)
    return _convert_scalar(kind, value, path, problems)


def _problem(problems: list[str], path: str, reason: str) -> None:
    problems.append(f"{path or 'document'}: {reason}")


def _convert_record(cls: type, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        _problem(problems, path, f"expected an object, found {_name(value)}")
        return None
    before = len(problems)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in value:
        if key not in fields and not str(key).startswith("x-"):
            _problem(problems, _join(path, str(key)), f"unknown key{near_miss(str(key), fields)}")
    arguments = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _convert(_hints(cls)[name], value[name], _join(path, name), problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            _problem(problems, _join(path, name), "required, but missing")
    if len(problems) > before:
        return None
    try:
        return cls(**arguments)
    except ValueError as error:  # raised by a record's __post_init__ for a value out of range
        _problem(problems, path, str(error))
        return None


def _convert_optional(arguments: tuple[Any, ...], value: Any, path: str, problems: list[str]) -> Any:
    if value is None and type(None) in arguments:
        return None
    wanted = [argument for argument in arguments if argument is not type(None)]
    return _convert(wanted[0], value, path, problems)


def _convert_literal(choices: tuple[Any, ...], value: Any, path: str, problems: list[str]) -> Any:
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    listed = ", ".join(repr(choice) for choice in choices)
    hint = near_miss(value, [str(choice) for choice in choices]) if isinstance(value, str) else ""
    _problem(problems, path, f"expected one of {listed}, found {value!r}{hint}")
    return None


def _convert_array(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, (list, tuple)):
        _problem(problems, path, f"expected an array, found {_name(value)}")
        return None
    return tuple(_convert(kind, item, f"{path}[{index}]", problems) for index, item in enumerate(value))


def _convert_mapping(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        _problem(problems, path, f"expected an object, found {_name(value)}")
        return None
    return {str(key): _convert(kind, item, _join(path, str(key)), problems) for key, item in value.items()}


def _convert_scalar(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:
        return value
    _problem(problems, path, f"expected {_KINDS.get(kind, kind.__name__)}, found {_name(value)}")
    return None


_KINDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "an array"
    return f"{_KINDS.get(type(value), type(value).__name__)} ({value!r:.60})"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
