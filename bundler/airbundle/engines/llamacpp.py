"""llama.cpp: llama-server in an image, or the same server inside the xllamacpp wheel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from packaging.utils import parse_wheel_filename

from airbundle.contract.lock import BundleLock, LockedModel
from airbundle.data import data_dir
from airbundle.engines.cputries import llama_server_tries
from airbundle.engines.facts import engine_facts
from airbundle.engines.flaglist import check_flags
from airbundle.engines.ggufplans import MIB, Case, cases
from airbundle.engines.llamapatterns import log_patterns
from airbundle.engines.trying import Try
from airbundle.memory.kv import KvDtype
from airbundle_onsite.contract.launch import Flag, Knob, LaunchPlan, PlanNeeds, Readiness
from airbundle_onsite.contract.record import near_miss
from airbundle_onsite.errors import UsageError
from airbundle_onsite.units import human_bytes

NAME = "llama.cpp"
WHEEL = "xllamacpp"
LAUNCHER = "serve_llama_cpp.py"
_CACHE_FLAGS = frozenset({"--cache-type-k", "--cache-type-v", "--flash-attn"})
_LOAD_RATE = 50 * MIB  # bytes a second of a slow disk, for how long loading may take
_HELP = "llama-server --help, build 11669"


def create() -> LlamaCpp:
    """See `airbundle.engines.base`."""
    return LlamaCpp()


class LlamaCpp:
    """See `airbundle.engines.base.Engine`."""

    name = NAME

    def version(self, lock: BundleLock) -> str:
        """The wheel's version, the spec's, or the image's tag."""
        wheel = next((wheel for wheel in lock.wheels if wheel.name == WHEEL), None)
        if wheel is not None:
            return f"{WHEEL} {wheel.version}"
        return lock.spec.engine.version or (lock.images[0].name.rpartition(":")[2] if lock.images else "")

    def plans(self, lock: BundleLock) -> tuple[LaunchPlan, ...]:
        """For the profile's GPUs when it has any, else for its CPU, never silently the other; then with less.

        Raises:
            UsageError: the model is not GGUF, or the spec asks for what the engine does not take.
        """
        model = _model(lock)
        command, set_by_spec = _command(lock), {f"--{name.lstrip('-')}" for name in lock.spec.engine.flags}
        smaller: tuple[KvDtype, ...] = () if set_by_spec & _CACHE_FLAGS else ("q8_0",)
        found = cases(lock, model, smaller, shortens=True)
        if set_by_spec & {"--ctx-size", "--parallel"}:  # the same words in every case
            found = found[:1]
        return tuple(self._plan(lock, command, case) for case in found)

    def _plan(self, lock: BundleLock, command: tuple[str, ...], case: Case) -> LaunchPlan:
        flags = _flags(lock, case)
        _check_flags(lock, flags)
        return LaunchPlan(
            id=case.id,
            engine=NAME,
            engine_version=self.version(lock),
            runtime=lock.spec.runtime.kind,
            argv=(*command, *_words(flags)),
            model=lock.models[0].served_name,
            image=lock.images[0].name if lock.spec.runtime.kind == "docker" else None,
            wheels=bool(lock.wheels),
            env={"HF_HUB_OFFLINE": "1", "HOME": "{state}"},
            gpus=str(case.gpus) if case.gpus else "none",
            port=lock.spec.serving.port,
            needs=_needs(lock, case),
            readiness=Readiness(load_seconds=120 + 2 * case.memory.weights // _LOAD_RATE),
            log_patterns=log_patterns(lock, case),
            knobs=_KNOBS,
            flags=tuple(flag for flag in flags if flag.reason),
        )

    def config_files(self, lock: BundleLock) -> Mapping[str, bytes]:
        """The launcher, when the engine is the wheel."""
        return {LAUNCHER: _launcher()} if lock.wheels else {}

    def rehearsal_tries(self, plan: LaunchPlan) -> Sequence[Try]:
        """See `airbundle.engines.trying`."""
        return llama_server_tries(plan)


def _number(facts: Mapping[str, str], key: str) -> int:
    """The largest of a fact's numbers; 0 when it is not there."""
    return max((int(number) for number in facts.get(key, "").split(",") if number.isdecimal()), default=0)


def _model(lock: BundleLock) -> LockedModel:
    model = lock.models[0]
    if model.format != "gguf" or not model.entry:
        raise UsageError(
            f"model {model.served_name}: llama.cpp serves GGUF, this is {model.format}",
            remedy="name a source with a GGUF file, and the file in model.file when there are several",
        )
    context, trained = lock.spec.serving.context, _number(model.facts, "context_length")
    if trained and context > trained:
        raise UsageError(
            f"serving.context is {context}, but {model.served_name} was trained for {trained} tokens",
            remedy=f"set serving.context to at most {trained}",
        )
    return model


def _needs(lock: BundleLock, case: Case) -> PlanNeeds:
    python = _pythons(lock) if lock.spec.runtime.kind == "venv" else ""
    gpus, each, host = case.demand
    if not gpus:
        return PlanNeeds(memory=host, cpu_flags=lock.profile.cpu_flags, python=python)
    assert lock.profile.gpu is not None
    return PlanNeeds(
        gpus=gpus,
        gpu_memory=each,
        memory=host,
        capability=lock.profile.gpu.capability,
        architectures=engine_facts(NAME).release("").architectures,
        cpu_flags=lock.profile.cpu_flags,
        python=python,
    )


def _pythons(lock: BundleLock) -> str:
    """The Pythons that the wheels are right for: as they say themselves, or the one minor they were resolved for.

    A closure of several projects may differ between Pythons (markers), and a wheel for one ABI fits one only.
    """
    wheels = [wheel for wheel in lock.wheels if wheel.name != "pip"]
    tags = [tag for wheel in wheels for tag in parse_wheel_filename(wheel.file.path)[3]]
    portable = all(tag.abi in ("abi3", "none") for tag in tags)
    if portable and all(wheel.requested_by == ("spec",) for wheel in wheels):
        limits = {part.strip() for wheel in lock.wheels for part in wheel.requires_python.split(",") if part.strip()}
        return ",".join(sorted(limits)) or ">=3.9"
    assert lock.wheel_settings is not None
    major, _, minor = lock.wheel_settings.python.partition(".")
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def _command(lock: BundleLock) -> tuple[str, ...]:
    if lock.wheels:
        if not any(wheel.name == WHEEL for wheel in lock.wheels):
            raise UsageError(
                f"the wheels hold no {WHEEL}, which is what runs llama.cpp from wheels",
                remedy=f'add "{WHEEL}" to wheels.requirements',
            )
        return ("{python}", f"{{config}}/{LAUNCHER}")
    entrypoint = lock.images[0].entrypoint
    if not entrypoint or not PurePosixPath(entrypoint[0]).name.startswith("llama-server"):
        raise UsageError(
            f"image {lock.images[0].name}: entry point {' '.join(entrypoint) or '(none)'}, needed is llama-server",
            remedy="name an image of llama.cpp's server; or a base image with Python, and [wheels] with "
            f'requirements = ["{WHEEL}"]',
        )
    return tuple(word.replace("{", "{{").replace("}", "}}") for word in entrypoint)


def _flags(lock: BundleLock, case: Case) -> list[Flag]:
    """Every flag in order; those without a reason say only what to serve and where. The spec's own come last."""
    memory, model = case.memory, lock.models[0]
    total = case.context * case.concurrency
    seen = "from the header of the weights" if memory.exact else "roughly, since the weights' header was not at hand"
    flags = [
        Flag("--model", f"{{model}}/{_literal(model.entry)}", ""),
        Flag("--host", "{host}", ""),
        Flag("--port", "{port}", ""),
        Flag("--alias", "{served_name}", ""),
        Flag(
            "--ctx-size",
            str(total),
            f"{case.context} tokens for each of {case.concurrency} requests, which share this number evenly; "
            f"{human_bytes(memory.kv_cache)} of keys and values, {seen}",
            _HELP,
        ),
        Flag("--parallel", str(case.concurrency), case.reason("serving.concurrency of the spec"), _HELP),
        *_cpu(lock, case),
        Flag(
            "--cache-ram",
            str(memory.prompt_cache // MIB),
            "caps the cache of past prompts at the size of the key-value cache; the default of 8192 MiB comes on top "
            "of what the model needs",
            _HELP,
        ),
        Flag("--metrics", "", "counters for monitoring, on the same port", _HELP),
        Flag("--no-webui", "", "the service is an API; nothing else is offered on its port", _HELP),
        Flag("--offline", "", "no download is ever tried", _HELP),
    ]
    if case.kv_dtype != "bf16":
        reason = "a cache of 16 bits takes about twice the memory"
        flags += [Flag(name, case.kv_dtype, reason, _HELP) for name in ("--cache-type-k", "--cache-type-v")]
        flags.append(Flag("--flash-attn", "on", "a quantised cache of values needs it", _HELP))
    if case.offload is not None:
        flags.append(Flag("--gpu-layers", str(case.offload.layers), f"the GPU's memory holds no more: {case.given_up}"))
    elif case.gpus:
        flags.append(Flag("--gpu-layers", "999", "every layer on the GPU; layers left on the CPU slow each token"))
    flags += _beside(lock)
    return _with_own(flags, lock.spec.engine.flags)


def _cpu(lock: BundleLock, case: Case) -> list[Flag]:
    """Threads and NUMA. With the weights on GPUs the processor does little, and the default stands."""
    reason = "physical cores: generation is bound by memory, and hyper-threads only contend"
    nodes = lock.profile.numa_nodes
    if (case.gpus and case.offload is None) or nodes == 1:
        return [Flag("--threads", "{threads}", reason)]
    if not nodes:
        reason += "; how many NUMA nodes the host has is known from its fingerprint only, so --numa keeps its default"
        return [Flag("--threads", "{threads}", reason)]
    spread = f"{nodes} NUMA nodes: threads are spread evenly over them, so that the bandwidth of each is used"
    return [Flag("--threads", "{threads}", reason), Flag("--numa", "distribute", spread, _HELP)]


_BESIDE = {
    "draft": ("--model-draft", "guesses ahead, and the model checks its guesses together"),
    "adapter": ("--lora", "applied to the model while it is loaded"),
    "projector": ("--mmproj", "turns images into tokens"),
}


def _beside(lock: BundleLock) -> list[Flag]:
    """Flags for what stands beside the model; several adapters are joined by commas."""
    flags = []
    for role, (flag, reason) in _BESIDE.items():
        models = [model for model in lock.models if model.role == role]
        wrong = next((model for model in models if not model.entry), None)
        if wrong is not None:
            raise UsageError(
                f"{role} {wrong.served_name}: llama.cpp reads GGUF, this is {wrong.format}",
                remedy="name a source with a GGUF file; adapters are converted with convert_lora_to_gguf.py",
            )
        if len(models) > 1 and role != "adapter":
            raise UsageError(
                f"{len(models)} models with the role {role}: llama.cpp takes one", remedy="keep one of them"
            )
        if models:
            paths = [f"{{models}}/{model.served_name}/{_literal(model.entry)}" for model in models]
            flags.append(Flag(flag, ",".join(paths), reason, _HELP))
    return flags


def _with_own(flags: list[Flag], own: Mapping[str, str]) -> list[Flag]:
    """The spec's ``[engine.flags]`` in place of ours or after them; the value ``-`` leaves a flag out."""
    chosen = {flag.name: flag for flag in flags}
    for name, value in own.items():
        flag = f"--{name.lstrip('-')}"
        if flag in ("--model", "--host", "--port", "--alias"):
            raise UsageError(
                f"engine.flags: {flag} is set by the site", remedy="use model.served_name and [serving] instead"
            )
        if flag in [known for known, _ in _BESIDE.values()]:
            raise UsageError(f"engine.flags: {flag} names a file of the office", remedy="use [[model.extra]] instead")
        if value == "-":
            chosen.pop(flag, None)
        else:
            chosen[flag] = Flag(flag, _literal(value), "set in the spec")
    return list(chosen.values())


def _literal(value: str) -> str:
    return value.replace("{", "{{").replace("}", "}}")


def _words(flags: list[Flag]) -> list[str]:
    return [word for flag in flags for word in (flag.name, flag.value) if word]


def _check_flags(lock: BundleLock, flags: list[Flag]) -> None:
    """The launcher takes a closed set; an image's own build is held against the list of its version."""
    if not lock.wheels:
        check_flags(NAME, _build(lock), {flag.name: flag.value for flag in flags})
        return
    known = re.findall(r'^    "(--[a-z-]+)": ', _launcher().decode(), re.MULTILINE)
    known += ["--model", "--host", "--port", "--alias"]
    wrong = [f"{flag.name}{near_miss(flag.name, known)}" for flag in flags if flag.name not in known]
    if wrong:
        raise UsageError(
            f"engine.flags: llama.cpp from the wheel does not take {', '.join(wrong)}",
            remedy=f"it takes {', '.join(sorted(known))}",
        )


def _build(lock: BundleLock) -> str:
    """The build that the spec or the image's tag names, such as ``b11669``; empty when neither does."""
    tag = lock.images[0].name.rpartition(":")[2] if lock.images else ""
    found = re.search(r"(?:^|-)(b\d+)(?:-|$)", lock.spec.engine.version or tag)
    return found[1] if found else ""


def _launcher() -> bytes:
    return (data_dir("templates") / "engines" / LAUNCHER).read_bytes()


_KNOBS = (
    Knob("--threads", ("1", "2", "4", "8", "16", "32"), "tokens a second against cores left for others"),
    Knob("--ubatch-size", ("512", "1024", "2048"), "time to first token against memory"),
)
