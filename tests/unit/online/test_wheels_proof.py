"""The dry run by pip that seals fetched wheels, for a target that is not here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedWheel, WheelSettings
from airbundle.sources.base import SourceContext
from airbundle.wheels.proof import prove_installable
from airbundle_onsite.errors import IntegrityError
from airbundle_onsite.system import Silent, SystemRunner
from parts.wheels import make_wheel

TARGET = WheelSettings("3.13", "linux_aarch64", "2.31")


@pytest.fixture
def context(tmp_path: Path) -> SourceContext:
    """With settings of pip that must not count."""
    environ = {**os.environ, "PIP_NO_BINARY": ":all:", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    return SourceContext(Cache(tmp_path / "cache"), Silent(), SystemRunner(), tmp_path, environ.get)


def locked(context: SourceContext, name: str, tags: str) -> LockedWheel:
    path = make_wheel(context.base / "made", name, "1.0", ["elsewhere; python_version < '3.13'"], tags)
    sha256, size = context.cache.add_stream([path.read_bytes()])
    return LockedWheel(name, "1.0", LockedFile(path.name, sha256, size))


def test_wheels_of_another_python_and_architecture(context: SourceContext) -> None:
    tags = (
        "py3-none-any",
        "cp313-cp313-manylinux_2_17_aarch64",
        "cp39-abi3-manylinux2014_aarch64",
        "cp313-none-manylinux_2_31_aarch64",
    )
    wheels = [locked(context, f"p{number}", each) for number, each in enumerate(tags)]
    prove_installable(wheels, TARGET, context)


@pytest.mark.parametrize("tags", ["cp313-cp313-manylinux_2_34_aarch64", "cp312-cp312-manylinux_2_17_aarch64"])
def test_what_does_not_fit_is_said(context: SourceContext, tags: str) -> None:
    good, bad = locked(context, "good", "py3-none-any"), locked(context, "bad", tags)
    with pytest.raises(IntegrityError, match=r"Python 3\.13 on aarch64 with glibc 2\.31") as caught:
        prove_installable([good, bad], TARGET, context)
    assert any("bad" in line for line in caught.value.details)
