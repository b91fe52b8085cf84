"""NVML in a process of its own: a driver that hangs must not hang who asks.

A thread would not do: a call stuck in the kernel cannot be killed, and a process holding it cannot end either. So the
child is asked with a deadline, and left behind when it does not die.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import airbundle_onsite
from airbundle_onsite.contract.fingerprint import GpuFacts
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import ContractError
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from airbundle_onsite.probes.nvml import kernel_driver, library_loads, pci_gpus

# Without persistence mode the driver initialises each GPU anew, which takes seconds for each.
DEADLINE = 60.0
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); from airbundle_onsite.probes import apart; apart.child(sys.argv[2:])"
)
_CHUNK = 65536
_GRACE = 1.0  # seconds that a killed child gets to vanish


def gpu_facts_apart(
    files: HostFiles, system: SystemMemory, deadline: float = DEADLINE, program: Optional[Sequence[str]] = None
) -> GpuFacts:
    """What `gpu_facts` says, asked in another process.

    Args:
        files: of the host.
        system: its memory.
        deadline: seconds after which the driver counts as hanging.
        program: writes the facts as JSON; None for this Python with `child`.
    """
    if program is None:
        if not sys.executable or not may_hang(files):
            return gpu_facts(files, system)
        program = own_program(files, system)
    code, answer = answer_within(program, deadline)
    if code == 0:
        try:
            return decode_json(GpuFacts, answer, "the GPU facts")
        except ContractError as error:
            return _failed(files, f"the process that asked the driver wrote something else: {error.summary}")
    if code is None:
        return _failed(files, f"the driver did not answer within {deadline:g} s; see dmesg for lines with NVRM or Xid")
    return _failed(files, f"the process that asked the driver ended with code {code}")


def may_hang(files: HostFiles) -> bool:
    """Whether asking the driver can block: its library is here, and a GPU or the driver's way to the kernel.

    A process of its own costs a tenth of a second and more. Without a library, or with one in a container that was
    given no device, there is nothing in the kernel to wait for.
    """
    return bool(files.names("/proc/driver/nvidia") or _devices(files) or pci_gpus(files)) and library_loads()


def _devices(files: HostFiles) -> list[str]:
    """The driver's device nodes; ``dxg`` is the way to the GPU in Windows' Linux."""
    return [name for name in files.names("/dev") if name.startswith("nvidia") or name == "dxg"]


def own_program(files: HostFiles, system: SystemMemory) -> list[str]:
    """This Python, isolated from its environment, running `child`."""
    place = str(Path(airbundle_onsite.__file__).parents[1])  # a zipapp is a path entry like a directory is
    words = [str(files.root), *("" if value is None else str(value) for value in (system.total, system.available))]
    return [sys.executable, "-I", "-B", "-X", "utf8", "-c", _CHILD, place, *words]


def _failed(files: HostFiles, reason: str) -> GpuFacts:
    hardware = pci_gpus(files)
    seen = f"; {hardware} NVIDIA GPU(s) on the PCI bus" if hardware else ""
    return GpuFacts(state="failed", kernel_driver=kernel_driver(files), error=reason + seen)


def child(words: list[str]) -> None:
    """The other process: root of the host's files, total and available memory; writes the facts to stdout."""
    root, total, available = words
    system = SystemMemory(int(total) if total else None, int(available) if available else None)
    sys.stdout.buffer.write(encode(gpu_facts(HostFiles(Path(root)), system)))


def answer_within(argv: Sequence[str], seconds: float) -> tuple[Optional[int], bytes]:
    """Exit code and standard output of a program; the code is None when it outlasts `seconds`.

    Then it is killed but not waited for: in an uninterruptible system call it would not die.
    """
    limit = time.monotonic() + seconds
    process: subprocess.Popen[Any] = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    chunks: list[bytes] = []
    with selectors.DefaultSelector() as selector, process.stdout as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, limit - time.monotonic())):
                _abandon(process)
                return None, b"".join(chunks)
            chunk = pipe.read1(_CHUNK)  # type: ignore[attr-defined]  # a buffered reader
            if not chunk:
                break
            chunks.append(chunk)
    try:
        return process.wait(max(0.0, limit - time.monotonic()) + _GRACE), b"".join(chunks)
    except subprocess.TimeoutExpired:
        _abandon(process)
        return None, b"".join(chunks)


def _abandon(process: subprocess.Popen[Any]) -> None:
    process.kill()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.returncode = -9  # so that nothing waits for it, nor complains that it still runs
