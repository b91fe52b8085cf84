"""What every engine must do, whatever is discovered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airbundle import engines
from airbundle.contract.lock import (
    LOCK_VERSION,
    BundleLock,
    LockedFile,
    LockedImage,
    LockedModel,
    LockedWheel,
    WheelSettings,
)
from airbundle.contract.spec import BundleSpec
from airbundle.data import data_dir
from airbundle.profiles import load
from airbundle.spec import load_spec
from airbundle_onsite.contract.launch import PLACEHOLDERS, LaunchPlan, fill
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import UsageError

BLOB = LockedFile("blob", "0" * 64, 1)
GOLDEN = Path(__file__).parents[1] / "golden"
VALUES = {name: f"<{name}>" for name in PLACEHOLDERS}


def locks(name: str) -> Iterator[BundleLock]:
    """A lock for every manifest that uses this engine, its contents made up."""
    for path in sorted(data_dir("manifests").glob("*.toml")):
        spec = load_spec(path)
        if spec.engine.name == name:
            yield made_up(spec, path)


def made_up(spec: BundleSpec, path: Path) -> BundleLock:
    model = gguf_model(spec) if spec.model.file else safetensors_model(spec)
    names = [re.split(r"[=<>\[ ]", line)[0] for line in spec.wheels.requirements] if spec.wheels else []
    wheels = tuple(
        LockedWheel(each, "1", LockedFile(f"{each}-1-py3-none-any.whl", "2" * 64, 1), requested_by=("spec",))
        for each in names
    )
    name = spec.image.source.partition("/")[2] if spec.image else ""
    image = LockedImage(name, "s", "d", BLOB, BLOB, (), (), "linux/amd64", entrypoint=("/usr/bin/llama-server",))
    return BundleLock(
        LOCK_VERSION,
        0,
        str(path),
        spec,
        "0" * 64,
        load(spec.target.profile),
        (model,),
        wheels,
        WheelSettings("3.11", "linux_x86_64") if wheels else None,
        (image,) if spec.image else (),
    )


def gguf_model(spec: BundleSpec) -> LockedModel:
    file = Path(spec.model.file).name
    return LockedModel(spec.model.served_name, spec.model.source, "r", "gguf", (LockedFile(file, "1" * 64, 9),), file)


def safetensors_model(spec: BundleSpec) -> LockedModel:
    config = (GOLDEN / "configs" / "qwen2.5-7b.json").read_text()
    files = (LockedFile("model.safetensors", "1" * 64, 15_231_233_024), LockedFile("config.json", "3" * 64, 9))
    return LockedModel(spec.model.served_name, spec.model.source, "r", "safetensors", files, facts={"config": config})


@pytest.fixture(params=sorted(engines.discover()))
def name(request: pytest.FixtureRequest) -> str:
    """Every engine in turn."""
    return str(request.param)


def plans(name: str) -> list[tuple[BundleLock, LaunchPlan]]:
    return [(lock, plan) for lock in locks(name) for plan in engines.create(name).plans(lock)]


def test_it_is_known_by_its_own_name(name: str) -> None:
    assert engines.create(name).name == name


def test_a_manifest_shows_it(name: str) -> None:
    assert plans(name)


def test_its_plans_survive_the_manifest(name: str) -> None:
    for _, plan in plans(name):
        assert decode_json(LaunchPlan, encode(plan), "plan") == plan


def test_its_plans_can_be_filled_and_name_model_address_and_port(name: str) -> None:
    for lock, plan in plans(name):
        words = [fill(word, VALUES) for word in plan.argv]
        values = [fill(value, VALUES) for value in plan.env.values()]
        assert any(word.startswith("<model>") for word in words)  # its last part is the served name
        assert {"<host>", "<port>"} <= {*words, *values}
        assert not [word for word in words if not word]
        assert plan.model == lock.models[0].served_name
        assert plan.needs.memory > 0


def test_a_gpu_plan_has_neighbours_from_the_most_demanding_on(name: str) -> None:
    for lock in locks(name):
        made = engines.create(name).plans(lock)
        if lock.profile.gpu is None:
            continue
        assert len(made) >= 3
        demands = [(plan.needs.gpus, plan.needs.gpu_memory) for plan in made]
        assert len(set(demands)) == len(demands)
        assert demands[0] == max(demands)
        assert all(plan.needs.architectures and plan.needs.capability for plan in made)


def test_its_plan_ids_are_unique(name: str) -> None:
    for lock in locks(name):
        ids = [plan.id for plan in engines.create(name).plans(lock)]
        assert len(ids) == len(set(ids))


def test_what_its_plans_read_from_config_is_there(name: str) -> None:
    for lock, plan in plans(name):
        files = engines.create(name).config_files(lock)
        wanted = {word.removeprefix("{config}/") for word in plan.argv if word.startswith("{config}/")}
        assert wanted <= set(files)


def test_its_log_patterns_compile_and_failures_have_a_cure(name: str) -> None:
    for _, plan in plans(name):
        for pattern in plan.log_patterns:
            re.compile(pattern.regex)
            assert pattern.meaning
            assert pattern.level == "fact" or pattern.remedy, pattern.id
        assert len({pattern.id for pattern in plan.log_patterns}) == len(plan.log_patterns)


def test_its_reasons_are_about_flags_it_sets(name: str) -> None:
    for _, plan in plans(name):
        for flag in plan.flags:
            assert flag.name in plan.argv or flag.name in plan.env
            assert flag.reason


def test_an_unknown_engine_is_refused_with_a_near_miss() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'llama\.cpp'"):
        engines.create("lama.cpp")
