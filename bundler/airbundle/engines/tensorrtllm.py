"""TensorRT-LLM: trtllm-serve with the PyTorch backend, from NVIDIA's image.

PyPI holds only stubs that fetch the wheel from elsewhere, so there is no venv. A prebuilt engine is refused: it is
bound to the GPU model and the version that it was built with.
"""

from __future__ import annotations

from airbundle.choose import EnginePlan
from airbundle.contract.lock import BundleLock
from airbundle.engines import planned
from airbundle.engines.gpuengine import GpuEngine
from airbundle_onsite.contract.launch import Flag, Knob
from airbundle_onsite.errors import UsageError

NAME = "tensorrt-llm"
CONFIG = "trtllm.yaml"


def create() -> GpuEngine:
    """See `airbundle.engines.base`."""
    return GpuEngine(NAME, _command, _KNOBS, _require, {CONFIG: b"return_perf_metrics: true\n"})  # has no option


def _require(lock: BundleLock) -> None:
    planned.need_gpu(lock, "TensorRT-LLM")
    if lock.spec.runtime.kind != "docker":
        raise UsageError(
            "TensorRT-LLM runs from its image only: its packages on PyPI fetch the real ones while they are built",
            remedy='set runtime.kind = "docker" and [image] to NVIDIA\'s release image',
        )
    _refuse_prebuilt(lock)
    _refuse_beside(lock)


def _refuse_prebuilt(lock: BundleLock) -> None:
    built = [file.path for file in lock.models[0].files if file.path.endswith(".engine")]
    if built:
        raise UsageError(
            f"model {lock.models[0].served_name}: {built[0]} is a prebuilt engine, which loads only on the GPU model "
            "and version it was built with",
            remedy="name the checkpoint itself; the PyTorch backend serves it",
        )


def _refuse_beside(lock: BundleLock) -> None:
    """Adapters and drafts are named in the settings file, by paths that only the site knows."""
    found = next((model for model in lock.models[1:] if model.role in ("adapter", "draft")), None)
    if found is not None:
        raise UsageError(
            f"{found.role} {found.served_name}: trtllm-serve has no option for it",
            remedy="leave it out of [[model.extra]], or use vLLM or SGLang, which take it",
        )


def _command(lock: BundleLock, plan: EnginePlan) -> tuple[tuple[str, ...], tuple[Flag, ...]]:
    """The model's name in the API is the last part of its path, which is its served name."""
    return ("trtllm-serve", "serve", "{model}"), (
        Flag("--host", "{host}", ""),
        Flag("--port", "{port}", ""),
        Flag("--config", f"{{config}}/{CONFIG}", ""),
    )


_KNOBS = (
    Knob("--max_batch_size", ("16", "32", "64", "128", "256"), "requests at once against time for each token"),
    Knob("--max_num_tokens", ("2048", "4096", "8192"), "time to first token against running answers"),
)
