"""`airbundle plan` of every manifest that comes with the project, from a lock and within its time; hubs and registries
have stand-ins."""

from __future__ import annotations

import re
import resource
import tarfile
from pathlib import Path

import pytest

from parts import images, journeys
from parts.models import write_tiny_model

PROMISED = 2.0  # seconds, from a lock
MANIFESTS = sorted(path for path in journeys.MANIFESTS.glob("*.toml"))


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small safetensors model, and an image for each entry point that an engine is known by."""
    folder = tmp_path_factory.mktemp("stand-ins")
    model = folder / "model"
    write_tiny_model(model)
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    layer = folder / "empty.layer"
    with tarfile.open(layer, "w"):
        pass
    made = {"model": model}
    for name, entry in (("vllm", ("vllm", "serve")), ("other", ("/usr/bin/llama-server",))):
        made[name] = folder / f"{name}.tar"
        with layer.open("rb") as handle:
            images.write_archive(made[name], f"stand-in/{name}:1", [handle], images.Config(entrypoint=entry))
    return made


@pytest.mark.timeout(300)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_plan_says_sources_bytes_cache_parts_and_disk(
    manifest: Path, stand_ins: dict[str, Path], tmp_path: Path
) -> None:
    text, words = manifest.read_text(), list[str | Path]()
    if re.search(r'^source = "hf:', text, re.M):
        words += ["--set", f"model.source=local:{stand_ins['model']}", "--set", "serving.context=128"]
    if image := re.search(r'^source = "registry:(.*)"', text, re.M):
        words += ["--set", f"image.source=docker-archive:{stand_ins['vllm' if 'vllm' in image[1] else 'other']}"]
    if "[wheels]" in text and image:  # otherwise they would be resolved inside the image, by an engine
        words += ["--set", 'wheels.resolve="cross"']
    words = [manifest, "--lock", tmp_path / "lock.json", *words, "--cache", journeys.store.root() / "airbundle"]
    journeys.airbundle("lock", *words).check()
    before = _seconds_of_children()
    said = journeys.airbundle("plan", *words).check()
    between = _seconds_of_children()
    assert "locking again" not in said.err
    for line in (
        r"^To fetch +",
        r"^Payload +about .* in \d+ part",
        r"^Peak disk +about .* here",
        r"at the site",
        r"^Launch plan ",
    ):
        assert re.search(line, said.out, re.M), f"no {line!r} in\n{said.out}"
    assert re.search(r"^  model .*(in the cache|to fetch)", said.out, re.M)
    told = journeys.airbundle("plan", *words, "--json").check().json
    spent = min(between - before, _seconds_of_children() - between)
    assert spent < PROMISED, "of processor time: what others do on this machine is not counted"
    assert told["payload"] > 0 and sum(told["parts"]) == told["payload"] and told["peak"]


def _seconds_of_children() -> float:
    """Of processor time, by all the programs that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
