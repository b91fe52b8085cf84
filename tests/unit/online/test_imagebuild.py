"""The Dockerfile of a base image made at the office, and what may stand in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from airbundle.contract.lock import LockedFile, LockedImage
from airbundle.contract.spec import ImageBuildTable, ImageTable
from airbundle.imagebuild import Recipe, recipe
from airbundle_onsite.contract.artifacts import Layer
from parts import need

BLOB = LockedFile("sha256:" + "c" * 64, "c" * 64, 10)
LAYER = Layer("sha256:" + "a" * 64, 1, "sha256:" + "b" * 64, "application/vnd.oci.image.layer.v1.tar")
BASE = LockedImage(
    "cuda:13", "registry:nvcr.io/nvidia/cuda:13", BLOB.path, BLOB, BLOB, (LAYER,), (BLOB,), "linux/amd64"
)


def made(certificates: bool = False, **settings: object) -> Recipe:
    return recipe(ImageBuildTable(base="registry:nvcr.io/nvidia/cuda:13", **settings), BASE, certificates=certificates)  # type: ignore[arg-type]


def test_the_packages_of_either_family() -> None:
    text = made(packages=("libgomp1", "python3"), pip=True, compiler=True).dockerfile
    (apt,) = re.findall(r"--no-install-recommends (.*); ", text)
    (dnf,) = re.findall(r'"\$manager" "\$@" install (.*); ', text)
    assert apt.split() == [
        "libgomp1",
        *["python3", "python3-pip", "python3-venv", "gcc", "g++", "libc6-dev", "python3-dev"],
    ]
    assert dnf.split() == ["libgomp1", *["python3", "python3-pip", "gcc", "gcc-c++", "glibc-devel", "python3-devel"]]
    assert "# Base: registry:nvcr.io/nvidia/cuda:13, for linux/amd64" in text


def test_nothing_to_install_runs_nothing() -> None:
    text = made(certificates=True, env={"A": 'x "y" $z \\'}, user="1000").dockerfile
    assert "RUN" not in text and "COPY" not in text
    assert 'ENV A="x \\"y\\" \\$z \\\\"' in text
    assert text.rstrip().endswith("USER 1000")


def test_the_key_is_of_what_the_image_depends_on() -> None:
    plain = made(packages=("jq",))
    assert made(certificates=True, packages=("jq",)).key == plain.key
    assert "COPY ca.pem" in made(certificates=True, packages=("jq",)).dockerfile
    for other in (made(packages=("jq", "curl")), made(packages=("jq",), refresh="2"), made(packages=("jq",), user="1")):
        assert other.key != plain.key


@pytest.mark.real("shellcheck")
@pytest.mark.parametrize("compiler", [False, True])
def test_the_script_inside_is_sound(tmp_path: Path, compiler: bool) -> None:
    text = made(packages=("jq",), compiler=compiler).dockerfile
    script = text[text.index("RUN ") + 4 :].replace("\\\n", "\n")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{script}")
    argv = [need.program("shellcheck"), str(tmp_path / "run.sh")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "settings",
    [
        {"packages": ("jq; rm -rf /",)},
        {"packages": ("--allow-unauthenticated",)},
        {"packages": ("$(id)",)},
        {"env": {"A B": "1"}},
        {"env": {"A": "1\nRUN id"}},
        {"user": "0\nRUN id"},
        {"base": "debian"},
    ],
)
def test_what_would_be_another_instruction_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"cannot stand in a Dockerfile|write registry:"):
        ImageBuildTable(**{"base": "registry:debian:12", **settings})  # type: ignore[arg-type]


def test_source_or_build_and_not_both() -> None:
    build = ImageBuildTable("registry:debian:12")
    assert ImageTable(build=build, insecure=True).scheme == "build"
    assert ImageTable("docker-archive:x.tar").scheme == "docker-archive"
    for wrong in ({}, {"source": "daemon:x:1", "build": build}):
        with pytest.raises(ValueError, match="either source or"):
            ImageTable(**wrong)  # type: ignore[arg-type]
