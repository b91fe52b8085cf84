"""Ollama: the bundled GGUF laid out as its own model store, so that it never pulls.

The store is ``manifests/HOST/NAMESPACE/NAME/TAG``, a small JSON document, beside ``blobs/sha256-…``, the files that it
names: weights, parameters and a configuration. The chat template is the one inside the GGUF.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airbundle.choose.rules import flags_by_rule
from airbundle.choose.situation import version as comparable
from airbundle.contract.lock import BundleLock, LockedFile, LockedModel
from airbundle.data import data_dir
from airbundle.engines import llamacpp, planned
from airbundle.engines.facts import engine_facts
from airbundle.engines.flaglist import check_flags
from airbundle_onsite.contract.launch import Flag, LaunchPlan, PlanNeeds, Readiness
from airbundle_onsite.errors import UsageError

NAME = "ollama"
LAUNCHER = "serve_ollama.sh"
MANIFEST = "ollama-manifest.json"
_GIB = 1 << 30
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
        """One plan, for the profile's GPUs when it has any, else for its CPU.

        Raises:
            UsageError: the model is not GGUF, there is no image, or the spec sets what Ollama does not take.
        """
        model, facts = _model(lock), engine_facts(NAME)
        if lock.spec.runtime.kind != "docker":
            raise UsageError(
                "Ollama runs from its image only: it has no wheels",
                remedy='set runtime.kind = "docker" and [image] to ollama/ollama, or use llama.cpp with the same GGUF',
            )
        flags = _flags(lock, self.version(lock))
        memory, gpus = llamacpp.estimate(lock, model), _gpus(lock)
        words = ("/bin/sh", f"{{config}}/{LAUNCHER}", "{config}", "{model}", model.entry, _weights(model).sha256)
        return (
            LaunchPlan(
                id="gpu" if gpus else "cpu",
                engine=NAME,
                engine_version=self.version(lock),
                runtime="docker",
                argv=(*words, "{host}", "{port}", "{served_name}"),
                model=model.served_name,
                image=lock.images[0].name,
                env={flag.name: flag.value for flag in flags},
                gpus=str(gpus) if gpus else "none",
                port=lock.spec.serving.port,
                needs=_needs(lock, memory.total, gpus),
                readiness=Readiness(facts.health, load_seconds=300 + memory.weights // _LOAD_RATE, request_seconds=120),
                log_patterns=facts.log_patterns(self.version(lock), policy=lock.spec.serving.downgrade),
                flags=tuple(flag for flag in flags if flag.reason),
            ),
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


def _gpus(lock: BundleLock) -> int:
    return (lock.spec.target.gpus or lock.profile.gpu.count) if lock.profile.gpu else 0


def _flags(lock: BundleLock, version: str) -> tuple[Flag, ...]:
    """Environment variables by rule, the spec's own in their place."""
    gpu, facts = lock.profile.gpu, engine_facts(NAME)
    known = {
        "context": lock.spec.serving.context,
        "concurrency": lock.spec.serving.concurrency,
        "gpus": _gpus(lock),
        "capability": comparable(gpu.capability) if gpu else None,
        "kv_dtype": "bf16",
    }
    flags = {flag.name: flag for flag in flags_by_rule(facts, version, known)}
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


def _needs(lock: BundleLock, total: int, gpus: int) -> PlanNeeds:
    if not gpus:
        return PlanNeeds(memory=total + _GIB, cpu_flags=lock.profile.cpu_flags)
    assert lock.profile.gpu is not None
    return PlanNeeds(
        gpus=gpus,
        gpu_memory=total // gpus + _GIB // 2,
        memory=2 * _GIB,
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
