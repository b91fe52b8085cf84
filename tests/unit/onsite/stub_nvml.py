"""A pynvml that replays a recorded host, with selectable faults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RECORDED = Path(__file__).parents[2] / "golden" / "nvml" / "two-h200.json"
CODES = {
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18,
    "NVML_ERROR_UNKNOWN": 999,
}
NOT_SUPPORTED = CODES["NVML_ERROR_NOT_SUPPORTED"]
FUNCTION_NOT_FOUND = CODES["NVML_ERROR_FUNCTION_NOT_FOUND"]
GPU_IS_LOST = CODES["NVML_ERROR_GPU_IS_LOST"]
VERSION_MISMATCH = CODES["NVML_ERROR_LIB_RM_VERSION_MISMATCH"]
_NVLINK = ("State", "Version", "RemoteDeviceType")  # as recorded for each link


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        name = next((name for name, code in CODES.items() if code == self.value), str(self.value))
        return name.replace("NVML_ERROR_", "").replace("_", " ").title()


class StubNvml:
    """Has the functions and constants that the real module has, as far as the recording goes.

    Args:
        faults: function name to error code; ``name@index`` for one GPU only.
        as_bytes: text comes as bytes, as in some versions of the binding.
        change: facts of every GPU to replace.
        gpus: which recorded GPUs there are.
        slices: MIG slices of each GPU, as facts that differ from the whole.
    """

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028
    __file__ = "stub_nvml.py"

    def __init__(
        self,
        *,
        faults: Mapping[str, int] | None = None,
        as_bytes: bool = False,
        change: Mapping[str, Any] | None = None,
        gpus: Sequence[int] = (0, 1),
        slices: Sequence[Mapping[str, Any]] = (),
        driver: str | None = None,
        cuda: int | None = None,
    ) -> None:
        recorded = json.loads(RECORDED.read_text())
        self._facts = [{**recorded["gpus"][number], **(change or {})} for number in gpus]
        self._system = {"driver": driver or recorded["driver"], "cuda": cuda or recorded["cuda"]}
        self._faults = dict(faults or {})
        self._as_bytes = as_bytes
        self._slices = slices
        self.shut_down = False
        for name, code in CODES.items():
            setattr(self, name, code)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *arguments, **options: self._answer(name, arguments, options)

    def _answer(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        index = self._index(arguments)
        code = self._faults.get(name, self._faults.get(f"{name}@{index}"))
        if code is not None:
            raise NVMLError(code)
        special = getattr(self, "_" + name, None)
        if special is not None:
            return special(*arguments, **options)
        key = name.replace("nvmlDeviceGet", "")
        facts = arguments[0]
        return self._shaped(facts.get(key, "NVMLError_NotSupported"))

    def _index(self, arguments: tuple[Any, ...]) -> int | None:
        if arguments and isinstance(arguments[0], int):
            return arguments[0]
        return next((at for at, facts in enumerate(self._facts) if arguments and facts is arguments[0]), None)

    def _shaped(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("NVMLError_"):
            raise NVMLError(NOT_SUPPORTED)
        if isinstance(value, str):
            return value.encode() if self._as_bytes else value
        if isinstance(value, dict):
            return SimpleNamespace(**{key: self._shaped(item) for key, item in value.items()})
        return value

    def _nvmlInit(self) -> None: ...

    def _nvmlShutdown(self) -> None:
        self.shut_down = True

    def _nvmlSystemGetDriverVersion(self) -> Any:
        return self._shaped(self._system["driver"])

    def _nvmlSystemGetCudaDriverVersion_v2(self) -> Any:
        return self._system["cuda"]

    def _nvmlDeviceGetCount(self) -> int:
        return len(self._facts)

    def _nvmlDeviceGetHandleByIndex(self, number: int) -> Any:
        return self._facts[number]

    def _nvmlDeviceGetMemoryInfo(self, facts: Any, version: int | None = None) -> Any:
        name = "nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo_v1"
        if name in self._faults:
            raise NVMLError(self._faults[name])
        return self._shaped(facts["MemoryInfo"])

    def _nvmlDeviceGetMaxClockInfo(self, facts: Any, kind: int) -> Any:
        return facts[{1: "MaxSM", 2: "MaxMem"}[kind]]

    def _nvmlDeviceGetClockInfo(self, facts: Any, kind: int) -> Any:
        return facts[{1: "ClockSM", 2: "ClockMem"}[kind]]

    def _nvmlDeviceGetNvLinkVersion(self, facts: Any, link: int) -> int:
        return self._link(facts, link, "Version")

    def _nvmlDeviceGetFieldValues(self, facts: Any, fields: Sequence[Any]) -> list[Any]:
        """As recorded: the speed of a link is known by the newer of its two fields only."""
        known = {164: facts["NvLinkSpeed"], **facts.get("fields", {})}
        numbers = [field[0] if isinstance(field, tuple) else field for field in fields]
        return [
            SimpleNamespace(valueType=1, nvmlReturn=0, value=SimpleNamespace(uiVal=known[number]))
            if known.get(number) is not None
            else SimpleNamespace(valueType=0, nvmlReturn=NOT_SUPPORTED, value=SimpleNamespace(uiVal=0))
            for number in numbers
        ]

    def _nvmlDeviceGetComputeRunningProcesses(self, facts: Any) -> list[Any]:
        return []

    def _link(self, facts: Any, link: int, what: str) -> int:
        if link >= len(facts["nvlinks"]):
            raise NVMLError(CODES["NVML_ERROR_INVALID_ARGUMENT"])
        found: int = facts["nvlinks"][link][_NVLINK.index(what)]
        return found

    def _nvmlDeviceGetNvLinkState(self, facts: Any, link: int) -> int:
        return self._link(facts, link, "State")

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, facts: Any, link: int) -> int:
        return self._link(facts, link, "RemoteDeviceType")

    def _nvmlDeviceGetNvLinkRemotePciInfo(self, facts: Any, link: int) -> Any:
        if "remote" not in facts:
            raise NVMLError(NOT_SUPPORTED)
        own = self._facts.index(facts)
        return self._shaped(self._facts[facts["remote"][own][link]]["PciInfo"])

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> Any:
        return self._shaped(one["topo"][self._facts.index(other)])

    def _nvmlDeviceGetP2PStatus(self, one: Any, other: Any, what: int) -> Any:
        return one["p2p"][self._facts.index(other)][what]

    def _nvmlDeviceGetMaxMigDeviceCount(self, facts: Any) -> int:
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, facts: Any, number: int) -> Any:
        if number >= len(self._slices):
            raise NVMLError(6)
        return {**facts, **self._slices[number]}
