"""Resolves of current engines: from the recorded index offline, and one from the live index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airbundle.cache import Cache
from airbundle.contract.spec import WheelsTable
from airbundle.data import data_dir
from airbundle.prove.cuda import driver_cuda
from airbundle.sources.base import SourceContext
from airbundle.wheels import Resolved, resolve_cross
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Silent, SystemRunner
from parts import recorded
from parts.models import write_tiny_model

ANSWERS: list[dict[str, Any]] = json.loads(recorded.ANSWERS.read_text())
LIVE = next(
    each for each in ANSWERS if (each["requirement"], each["glibc"]) == ("vllm==0.33.0", "2.31") and "wheels" in each
)


def resolve(question: dict[str, Any], index: str, cache: Path) -> Resolved:
    gpu = GpuProfile(("NVIDIA H200",), "9.0", 1)
    profile = HardwareProfile("h200", "H200", gpu=gpu, min_glibc=question["glibc"])
    context = SourceContext(Cache(cache), Silent(), SystemRunner(), cache, os.environ.get)
    table = WheelsTable((question["requirement"],), "cross", index=index, before=question["before"])
    return resolve_cross(table, question["python"], profile, context)


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    """The recorded index."""
    with recorded.serving(recorded.load()) as url:
        yield url


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all, as at an office."""
    return tmp_path_factory.mktemp("cache")


def _name(answer: dict[str, Any]) -> str:
    return f"{answer['requirement']}-py{answer['python']}-glibc{answer['glibc']}"


@pytest.mark.parametrize("answer", ANSWERS, ids=_name)
def test_recorded(answer: dict[str, Any], index: str, cache: Path) -> None:
    if "reason" in answer:
        with pytest.raises(FetchError) as caught:
            resolve(answer, index, cache)
        assert caught.value.summary == answer["reason"]
        assert caught.value.remedy
        return
    wheels, settings = resolve(answer, index, cache)
    assert (len(wheels), sum(wheel.file.size for wheel in wheels)) == (answer["wheels"], answer["bytes"])
    assert all(wheel.requested_by for wheel in wheels)
    assert settings.python == answer["python"]


def test_the_recording_covers_what_it_should() -> None:
    assert {answer["glibc"] for answer in ANSWERS} == {"2.28", "2.31", "2.35"}
    assert {answer["python"] for answer in ANSWERS} == {"3.10", "3.12"}
    names = {answer["requirement"].partition("==")[0] for answer in ANSWERS}
    assert names == {"vllm", "sglang", "tensorrt-llm"}
    assert len({answer["requirement"] for answer in ANSWERS if answer["requirement"].startswith("vllm")}) == 4
    (refused,) = [
        answer["reason"]
        for answer in ANSWERS
        if (answer["requirement"], answer["python"], answer["glibc"]) == ("vllm==0.24.0", "3.12", "2.28")
    ]
    assert refused.startswith("llguidance 1.7.6: its wheels need glibc 2.31, the target has 2.28")
    assert recorded.RECORDING.stat().st_size < 1_000_000


def test_a_lock_for_an_h200_tells_packages_and_bytes(index: str, cache: Path, tmp_path: Path) -> None:
    """Through the command line, with a tiny model in place of the manifest's."""
    write_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    words = [
        "lock",
        str(data_dir("manifests") / "vllm-h200.toml"),
        "--lock",
        str(tmp_path / "lock.json"),
        "--cache",
        str(cache),
        "--json",
    ]
    words += ["--set", f"model.source=local:{tmp_path / 'model'}"]
    words += ["--set", f"wheels.index={index}"]
    done = subprocess.run([sys.executable, "-m", "airbundle", *words], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["wheels"]["count"] == LIVE["wheels"]
    assert said["wheels"]["size"] == LIVE["bytes"]
    lock = json.loads((tmp_path / "lock.json").read_bytes())
    assert (lock["wheel_settings"]["glibc"], lock["wheel_settings"]["python"]) == ("2.31", "3.12")
    (runtime,) = [wheel["version"] for wheel in lock["wheels"] if wheel["name"] == "nvidia-cuda-runtime"]
    driver = lock["profile"]["gpu"]["min_driver"]
    assert float(driver_cuda(driver)) >= int(runtime.partition(".")[0]), "else its own proof refuses it"


def test_the_live_index_gives_the_same_closure(tmp_path: Path) -> None:
    """Up to the recording's day the index gives what it gave then, unless a release was withdrawn or a file added."""
    wheels, _ = resolve(LIVE, "", tmp_path)
    assert abs(len(wheels) - LIVE["wheels"]) <= 2
    assert abs(sum(wheel.file.size for wheel in wheels) - LIVE["bytes"]) < LIVE["bytes"] // 50
    assert {wheel.index for wheel in wheels} == {"pypi"}
    found = {wheel.name: wheel for wheel in wheels}
    assert found["vllm"].requested_by == ("spec",)
    assert "vllm" in found["torch"].requested_by
    assert found["torch"].file.size > 400_000_000
    assert not any(tmp_path.glob("blobs/*/*")), "no wheel is fetched while locking"
