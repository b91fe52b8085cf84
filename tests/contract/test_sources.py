"""What every source does, whichever are found: one module each, discovered, typed, and clear about what it lacks."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from airbundle import sources
from airbundle.contract.lock import LockedFile
from airbundle.contract.spec import ImageTable, ModelTable
from airbundle.sources.base import Source
from airbundle_onsite.errors import AirbundleError, UsageError
from parts.sources import context

SCHEMES = sorted(sources.discover())


def test_the_known_sources_are_found() -> None:
    assert {"daemon", "hf", "local", "pypi", "registry"} <= set(SCHEMES)


def test_unknown_scheme_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        sources.create("ftp", context(tmp_path))
    assert all(f"{scheme}:" in caught.value.remedy for scheme in SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_has_the_seams_methods(scheme: str, tmp_path: Path) -> None:
    source = sources.create(scheme, context(tmp_path))
    assert source.scheme == scheme
    for name in ("lock_model", "lock_image", "fetch"):
        wanted = list(inspect.signature(getattr(Source, name)).parameters)[1:]
        assert list(inspect.signature(getattr(source, name)).parameters) == wanted


@pytest.mark.parametrize("scheme", SCHEMES)
def test_refuses_by_name_what_it_does_not_hold(scheme: str, tmp_path: Path) -> None:
    source = sources.create(scheme, context(tmp_path, {"HF_ENDPOINT": "http://127.0.0.1:9"}))
    refused = 0
    for lock in (
        lambda: source.lock_model(ModelTable(f"{scheme}:UP CASE", "name")),
        lambda: source.lock_image(ImageTable(f"{scheme}:UP CASE"), "linux/amd64"),
    ):
        with pytest.raises(AirbundleError) as caught:
            lock()
        assert scheme in caught.value.summary
        assert caught.value.remedy
        refused += f"{scheme}: holds" in caught.value.summary
    assert refused <= 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_making_one_touches_nothing(scheme: str, tmp_path: Path) -> None:
    sources.create(scheme, context(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_module_stands_alone(scheme: str) -> None:
    name = f"airbundle.sources.{sources.discover()[scheme]}"
    code = (
        f"import sys, {name}; "
        "sys.exit(any(name in sys.modules for name in ('airbundle.cli', 'airbundle.build', 'airbundle.resolve')))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_locked_files_tell_who_fetches_them(tiny_model: Path, tmp_path: Path) -> None:
    source = sources.create("local", context(tmp_path))
    locked = source.lock_model(ModelTable(f"local:{tiny_model}", "tiny"))
    assert all(isinstance(file, LockedFile) and file.origin["source"] == "local" for file in locked.files)
