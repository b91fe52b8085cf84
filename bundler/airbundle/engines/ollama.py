"""Ollama: the bundled GGUF laid out as its own model store, so that it never pulls.

The store is ``manifests/HOST/NAMESPACE/NAME/TAG``, a small JSON document, beside ``blobs/sha256-…``, the files that it
names: weights, parameters and a configuration. The chat template is the one inside the GGUF.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airbundle.choose.rules import flags_by_rule
from airbundle.choose.situation import version as comparable
from airbundle.contract.lock import BundleLock, LockedFile, LockedModel
from airbundle.data import data_dir
from airbundle.engines import planned
from airbundle.engines.cputries import ollama_tries
from airbundle.engines.facts import engine_facts
from airbundle.engines.flaglist import check_flags
from airbundle.engines.ggufplans import Case, cases
from airbundle.engines.trying import Try
from airbundle.memory.kv import KvDtype
from airbundle_onsite.contract.launch import Flag, LaunchPlan, PlanNeeds, Readiness
from airbundle_onsite.errors import UsageError
from airbundle_onsite.versions import compare

NAME = "ollama"
LAUNCHER = "serve_ollama.sh"
MANIFEST = "ollama-manifest.json"
_SERVER = 1 << 30  # bytes: Ollama's own process beside the runner, and what its scheduler keeps free
_LOAD_RATE = 50 * 1000**2  # bytes a second of a slow disk, for how long loading may take


def create() -> Ollama:
    """See `airbundle.engines.base`."""
    return Ollama()


class Ollama:
    """See `airbundle.engines.base.Engine`."""

    name = NAME

    def version(self, lock: BundleLock) -> str:
        """The spec's, or the image tag's."""
        return planned.engine_version(lock, "ollama")

    def plans(self, lock: BundleLock) -> tuple[LaunchPlan, ...]:
        """For the profile's GPUs when it has any, else for its CPU; then with less.

        Raises:
            UsageError: the model is not GGUF, there is no image, or the spec sets what Ollama does not take.
        """
        model = _model(lock)
        if lock.spec.runtime.kind != "docker":
            raise UsageError(
                "Ollama runs from its image only: it has no wheels",
                remedy='set runtime.kind = "docker" and [image] to ollama/ollama, or use llama.cpp with the same GGUF',
            )
        found = cases(lock, model, _smaller(lock), shortens=False)  # num_ctx in the model's store is the same for all
        if {"OLLAMA_NUM_PARALLEL", "OLLAMA_CONTEXT_LENGTH"} & set(lock.spec.engine.flags):
            found = found[:1]
        return tuple(self._plan(lock, model, case) for case in found)

    def _plan(self, lock: BundleLock, model: LockedModel, case: Case) -> LaunchPlan:
        version, facts = self.version(lock), engine_facts(NAME)
        flags = _flags(lock, version, case)
        words = ("/bin/sh", f"{{config}}/{LAUNCHER}", "{config}", "{model}", model.entry, _weights(model).sha256)
        loading = 300 + case.memory.weights // _LOAD_RATE
        return LaunchPlan(
            id=case.id,
            engine=NAME,
            engine_version=version,
            runtime="docker",
            argv=(*words, "{host}", "{port}", "{served_name}"),
            model=model.served_name,
            image=lock.images[0].name,
            env={flag.name: flag.value for flag in flags},
            gpus=str(case.gpus) if case.gpus else "none",
            port=lock.spec.serving.port,
            needs=_needs(lock, case),
            readiness=Readiness(facts.health, load_seconds=loading, request_seconds=120),
            log_patterns=facts.log_patterns(version, policy=lock.spec.serving.downgrade),
            flags=tuple(flag for flag in flags if flag.reason),
        )

    def config_files(self, lock: BundleLock) -> Mapping[str, bytes]:
        """The launcher, the model's manifest and its small parts, and a Modelfile for whoever builds it by hand."""
        model = _model(lock)
        parts = _parts(lock, model)
        weights = _weights(model)
        layers = [_layer("model", weights.sha256, weights.size)]
        layers += [_layer(kind, _digest(data), len(data)) for kind, data in parts.items() if kind != "config"]
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": f"sha256:{_digest(parts['config'])}",
                "size": len(parts["config"]),
            },
            "layers": layers,
        }
        return {
            LAUNCHER: (data_dir("templates") / "engines" / LAUNCHER).read_bytes(),
            MANIFEST: _json(manifest),
            "Modelfile": _modelfile(lock, model).encode(),
            **{f"ollama-blob-{_digest(data)}": data for data in parts.values()},
        }

    def rehearsal_tries(self, plan: LaunchPlan) -> Sequence[Try]:
        """See `airbundle.engines.trying`."""
        return ollama_tries(plan)


def _model(lock: BundleLock) -> LockedModel:
    model = lock.models[0]
    if model.format != "gguf" or not model.entry:
        raise UsageError(
            f"model {model.served_name}: Ollama serves GGUF, this is {model.format}",
            remedy="name a source with a GGUF file, and the file in model.file when there are several",
        )
    if "-of-" in model.entry:
        raise UsageError(
            f"model {model.served_name}: {model.entry} is split, and Ollama takes one file",
            remedy="join the parts with llama-gguf-split --merge, or use llama.cpp, which reads them as they are",
        )
    return model


def _weights(model: LockedModel) -> LockedFile:
    return next(file for file in model.files if file.path == model.entry)


def _smaller(lock: BundleLock) -> tuple[KvDtype, ...]:
    """Types of a smaller cache; none where the spec sets it or the GPU has no flash attention, which they need."""
    gpu, own = lock.profile.gpu, set(lock.spec.engine.flags)
    old = gpu is not None and compare(gpu.capability, "7.0") < 0
    return () if old or own & {"OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION"} else ("q8_0", "q4_0")


def _flags(lock: BundleLock, version: str, case: Case) -> tuple[Flag, ...]:
    """Environment variables by rule, the spec's own in their place."""
    gpu, facts = lock.profile.gpu, engine_facts(NAME)
    known = {
        "context": case.context,
        "concurrency": case.concurrency,
        "gpus": case.gpus,
        "capability": comparable(gpu.capability) if gpu else None,
        "kv_dtype": case.kv_dtype,
    }
    flags = {flag.name: flag for flag in flags_by_rule(facts, version, known)}
    parallel = flags["OLLAMA_NUM_PARALLEL"]
    flags[parallel.name] = dataclasses.replace(parallel, reason=case.reason(parallel.reason))
    for name, value in lock.spec.engine.flags.items():
        if value == "-":
            flags.pop(name, None)
        else:
            flags[name] = Flag(name, value.replace("{", "{{").replace("}", "}}"), "set in the spec")
    wrong = [
        name for name in flags if name in ("OLLAMA_HOST", "OLLAMA_MODELS") and flags[name].reason == "set in the spec"
    ]
    if wrong or any(name.startswith("-") or not name.isupper() for name in flags):
        raise UsageError(
            f"engine.flags: Ollama is set by environment variables, and {', '.join(wrong) or 'flags'} cannot be given",
            remedy="write names such as OLLAMA_NUM_PARALLEL",
        )
    check_flags(NAME, version, {flag.name: flag.value for flag in flags.values()})
    return tuple(flags.values())


def _needs(lock: BundleLock, case: Case) -> PlanNeeds:
    gpus, each, host = case.demand
    if not gpus:
        return PlanNeeds(memory=host + _SERVER, cpu_flags=lock.profile.cpu_flags)
    assert lock.profile.gpu is not None
    return PlanNeeds(
        gpus=gpus,
        gpu_memory=each,
        memory=host + _SERVER,
        capability=lock.profile.gpu.capability,
        architectures=engine_facts(NAME).release("").architectures,
    )


def _parts(lock: BundleLock, model: LockedModel) -> dict[str, bytes]:
    """Configuration and parameters, by the last word of their media type."""
    config = {
        "model_format": "gguf",
        "model_family": model.facts.get("architecture", ""),
        "model_families": [model.facts.get("architecture", "")],
        "model_type": "",
        "file_type": model.quantization,
        "architecture": "arm64" if lock.profile.arch == "aarch64" else "amd64",
        "os": "linux",
    }
    return {"config": _json(config), "params": _json({"num_ctx": lock.spec.serving.context})}


def _modelfile(lock: BundleLock, model: LockedModel) -> str:
    return (
        f"# What the bundle's model store says, for `ollama create {model.served_name} -f Modelfile` elsewhere.\n"
        f"FROM ./{model.entry}\nPARAMETER num_ctx {lock.spec.serving.context}\n"
    )


def _layer(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": size}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
