"""Strict documents: every problem at once, unknown keys named, canonical bytes."""

import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airbundle_onsite.contract.record import decode, decode_json, encode, record, to_plain
from airbundle_onsite.errors import ContractError


@record
class Inner:
    name: str
    size: int = 0


@record
class Outer:
    kind: Literal["a", "bb"]
    inner: Inner
    many: tuple[Inner, ...] = ()
    maybe: int | None = None
    ratio: float = 1.0
    flag: bool = False
    free: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise ValueError("ratio is negative")


def _problems(value: object) -> tuple[str, ...]:
    with pytest.raises(ContractError) as caught:
        decode(Outer, value, "doc.json")
    return caught.value.problems


def test_all_problems_come_at_once():
    found = _problems({"kind": "b", "innr": 1, "inner": {"size": "x"}, "many": [{"name": "ok"}, 3], "flag": 1})
    assert found == (
        "innr: unknown key (did you mean 'inner'?)",
        "kind: expected one of 'a', 'bb', found 'b' (did you mean 'bb'?)",
        "inner.name: required, but missing",
        "inner.size: expected an integer, found a string ('x')",
        "many[1]: expected an object, found an integer (3)",
        "flag: expected true or false, found an integer (1)",
    )


def test_a_value_out_of_range_names_its_place():
    assert _problems({"kind": "a", "inner": {"name": "n"}, "ratio": -1}) == ("document: ratio is negative",)


def test_keys_for_extensions_are_let_through():
    assert decode(Inner, {"name": "n", "x-note": 1}, "doc") == Inner("n")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"name": "a", "name": "b"}', "the key 'name' appears twice"),
        (b'{"name": "a", "size": NaN}', "NaN is not a JSON number"),
        (b'{"name": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "expected an object, found an array"),
    ],
)
def test_bytes_that_are_no_document(data, reason):
    with pytest.raises(ContractError, match=r"doc\.json: 1 problem") as caught:
        decode_json(Inner, data, "doc.json")
    assert reason in caught.value.problems[0]


def test_true_is_no_number_and_a_whole_number_is_a_ratio():
    assert decode(Outer, {"kind": "a", "inner": {"name": "n"}, "ratio": 2}, "doc").ratio == 2.0
    assert _problems({"kind": "a", "inner": {"name": "n", "size": True}})


_inner = st.builds(Inner, st.text(), st.integers())
_outer = st.builds(
    Outer,
    st.sampled_from(typing.get_args(Literal["a", "bb"])),
    _inner,
    st.lists(_inner).map(tuple),
    st.none() | st.integers(),
    st.floats(0, 1e9),
    st.booleans(),
    st.dictionaries(st.text(), st.integers() | st.text() | st.none()),
)


@given(_outer)
def test_encoding_and_decoding_are_inverse_and_canonical(value):
    data = encode(value)
    assert decode_json(Outer, data, "doc") == value
    assert encode(decode_json(Outer, data, "doc")) == data


def test_defaults_are_left_out():
    assert to_plain(Outer("a", Inner("n"))) == {"kind": "a", "inner": {"name": "n"}}
