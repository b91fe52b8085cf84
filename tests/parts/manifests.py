"""The manifests that come with the project, lockable where no hub, registry or engine can be reached: small models and
images stand in. A plan reads headers and the lock, so that their size is of no account."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from airbundle.data import data_dir
from parts import images
from parts.models import write_tiny_model

MANIFESTS = sorted(data_dir("manifests").glob("*.toml"))


class StandIns:
    """A safetensors model, and an image for each entry point that an engine is known by.

    Args:
        folder: an existing directory for them.
    """

    def __init__(self, folder: Path) -> None:
        self._model = folder / "model"
        write_tiny_model(self._model)
        (self._model / "chat_template.jinja").write_text("{{ messages[0].content }}")
        layer = folder / "empty.layer"
        with tarfile.open(layer, "w"):
            pass
        self._vllm = _image(folder / "vllm.tar", layer, ("vllm", "serve"))
        self._other = _image(folder / "other.tar", layer, ("/usr/bin/llama-server",))

    def words(self, manifest: Path) -> Sequence[str]:
        """Options for a command that takes the manifest; wheels, and models that are wheels, stay as they are."""
        text, words = manifest.read_text(), list[str]()
        if re.search(r'^source = "hf:', text, re.M):
            words += ["--set", f"model.source=local:{self._model}", "--set", "serving.context=128"]
        if image := re.search(r'^source = "registry:(.*)"', text, re.M):
            words += ["--set", f"image.source=docker-archive:{self._vllm if 'vllm' in image[1] else self._other}"]
            if "[wheels]" in text:  # otherwise they would be resolved inside the image, by an engine
                words += ["--set", 'wheels.resolve="cross"']
        return words


def _image(archive: Path, layer: Path, entry: tuple[str, ...]) -> Path:
    """An image with one empty layer."""
    with layer.open("rb") as handle:
        images.write_archive(archive, f"stand-in/{archive.stem}:1", [handle], images.Config(entrypoint=entry))
    return archive
