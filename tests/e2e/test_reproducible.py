"""One lock, two builds: in other folders, under another umask, and by another user, they are the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from parts import journeys, need
from parts.gguf import language_model
from parts.specs import write_spec
from parts.wheels import WheelIndex

_NOBODY = "65534"
# Another user in all but what it may read: the interpreter may lie below root's home.
_AS_NOBODY = (
    *("--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; those of pytest are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="airbundle-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def office(open_folder: Path, wheel_index: WheelIndex) -> Path:
    """A folder with a spec, its lock, a model whose weights shrink, and a key."""
    office = open_folder / "office"
    office.mkdir()
    model = open_folder / "m.gguf"
    model.write_bytes(language_model(vocabulary=2048, width=512))
    spec = write_spec(office / "tiny.toml", wheel_index, model)
    journeys.airbundle("keygen", office / "key", "--no-passphrase").check()
    journeys.airbundle("lock", spec, "--cache", open_folder / "cache-of-lock").check()
    return office


@pytest.fixture
def releases(open_folder: Path, office: Path) -> tuple[Path, Path]:
    """The bundle of a release v0 whose last tensor is another, and that of v1."""
    other = open_folder / "other.gguf"
    data = bytearray((open_folder / "m.gguf").read_bytes())
    data[-1000] ^= 1
    other.write_bytes(data)
    older = ("--set", f"model.source=local:{other}", "--set", "bundle.version=v0", "--lock", open_folder / "v0.json")
    words = ("build", office / "tiny.toml", "-o", open_folder / "dist", "--cache", open_folder / "cache-of-lock")
    journeys.airbundle(*words, *older, env={"SOURCE_DATE_EPOCH": "1700000000"}).check()
    journeys.airbundle(*words).check()
    return open_folder / "dist" / "tiny-v0", open_folder / "dist" / "tiny-v1"


def _listed(bundle: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(bundle.iterdir())}


def _build_as_two(open_folder: Path, office: Path, what: Callable[[Path], Sequence[object]]) -> None:
    """Build twice and compare. `what` tells for an office's copy what to build."""

    def build(home: Path, prefix: tuple[str, ...], umask: int, zone: str) -> dict[str, str]:
        words = ("build", *what(home), "--sign-key", home / "key", "--part-size", "1MB")
        environment = {"HOME": str(home), "TZ": zone, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": str(umask)}
        argv = [*prefix, sys.executable, "-m", "airbundle", *words, "-o", home / "dist", "--cache", home / "cache"]
        journeys.run(argv, env=environment, umask=umask).check()
        (made,) = (home / "dist").iterdir()
        return _listed(made) if made.is_dir() else _listed(home / "dist")

    mine, theirs = open_folder / "first 甲", open_folder / "second"
    for home in (mine, theirs):
        shutil.copytree(office, home)
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, int(_NOBODY), int(_NOBODY))
    first = build(mine, (), 0o022, "UTC")
    second = build(theirs, (need.program("setpriv"), *_AS_NOBODY), 0o077, "Asia/Shanghai")
    assert first == second
    owner = next((theirs / "dist").iterdir()).stat().st_uid
    assert owner == int(_NOBODY), "the second build was another user's"


@pytest.mark.real("other-user")
@pytest.mark.parametrize("how", [(), ("--compress", "weights"), ("--single",)], ids=["plain", "compressed", "single"])
def test_two_users_two_umasks_two_folders_one_bundle(open_folder: Path, office: Path, how: tuple[str, ...]) -> None:
    _build_as_two(open_folder, office, lambda home: (home / "tiny.toml", *how))


@pytest.mark.real("other-user")
def test_a_difference_and_a_way_back_too(open_folder: Path, office: Path, releases: tuple[Path, Path]) -> None:
    older, newer = releases
    _build_as_two(open_folder, office, lambda home: (home / "tiny.toml", "--base", older))
    for name in ("first 甲", "second"):
        shutil.rmtree(open_folder / name)
    _build_as_two(open_folder, office, lambda _home: ("--rollback-to", older, "--from", newer))
