"""Whatever bytes arrive, a parser ends soon, with little memory, and with an error that a person is meant to read.

FUZZ_TRIES=N tries N inputs per target instead of the usual few, and new ones each time. Put an input that made a
parser fail into corpus/TARGET/, under a name that says what it is: every run tries those first.
"""

from __future__ import annotations

import json
import os
import resource
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

from parts.fuzzing import Target, corpus, targets

CORPUS = Path(__file__).parent / "corpus"
TARGETS = targets()
SECONDS = 5.0  # for one input, on a busy machine
MEMORY = 64 << 20  # bytes beyond the input's own size, at the highest
TRIES = int(os.environ.get("FUZZ_TRIES", "0"))

_WORDS = ["", "a", "linux", "..", "/", "\0", "\ud800", "sha256:" + "a" * 64, "9" * 400, "-1", "config/a", "\n", "中"]
_SCALARS: list[Any] = [None, True, False, 0, -1, 2**31, 2**63, 2**64, 1e308, 0.5, *_WORDS]


def _attempt(target: Target, data: bytes) -> None:
    try:
        target.run(data)
    except target.allowed as error:
        assert str(error)
        assert len(str(error)) < 2000, "an error must not repeat the whole input"


def _kept() -> list[Any]:
    found = [(name, path.name, path.read_bytes()) for name in TARGETS for path in corpus(CORPUS / name)]
    found += [(name, f"seed {at}", seed) for name, target in TARGETS.items() for at, seed in enumerate(target.seeds)]
    return [pytest.param(name, data, id=f"{name}: {what}") for name, what, data in found]


@pytest.mark.parametrize(("name", "data"), _kept())
def test_what_was_trouble_once(name: str, data: bytes) -> None:
    _attempt(TARGETS[name], b"")  # what is set up once is not this input's doing
    began = time.monotonic()
    _attempt(TARGETS[name], data)
    assert time.monotonic() - began < SECONDS
    tracemalloc.start()
    try:
        _attempt(TARGETS[name], data)
        assert tracemalloc.get_traced_memory()[1] < MEMORY + 20 * len(data)
    finally:
        tracemalloc.stop()


def test_sound_input_is_accepted() -> None:
    """Else the seeds would test nothing but the first line of a parser."""
    for name, target in TARGETS.items():
        if name in ("signature", "oci-index", "record"):
            continue  # whose further demands a seed need not meet
        target.run(target.seeds[0])


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert all(path.stat().st_size <= 16 * 1024 for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_anything(name: str) -> None:
    target = TARGETS[name]
    seeds = [*target.seeds, *(path.read_bytes() for path in corpus(CORPUS / name))]
    count = TRIES or (60 if target.costly else 250)

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=not TRIES,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(data=_inputs(seeds))
    def attempt(data: bytes) -> None:
        began = time.monotonic()
        _attempt(target, data)
        assert time.monotonic() - began < SECONDS

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attempt()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 4 * MEMORY


def _inputs(seeds: list[bytes]) -> some.SearchStrategy[bytes]:
    ways = [some.binary(max_size=600), _damaged(seeds)]
    documents = [found for found in map(_parsed, seeds) if found is not None]
    if documents:
        ways.append(_changed(documents))
    return some.one_of(ways)


@some.composite
def _damaged(draw: some.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with some of its bytes overwritten, removed, repeated or put in."""
    data = draw(some.sampled_from(seeds))
    for _ in range(draw(some.integers(1, 4))):
        at = draw(some.integers(0, len(data)))
        size = draw(some.integers(0, 12))
        new = draw(
            some.one_of(some.binary(max_size=9), some.sampled_from([b"\xff" * 8, bytes(8), data[:40], b"\n", b'"']))
        )
        data = data[:at] + new + data[at + draw(some.sampled_from([0, len(new), size])) :]
    return data


def _parsed(seed: bytes) -> Any:
    head, gap, body = seed.partition(b"\r\n\r\n")
    try:
        return (head if gap else None), json.loads(body if gap else seed)
    except (ValueError, RecursionError):
        return None


@some.composite
def _changed(draw: some.DrawFn, documents: list[Any]) -> bytes:
    """A JSON seed with some of its values replaced by others, of any type."""
    head, document = draw(some.sampled_from(documents))
    for _ in range(draw(some.integers(1, 3))):
        places = list(_places(document))
        value = draw(
            some.one_of(some.sampled_from(_SCALARS), some.sampled_from([[], {}, [[]], [None], {"": 0}, ["a"]]))
        )
        document = _with(document, draw(some.sampled_from(places)), value)
    body = json.dumps(document).encode()
    return body if head is None else b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], new)
    return copy
