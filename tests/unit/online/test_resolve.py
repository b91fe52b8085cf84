"""Locking: everything pinned or everything that failed; and the same lock when nothing changed."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.contract.lock import BundleLock, LockedFile, LockedImage, LockedModel, LockedWheel, WheelSettings
from airbundle.contract.spec import (
    BundleSpec,
    BundleTable,
    EngineTable,
    ImageTable,
    ModelTable,
    RuntimeTable,
    SmokeTable,
    TargetTable,
    WheelsTable,
)
from airbundle.lockfile import is_stale, moved_wheels, read_lock, write_lock
from airbundle.modelcard import model_facts
from airbundle.resolve import lock
from airbundle.smoketests import smoke_tests
from airbundle.sources.base import SourceContext
from airbundle_onsite.contract.profile import HardwareProfile
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import FetchError, UsageError
from airbundle_onsite.system import Silent, SystemRunner

DAY = 1_700_000_000  # 2023-11-14


class At:
    """A clock that stands."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing to wait for")


def gguf(**numbers: int) -> bytes:
    """A header with these numbers of a llama model, and no tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    values = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    values += [text(f"llama.{key}") + struct.pack("<II", 4, number) for key, number in numbers.items()]
    values += [
        text("llama.attention.head_count_kv") + struct.pack("<IIQ2i", 9, 5, 2, 4, 2),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("c"),
    ]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(values)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory with a local model."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "m.gguf").write_bytes(gguf(block_count=2, context_length=512))
    return tmp_path


def context(base: Path, environ: Mapping[str, str] | None = None) -> SourceContext:
    return SourceContext(Cache(base / "cache"), Silent(), SystemRunner(), base, (environ or {}).get)


def spec(**changes: object) -> BundleSpec:
    """A spec whose model is at hand."""
    made = BundleSpec(
        bundle=BundleTable("demo"),
        target=TargetTable(profile="cpu-x86_64"),
        model=ModelTable("local:weights", "m"),
        engine=EngineTable("llama.cpp"),
        runtime=RuntimeTable("venv"),
        wheels=WheelsTable(("xllamacpp",)),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


WHEEL = LockedWheel("xllamacpp", "1", LockedFile("xllamacpp-1-py3-none-any.whl", "1" * 64, 5), requested_by=("spec",))


def one_wheel(
    made: BundleSpec,
    target: HardwareProfile,
    image: LockedImage | None,
    context: SourceContext,
    earlier: Mapping[str, LockedWheel],
) -> tuple[tuple[LockedWheel, ...], WheelSettings]:
    """In place of a resolve that asks an index."""
    return (WHEEL,), WheelSettings("3.11", f"linux_{target.arch}", target.min_glibc, "test")


def plain(base: Path, made: BundleSpec, now: float, previous: BundleLock | None = None, **environ: str) -> BundleLock:
    return lock(made, context=context(base, environ), clock=At(now), previous=previous, resolve_wheels=one_wheel)


def test_all_failures_are_told_at_once(base: Path) -> None:
    wanted = spec(
        model=ModelTable("local:nowhere", "m"),
        target=TargetTable(profile="cpu-x86_65"),
        runtime=RuntimeTable("docker"),
        image=ImageTable("daemon:none:1"),
        wheels=None,
    )
    with pytest.raises(FetchError) as caught:
        plain(base, wanted, DAY, DOCKER_HOST=f"unix://{base}/no.sock")
    text = "\n".join(caught.value.details)
    assert "3 things" in caught.value.summary
    for part in ("cpu-x86_65", "nowhere does not exist", "no.sock"):
        assert part in text


def test_one_failure_stays_as_it_is(base: Path) -> None:
    with pytest.raises(FetchError, match="nowhere does not exist"):
        plain(base, spec(model=ModelTable("local:nowhere", "m")), DAY)


def test_the_default_version_counts_up_within_a_day(base: Path) -> None:
    first = plain(base, spec(), DAY)
    assert (first.spec.bundle.version, first.created) == ("20231114-v1", DAY)
    assert plain(base, spec(), DAY + 999_999, first) is first
    (base / "weights" / "m.gguf").write_bytes(gguf(block_count=3))
    second = plain(base, spec(), DAY + 60, first)
    assert (second.spec.bundle.version, second.created) == ("20231114-v2", DAY + 60)
    (base / "weights" / "m.gguf").write_bytes(gguf(block_count=4))
    assert plain(base, spec(), DAY + 86_400, second).spec.bundle.version == "20231115-v1"


def test_source_date_epoch_is_the_lock_s_time(base: Path) -> None:
    assert plain(base, spec(), DAY, SOURCE_DATE_EPOCH="1600000000").created == 1_600_000_000


def test_a_changed_spec_makes_the_lock_stale(base: Path) -> None:
    made = plain(base, spec(), DAY)
    assert not is_stale(made, spec())
    assert is_stale(made, spec(bundle=BundleTable("demo", "2.0")))


def test_a_lock_file_is_canonical_and_comes_back(base: Path) -> None:
    made = plain(base, spec(), DAY)
    path = base / "x.lock.json"
    write_lock(made, path)
    assert read_lock(path) == made
    assert path.read_bytes() == encode(made)
    assert sorted(item.name for item in base.iterdir()) == ["cache", "weights", "x.lock.json"]


@pytest.mark.parametrize("content", ['{"lock_version": 2}', "{", "[]", '{"lock_version": 1, "x": 1}', "\xff"])
def test_what_is_no_lock_is_refused(base: Path, content: str) -> None:
    path = base / "x.lock.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        read_lock(path)
    assert str(path) in caught.value.summary
    assert "airbundle lock" in caught.value.remedy


def test_a_place_that_cannot_be_written_is_named(base: Path) -> None:
    made = plain(base, spec(), DAY)
    with pytest.raises(UsageError, match="gone"):
        write_lock(made, base / "gone" / "x.lock.json")


def test_facts_come_from_the_header(base: Path) -> None:
    facts = plain(base, spec(), DAY).models[0].facts
    assert facts == {
        "architecture": "llama",
        "block_count": "2",
        "context_length": "512",
        "attention.head_count_kv": "4,2",
        "vocabulary": "3",
    }


def test_facts_are_empty_when_the_file_is_not_at_hand(tmp_path: Path) -> None:
    model = LockedModel("m", "s", "r", "gguf", (LockedFile("m.gguf", "0" * 64, 9),), entry="m.gguf")
    assert model_facts(model, Cache(tmp_path)) == {}


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    sha256 = cache.add_bytes(b"not weights")
    model = LockedModel("m", "s", "r", "gguf", (LockedFile("m.gguf", sha256, 11),), entry="m.gguf")
    with pytest.raises(FetchError, match=r"m\.gguf: begins with"):
        model_facts(model, cache)


def test_a_fingerprint_that_is_not_there_is_named(base: Path) -> None:
    with pytest.raises(UsageError, match=r"target\.fingerprint: .*host\.json"):
        plain(base, spec(target=TargetTable(fingerprint="host.json")), DAY)


def test_smoke_tests_are_greedy_seeded_and_numbered(base: Path) -> None:
    made = plain(base, spec(), DAY)
    (fallback,) = smoke_tests(made)
    assert fallback.expect
    tables = (SmokeTable("What?", ("a",), ("b",), 7, 3), SmokeTable("Who?", id="named"))
    first, second = smoke_tests(dataclasses.replace(made, spec=spec(smoke=tables)))
    assert (first.id, second.id, first.path) == ("smoke-1", "named", "/v1/chat/completions")
    assert (first.expect, first.reject, first.concurrency) == (("a",), ("b",), 3)
    assert first.body["model"] == "{served_name}"
    assert (first.body["temperature"], first.body["max_tokens"]) == (0, 7)
    json.dumps(first.body)


def versions_of(wheels: Mapping[str, str]) -> tuple[LockedWheel, ...]:
    return tuple(
        LockedWheel(
            name, version, LockedFile(f"{name}-{version}-py3-none-any.whl", "1" * 64, 5), requested_by=("spec",)
        )
        for name, version in wheels.items()
    )


def test_what_may_move_is_left_out_of_what_is_kept(base: Path) -> None:
    asked: list[Mapping[str, LockedWheel]] = []

    def resolver(
        made: BundleSpec,
        target: HardwareProfile,
        image: LockedImage | None,
        context: SourceContext,
        earlier: Mapping[str, LockedWheel],
    ) -> tuple[tuple[LockedWheel, ...], WheelSettings]:
        asked.append(earlier)
        found = {"a": "1.0", "b-c": "1.0", **{name: wheel.version for name, wheel in earlier.items()}}
        moved = {name: "2.0" for name in found if asked[1:] and name not in earlier}
        return versions_of({**found, **moved}), WheelSettings("3.11", "linux_x86_64")

    def again(previous: BundleLock | None, upgrade: tuple[str, ...] | None = ()) -> BundleLock:
        return lock(
            spec(), context=context(base), clock=At(DAY), previous=previous, upgrade=upgrade, resolve_wheels=resolver
        )

    first = again(None)
    assert again(first) is first
    one = again(first, ("B_C",))
    assert moved_wheels(first, one) == ["b-c 1.0 → 2.0"]
    assert moved_wheels(first, again(first, None)) == ["a 1.0 → 2.0", "b-c 1.0 → 2.0"]
    assert [sorted(each) for each in asked] == [[], ["a", "b-c"], ["a"], []]
    with pytest.raises(UsageError, match=r"--upgrade b-d: no wheel of that name in the lock \(did you mean 'b-c'\?\)"):
        again(first, ("b-d",))
