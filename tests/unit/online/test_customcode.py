"""Python code that models bring: who names it, and which files it takes."""

from __future__ import annotations

import json

import pytest

from airbundle import customcode
from airbundle.customcode import Reference, closure, imports, localized, references


def test_every_auto_map_counts_wherever_it_stands() -> None:
    documents = {
        "config.json": {
            "auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "org/code--modeling_x.XModel"},
            "vision_config": {"auto_map": {"AutoModel": "vision_x.Tower"}},
        },
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", None]}},
        "other.json": {"auto_map": "not a map"},
    }
    assert references(documents) == (
        Reference("config.json", "configuration_x.XConfig", "", "configuration_x.py"),
        Reference("config.json", "org/code--modeling_x.XModel", "org/code", "modeling_x.py"),
        Reference("config.json", "vision_x.Tower", "", "vision_x.py"),
        Reference("tokenizer_config.json", "tokenization_x.XTokenizer", "", "tokenization_x.py"),
    )


SOURCE = b"""
import os, torch.nn
import einops as e
from transformers.utils import logging
from .configuration_x import XConfig
from . import helpers
try:
    import flash_attn
except ImportError:
    flash_attn = None
def late():
    from .later import thing
    import scipy
"""


def test_imports() -> None:
    found = imports(SOURCE)
    assert found.own == ("configuration_x.py", "helpers.py", "later.py")
    assert found.packages == ("einops", "torch", "transformers"), "what stands in a try or a function may be absent"


@pytest.mark.parametrize(("source", "words"), [(b"def (:", "not Python"), (b"from ..up import x", "line 1 .* above")])
def test_what_cannot_be_followed(source: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        imports(source)


def test_closure_follows_imports_even_in_circles_and_names_what_is_missing() -> None:
    sources = {
        "a.py": b"from .b import x",
        "b.py": b"from .a import y\nfrom .gone import z",
        "unused.py": b"",
        "broken.py": b"def (",
    }
    assert closure({"a.py"}, sources) == (("a.py", "b.py"), ("gone.py: missing, though b.py names it",))
    assert closure({"a.py", "no.py"}, {"a.py": b""}) == (("a.py",), ("no.py: missing, though auto_map names it",))
    (problem,) = closure({"broken.py"}, sources)[1]
    assert problem.startswith("broken.py: not Python")


def test_references_are_made_to_point_beside_the_model_and_nothing_else_changes() -> None:
    text = '{\n "auto_map": {"A": "org/code--m.A", "B": "m.B", "C":"else/where--m.C"},\n "x": "org/code"\n}\n'
    made = localized(text.encode(), {"org/code"}).decode()
    assert made == text.replace("org/code--", "")
    assert [each.repository for each in references({"c": json.loads(made)})] == ["", "", "else/where"]


def test_parsed_takes_objects_only() -> None:
    assert customcode.parsed("[1]") == {} and customcode.parsed("{") == {} and customcode.parsed('{"a": 1}') == {"a": 1}
