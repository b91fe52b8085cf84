"""The way to NVML: finding it, and asking it so that one question's failure stays that question's."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
from typing import Any, Optional

from airbundle_onsite.probes.files import HostFiles

_LIBRARY = "libnvidia-ml.so.1"
_MAPPED = re.compile(r"/\S*libnvidia-ml\.so\.(\d+\.[\d.]+)")
_KERNEL = re.compile(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)*)\s")
_NVIDIA_VENDOR = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")  # VGA controller, 3D controller


def library_loads() -> bool:
    """Whether the driver's library is on this host; loading it asks the driver nothing."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def load_nvml() -> Any:
    """The vendored binding, under its full name: a `pynvml` that the site has installed is never touched.

    Raises:
        OSError: the driver's library is not on this host; found out before the large module is read.
    """
    ctypes.CDLL(_LIBRARY)
    return importlib.import_module("airbundle_onsite._vendor.pynvml")


def kernel_driver(files: HostFiles) -> Optional[str]:
    """Version of the loaded kernel module, proprietary or open."""
    found = _KERNEL.search(files.text("/proc/driver/nvidia/version") or "")
    return found.group(1) if found else None


def library_version(files: HostFiles) -> Optional[str]:
    """Version of the driver's NVML library, from its file name as this process has it mapped."""
    found = _MAPPED.search(files.text("/proc/self/maps") or "")
    return found.group(1) if found else None


def pci_gpus(files: HostFiles) -> int:
    """NVIDIA GPUs on the PCI bus, whether or not a driver serves them."""
    base = "/sys/bus/pci/devices"
    return sum(
        files.value(f"{base}/{name}/vendor") == _NVIDIA_VENDOR
        and (files.value(f"{base}/{name}/class") or "").startswith(_GPU_CLASSES)
        for name in files.names(base)
    )


def text(value: Any) -> Optional[str]:
    """NVML's text, which is bytes in some versions of the binding and str in others."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Session:
    """An initialised NVML: asks one question at a time and notes what could not be answered.

    Args:
        nvml: a module like pynvml, after nvmlInit.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def ask(self, field: str, unread: dict[str, str], name: str, *arguments: Any, **options: Any) -> Any:
        """The answer of NVML function `name`, or None with the reason in `unread` under `field`."""
        function = getattr(self.nvml, name, None)
        if function is None:
            unread[field] = f"{name}: not in this NVML"
            return None
        try:
            return function(*arguments, **options)
        except self.nvml.NVMLError as error:
            unread[field] = str(error)
        except UnicodeDecodeError as error:
            unread[field] = f"{name}: {error}"
        return None

    def code(self, error: Any) -> Optional[int]:
        value = getattr(error, "value", None)
        return value if isinstance(value, int) else None

    def close(self) -> None:
        with contextlib.suppress(self.nvml.NVMLError):
            self.nvml.nvmlShutdown()

    @property
    def file(self) -> str:
        """Which file this binding was read from."""
        return str(getattr(self.nvml, "__file__", None) or "")
