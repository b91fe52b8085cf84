"""NVML in a process of its own: a driver that hangs, dies or writes nonsense does not take the fingerprint with it."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from airbundle_onsite.contract.fingerprint import GpuFacts
from airbundle_onsite.contract.profile import GpuProfile
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.match import match_profile
from airbundle_onsite.probes import apart
from airbundle_onsite.probes.files import HostFiles
from airbundle_onsite.probes.gpu import SystemMemory, gpu_facts
from unit.onsite.hosts import CPU_PROFILE, host
from unit.onsite.stub_nvml import StubNvml

SYSTEM = SystemMemory(64 * 10**9, None)
GPU = GpuProfile(names=("X",), capability="9.0", memory=1)


def script(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(("import os, sys, time, signal", *lines))]


def test_output_larger_than_a_pipe_arrives_whole() -> None:
    code, data = apart.answer_within(script("sys.stdout.write('x' * 1_000_000)"), 30)
    assert (code, len(data)) == (0, 1_000_000)


def test_one_that_writes_and_then_hangs_is_ended() -> None:
    begun = time.monotonic()
    code, data = apart.answer_within(script("print('half', flush=True)", "time.sleep(60)"), 1)
    assert code is None and data == b"half\n" and time.monotonic() - begun < 20


def test_one_that_closes_its_output_and_hangs_is_ended() -> None:
    code, _ = apart.answer_within(script("os.close(1)", "time.sleep(60)"), 1)
    assert code is None


def facts(root: Path, *lines: str, deadline: float = 30) -> GpuFacts:
    return apart.gpu_facts_apart(HostFiles(root), SYSTEM, deadline, script(*lines))


def test_what_the_other_process_says_is_what_the_driver_says(tmp_path: Path) -> None:
    told = gpu_facts(HostFiles(tmp_path), SYSTEM, StubNvml())
    (tmp_path / "answer").write_bytes(encode(told))
    assert facts(tmp_path, f"sys.stdout.write(open({str(tmp_path / 'answer')!r}).read())") == told


def test_a_driver_that_hangs_is_given_up_and_the_hardware_still_named(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    hung = facts(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "time.sleep(60)", deadline=1)
    assert hung.state == "failed" and hung.devices == ()
    assert "did not answer within 1 s" in hung.error and "1 NVIDIA GPU(s) on the PCI bus" in hung.error
    checks = match_profile(dataclasses.replace(CPU_PROFILE, gpu=GPU), host(gpu=hung))
    (check,) = [one for one in checks if one.status == "fail"]
    assert "did not answer" in f"{check.summary} {check.actual}" and check.remedy


def test_a_driver_library_that_crashes_takes_only_the_other_process(tmp_path: Path) -> None:
    crashed = facts(tmp_path, "os.abort()")
    assert crashed.state == "failed" and "ended with code -6" in crashed.error


def test_nonsense_from_the_other_process_is_a_failure(tmp_path: Path) -> None:
    assert facts(tmp_path, "print('{')").state == "failed"
    assert "wrote something else" in facts(tmp_path, "print('[1]')").error


def test_the_real_other_process_on_this_host() -> None:
    """Started as the probe starts it; without a driver's library it says so as this process does."""
    code, data = apart.answer_within(apart.own_program(HostFiles(), SYSTEM), 60)
    assert code == 0
    told, own = decode_json(GpuFacts, data, "facts"), gpu_facts(HostFiles(), SYSTEM)
    assert (told.state, told.driver, len(told.devices)) == (own.state, own.driver, len(own.devices))
    assert apart.gpu_facts_apart(HostFiles(), SYSTEM).state == own.state


def test_a_process_of_its_own_only_where_something_can_hang(tmp_path: Path) -> None:
    """In containers without a device the driver's library may be there, and there is nothing to wait for."""
    files = HostFiles(tmp_path)
    assert not apart.may_hang(files)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/null").touch()
    assert not apart.may_hang(files)
    (tmp_path / "dev/nvidiactl").touch()
    assert apart.may_hang(files) is apart.library_loads()
