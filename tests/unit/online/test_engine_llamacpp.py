"""What llama.cpp is told, and why."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import pytest

from airbundle import profiles
from airbundle.contract.lock import (
    LOCK_VERSION,
    BundleLock,
    LockedFile,
    LockedImage,
    LockedModel,
    LockedWheel,
    WheelSettings,
)
from airbundle.contract.spec import (
    BundleSpec,
    BundleTable,
    EngineTable,
    ImageTable,
    ModelTable,
    RuntimeTable,
    ServingTable,
    TargetTable,
    WheelsTable,
)
from airbundle.data import data_dir
from airbundle.engines.ggufplans import estimate
from airbundle.engines.llamacpp import LAUNCHER, create
from airbundle_onsite.contract.fingerprint import CpuFacts, Fingerprint, MemoryFacts
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.errors import UsageError
from airbundle_onsite.plan import choose_plan
from unit.onsite.hosts import docker, host, manifest

SIZE = 98_362_432
SMOLLM2 = {
    "block_count": "30",
    "embedding_length": "576",
    "attention.head_count": "9",
    "attention.head_count_kv": "3",
    "context_length": "8192",
    "vocabulary": "49152",
}
XLLAMACPP = "xllamacpp-2026.1-cp310-abi3-manylinux_2_17_x86_64.whl"


def wheel(name: str, filename: str, requested_by: tuple[str, ...] = ("spec",), python: str = ">=3.10") -> LockedWheel:
    return LockedWheel(name, "2026.1", LockedFile(filename, "0" * 64, 1), "pypi", requested_by, python)


WHEELS = (wheel("pip", "pip-26.0-py3-none-any.whl", ("airbundle",)), wheel("xllamacpp", XLLAMACPP))


def image(*entrypoint: str) -> LockedImage:
    blob = LockedFile("x", "0" * 64, 1)
    return LockedImage("llama:b1", "daemon:x:1", "sha256:x", blob, blob, (), (), "linux/amd64", entrypoint=entrypoint)


def lock(
    kind: str = "venv",
    wheels: tuple[LockedWheel, ...] = WHEELS,
    entrypoint: tuple[str, ...] = ("/usr/bin/llama-server",),
    *,
    flags: Mapping[str, str] | None = None,
    facts: Mapping[str, str] = SMOLLM2,
    profile: str = "cpu-x86_64",
    gpus: int = 0,
    context: int = 2048,
    form: str = "gguf",
) -> BundleLock:
    spec = BundleSpec(
        bundle=BundleTable("b", "1"),
        target=TargetTable(profile=profile, gpus=gpus),
        model=ModelTable("local:x", "m"),
        engine=EngineTable("llama.cpp", flags=flags or {}),
        runtime=RuntimeTable(kind),  # type: ignore[arg-type]
        image=ImageTable("daemon:x:1") if kind == "docker" else None,
        wheels=WheelsTable(("xllamacpp",)) if wheels else None,
        serving=ServingTable(context=context, concurrency=2, port=8123),
    )
    model = LockedModel("m", "local:x", "r", form, (LockedFile("w.gguf", "0" * 64, SIZE),), "w.gguf", facts=facts)  # type: ignore[arg-type]
    return BundleLock(
        LOCK_VERSION,
        0,
        "t",
        spec,
        "0" * 64,
        profiles.load(profile),
        (model,),
        wheels,
        WheelSettings("3.11", "linux_x86_64") if wheels else None,
        (image(*entrypoint),) if kind == "docker" else (),
    )


def plan(made: BundleLock) -> LaunchPlan:
    """The first: all that was asked for."""
    return create().plans(made)[0]


def value(made: LaunchPlan, flag: str) -> str:
    return made.argv[made.argv.index(flag) + 1]


def test_the_wheel_is_started_by_the_launcher() -> None:
    made = plan(lock())
    assert made.argv[:4] == ("{python}", f"{{config}}/{LAUNCHER}", "--model", "{model}/w.gguf")
    assert (value(made, "--ctx-size"), value(made, "--parallel"), made.port) == ("4096", "2", 8123)
    assert (made.wheels, made.image, made.needs.python) == (True, None, ">=3.10")
    assert list(create().config_files(lock())) == [LAUNCHER]
    assert create().version(lock()) == "xllamacpp 2026.1"


def beside(role: str, name: str, form: str = "gguf") -> LockedModel:
    file = LockedFile(f"{name}.gguf", "1" * 64, 1 << 20)
    return LockedModel(name, "local:y", "r", form, (file,), file.path if form == "gguf" else "", role=role)  # type: ignore[arg-type]


def test_what_stands_beside_the_model_is_named_to_the_engine_and_counts_as_memory() -> None:
    made = lock()
    extras = (beside("adapter", "a"), beside("draft", "d"), beside("adapter", "b"), beside("projector", "p"))
    more = plan(dataclasses.replace(made, models=(*made.models, *extras)))
    assert value(more, "--lora") == "{models}/a/a.gguf,{models}/b/b.gguf"
    assert value(more, "--model-draft") == "{models}/d/d.gguf"
    assert value(more, "--mmproj") == "{models}/p/p.gguf"
    assert more.needs.memory >= plan(made).needs.memory + (4 << 20)
    assert "--lora" not in plan(made).argv


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ((beside("draft", "d", "safetensors"),), "draft d: llama.cpp reads GGUF, this is safetensors"),
        ((beside("draft", "d"), beside("draft", "e")), "2 models with the role draft"),
    ],
)
def test_what_cannot_stand_beside_the_model(extras: tuple[LockedModel, ...], words: str) -> None:
    made = lock()
    with pytest.raises(UsageError, match=words):
        plan(dataclasses.replace(made, models=(*made.models, *extras)))


def test_files_beside_the_model_are_not_for_flags() -> None:
    with pytest.raises(UsageError, match=r"--lora names a file of the office"):
        plan(lock(flags={"lora": "/x.gguf"}))


def test_an_image_keeps_its_entry_point() -> None:
    made = plan(lock("docker", (), ("/app/llama-server", "--{odd}")))
    assert made.argv[:3] == ("/app/llama-server", "--{{odd}}", "--model")
    assert (made.image, made.wheels, made.needs.python) == ("llama:b1", False, "")
    assert create().config_files(lock("docker", ())) == {}
    assert create().version(lock("docker", ())) == "b1"


def test_wheels_on_an_image_are_started_by_the_launcher_in_it() -> None:
    made = plan(lock("docker", entrypoint=()))
    assert made.argv[:2] == ("{python}", f"{{config}}/{LAUNCHER}")
    assert (made.image, made.wheels, made.needs.python) == ("llama:b1", True, "")


@pytest.mark.parametrize(
    ("wheels", "pythons"),
    [
        (WHEELS, ">=3.10"),
        ((*WHEELS, wheel("leaf", "leaf-1-py3-none-any.whl", ("xllamacpp",))), ">=3.11,<3.12"),
        ((*WHEELS, wheel("native", "native-1-cp311-cp311-linux_x86_64.whl")), ">=3.11,<3.12"),
        ((WHEELS[0], wheel("xllamacpp", XLLAMACPP, python="")), ">=3.10"),
    ],
)
def test_the_pythons_are_those_the_wheels_are_right_for(wheels: tuple[LockedWheel, ...], pythons: str) -> None:
    assert plan(lock(wheels=wheels)).needs.python == pythons


def test_memory_is_counted_from_the_header() -> None:
    memory = estimate(lock(), lock().models[0])
    assert memory.kv_cache == 4096 * 30 * 3 * (64 + 64) * 2  # tokens, layers, heads, keys and values, two bytes
    eight = estimate(lock(), lock().models[0], 2048, 1, "q8_0").kv_cache
    assert eight == memory.kv_cache // 2 * 34 // 64  # half the tokens, and 34 bytes for 32 values
    assert (memory.weights, memory.exact) == (SIZE, True)
    assert memory.prompt_cache <= memory.kv_cache
    assert plan(lock()).needs.memory == memory.total
    # Seen with the real engine: 247 MB at most, before anything was in the prompt cache.
    assert 247_000_000 < memory.total < 600_000_000


def test_heads_that_differ_by_layer_and_explicit_widths_are_counted() -> None:
    facts = {**SMOLLM2, "block_count": "2", "attention.head_count_kv": "4,2", "attention.key_length": "128"}
    assert estimate(lock(facts=facts), lock(facts=facts).models[0]).kv_cache == 4096 * 6 * (128 + 64) * 2


def test_without_a_header_the_estimate_is_rough_and_says_so() -> None:
    made = lock(facts={})
    assert not estimate(made, made.models[0]).exact
    assert any("not at hand" in flag.reason for flag in plan(made).flags)


def test_a_gpu_profile_gets_a_gpu_plan_only() -> None:
    made = plan(lock("docker", (), profile="h200-sxm", gpus=2))
    assert (made.id, made.gpus, made.needs.gpus, made.needs.capability) == ("gpu2", "2", 2, "9.0")
    assert value(made, "--gpu-layers") == "999"
    assert any(pattern.id == "llama.cpu-fallback" and pattern.level == "fail" for pattern in made.log_patterns)
    assert made.needs.gpu_memory > SIZE // 2


def test_less_for_hosts_with_less() -> None:
    made = create().plans(lock())
    assert [each.id for each in made] == ["cpu", "cpu-1", "cpu-1-q8"]
    assert [(value(each, "--ctx-size"), value(each, "--parallel")) for each in made] == [
        ("4096", "2"),
        ("2048", "1"),
        ("2048", "1"),
    ]
    assert {value(made[2], flag) for flag in ("--cache-type-k", "--cache-type-v")} == {"q8_0"}
    assert value(made[2], "--flash-attn") == "on"
    needs = [each.needs.memory for each in made]
    assert needs == sorted(set(needs), reverse=True)
    reasons = {flag.name: flag.reason for flag in made[2].flags}
    assert "here 1 request at once in place of 2 and a cache in q8_0 in place of 16 bits" in reasons["--parallel"]


@pytest.mark.parametrize(("nodes", "numa"), [(0, False), (1, False), (2, True)])
def test_threads_are_spread_over_numa_nodes_that_are_known(nodes: int, numa: bool) -> None:
    made = lock()
    found = plan(dataclasses.replace(made, profile=dataclasses.replace(made.profile, numa_nodes=nodes)))
    assert ("--numa" in found.argv) is numa
    if numa:
        assert value(found, "--numa") == "distribute"
    threads = next(flag.reason for flag in found.flags if flag.name == "--threads")
    assert ("--numa keeps its default" in threads) is (nodes == 0)
    card = lock("docker", (), profile="h200-sxm")
    on_gpu = dataclasses.replace(card, profile=dataclasses.replace(card.profile, numa_nodes=nodes))
    assert "--numa" not in plan(on_gpu).argv


def test_where_one_request_was_asked_for_the_context_gets_shorter() -> None:
    made = lock(context=8192)
    serving = dataclasses.replace(made.spec.serving, concurrency=1)
    found = create().plans(dataclasses.replace(made, spec=dataclasses.replace(made.spec, serving=serving)))
    assert [each.id for each in found] == ["cpu", "cpu-q8", "cpu-4096t-q8"]


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ({"cache-type-k": "q8_0"}, ["cpu", "cpu-1", "cpu-1-1024t"]),
        ({"parallel": "3"}, ["cpu"]),
        ({"ctx-size": "512"}, ["cpu"]),
    ],
)
def test_what_the_spec_sets_is_not_cut_down(flags: dict[str, str], ids: list[str]) -> None:
    assert [each.id for each in create().plans(lock(flags=flags))] == ids


def test_more_and_fewer_gpus() -> None:
    made = lock("docker", (), profile="rtx-4090", context=8192)
    big = dataclasses.replace(made.models[0], files=(LockedFile("w.gguf", "0" * 64, 20 << 30),))
    made = dataclasses.replace(made, models=(big,))
    found = create().plans(made)
    assert [each.id for each in found] == ["gpu1", "gpu2", "gpu1-1", "gpu1-1-q8"]
    assert found[1].needs.gpu_memory < 11 << 30 < found[3].needs.gpu_memory < found[0].needs.gpu_memory
    assert found[0].needs.architectures
    two = dataclasses.replace(made, spec=dataclasses.replace(made.spec, target=TargetTable("rtx-4090", gpus=2)))
    assert [each.id for each in create().plans(two)] == ["gpu2", "gpu2-1", "gpu2-1-q8", "gpu1"]


def test_a_host_with_less_memory_takes_a_later_plan() -> None:
    made = lock("docker", ())
    found = create().plans(made)
    bundle = dataclasses.replace(manifest(), launch=found)

    def site(memory: int) -> Fingerprint:
        cpu = CpuFacts(logical=4, physical=4, flags=made.profile.cpu_flags)
        return host(cpu=cpu, memory=MemoryFacts(memory, memory), docker=docker())

    for taken in found:
        chosen, checks = choose_plan(bundle, site(taken.needs.memory))
        assert chosen is not None
        assert chosen.id == taken.id
        assert [check.status for check in checks[:-1]] == ["skip"] * found.index(taken)
    assert choose_plan(bundle, site(found[-1].needs.memory - 1))[0] is None


def test_flags_of_the_spec_replace_add_and_take_away() -> None:
    made = plan(lock(flags={"cache-ram": "7", "flash-attn": "on", "metrics": "-", "no-slots": ""}))
    assert (value(made, "--cache-ram"), value(made, "--flash-attn")) == ("7", "on")
    assert "--metrics" not in made.argv
    assert made.argv[-1] == "--no-slots"
    assert made.argv.count("--cache-ram") == 1


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lock(flags={"cach-ram": "1"}), "did you mean '--cache-ram'"),
        (lock(flags={"port": "1"}), "--port is set by the site"),
        (lock(context=9000), "trained for 8192"),
        (lock(form="safetensors"), "serves GGUF"),
        (lock("docker", (), flags={"flash-atn": "on"}), r"llama\.cpp b1 does not take: --flash-atn"),
        (lock("docker", (), ("/app/tools.sh",)), "entry point /app/tools.sh, needed is llama-server"),
        (lock("docker", (), ()), r"entry point \(none\)"),
        (lock(wheels=(WHEELS[0],)), "hold no xllamacpp"),
    ],
)
def test_what_cannot_work_is_refused_with_a_cure(made: BundleLock, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        create().plans(made)
    assert caught.value.remedy


def test_every_flag_chosen_has_its_reason() -> None:
    made = plan(lock())
    plain = {"--model", "--host", "--port", "--alias"}
    assert {flag.name for flag in made.flags} == {word for word in made.argv if word.startswith("--")} - plain


def test_the_launcher_takes_what_the_engine_says_it_takes() -> None:
    """The engine reads the launcher's text; this runs it."""
    namespace: dict[str, object] = {"__name__": "launcher"}
    exec((data_dir("templates") / "engines" / LAUNCHER).read_text(), namespace)
    options = namespace["OPTIONS"]
    assert isinstance(options, tuple)
    for option in set(options) - {
        "--lora",
        "--model-draft",
        "--mmproj",
    }:  # those come from what stands beside the model
        flags = {option[2:]: "1" if option in namespace["VALUES"] else ""}  # type: ignore[operator]
        assert option in plan(lock(flags=flags)).argv


LINES = {
    "llama.slots": "0.00.233 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 2048, kv_unified = 'false'",
    "llama.context-capped": "the slot context (9000) exceeds the training context of the model (8192) - capping",
    "llama.context-overflow": "n_ctx_seq (9000) > n_ctx_train (8192) -- possible training context overflow",
    "llama.context-reduced": "context size reduced from 9000 to 4096 -> need 12 MiB less memory in total",
    "llama.no-chat-template": "chat template is not available or is not supported. This may cause",
    "llama.no-memory": "llama_init: failed to allocate compute pp buffers",
    "llama.library-missing": "xllamacpp cannot be loaded: libgomp.so.1: cannot open shared object file: No such",
    "llama.offloaded": "load_tensors: offloaded 31/31 layers to GPU",
    "llama.offloaded-otherwise": "load_tensors: offloaded 20/31 layers to GPU",
    "llama.gpu-lost": "CUDA error: unknown error",
    "llama.cpu-fallback": "warning: no usable GPU found, --gpu-layers option will be ignored",
}


def test_log_patterns_meet_the_engine_s_own_lines_and_no_others() -> None:
    patterns = {each.id: each for each in (*plan(lock()).log_patterns, *plan(lock(profile="h200-sxm")).log_patterns)}
    assert set(patterns) == set(LINES)
    for name, line in LINES.items():
        met = [each.id for each in patterns.values() if re.search(each.regex, line)]
        # how many layers there are is a fact also where it is not what was planned
        assert met == (["llama.offloaded", name] if name == "llama.offloaded-otherwise" else [name])


def test_a_silent_downgrade_is_judged_by_the_spec() -> None:
    made = lock("docker", (), profile="h200-sxm")
    serving = dataclasses.replace(made.spec.serving, downgrade="fail")
    strict = dataclasses.replace(made, spec=dataclasses.replace(made.spec, serving=serving))
    before, after = ({each.id: each.level for each in plan(one).log_patterns} for one in (made, strict))
    assert {name for name in before if before[name] != after[name]} == {
        "llama.context-capped",
        "llama.context-overflow",
        "llama.offloaded-otherwise",
    }
    assert before["llama.context-capped"] == "warn"
    assert before["llama.cpu-fallback"] == "fail"  # under any policy: it is not what the plan is for


def test_a_plan_is_the_same_each_time() -> None:
    assert plan(lock()) == plan(dataclasses.replace(lock(), created=5))
