"""What comes back from a site, all the way: the recorded host's fingerprint, its profile, the plan tuned for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from airbundle import profiles
from airbundle.choose import EnginePlan, Request, plan_engine
from airbundle.cli import cli
from airbundle_onsite.contract.fingerprint import Fingerprint, GpuFacts
from airbundle_onsite.contract.record import decode_json, encode
from airbundle_onsite.errors import UsageError
from unit.onsite.hosts import gpus, h100, host

GOLDEN = Path(__file__).parents[2] / "golden"
FILE = GOLDEN / "nvml" / "two-h200.fingerprint.json"
PLANS = json.loads((GOLDEN / "nvml" / "two-h200.plans.json").read_text())


def site() -> Fingerprint:
    return decode_json(Fingerprint, FILE.read_bytes(), "golden")


def tuned(model: str) -> EnginePlan:
    taken = site()
    config = json.loads((GOLDEN / "configs" / f"{model}.json").read_text())
    request = Request(context=8192, concurrency=16, driver=taken.gpu.driver or "")
    return plan_engine(request, config, profiles.from_fingerprint(taken))


def match(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["profiles", "match", *words])
    code = done.exit_code if done.exception is None or done.exit_code else 1
    return code, done.output


@pytest.mark.parametrize("model", sorted(PLANS))
def test_the_plan_tuned_for_the_recorded_host(model: str) -> None:
    made, golden = tuned(model), PLANS[model]
    assert (made.engine, made.verdict) == (golden["engine"], golden["verdict"])
    given = {flag.name: flag.value for flag in made.flags}
    assert {name: given.get(name) for name in golden["flags"]} == golden["flags"]
    assert made.path[-1] == golden["layout"]
    assert all(flag.reason for flag in made.flags)


def test_the_profile_of_the_recorded_host_links_by_nvlink_and_knows_the_driver() -> None:
    gpu = profiles.from_fingerprint(site()).gpu
    assert gpu is not None and (gpu.count, gpu.link, gpu.min_driver) == (2, "nvlink", "580.159.04")
    assert (gpu.bandwidth, gpu.l2) == (4_800_000_000_000, 60 * 2**20)  # from the known profile, not from the host


def test_matching_explains_itself() -> None:
    code, text = match(str(FILE))
    assert code == 0 and "\nh200-sxm: NVIDIA H200 141 GB SXM5\n" in text
    assert "why: nothing speaks against it" in text
    assert "4800 GB/s of memory bandwidth, 60 MiB of L2" in text
    assert "not h100-sxm: GPU 0 is NVIDIA H200, not the model" in text
    assert "18 NVLinks, 478 GB/s each way" in text  # what the host is stands before what it is like


def test_a_host_that_is_none_of_them_ends_with_code_3_and_the_remedy(tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    made = host(os=dataclasses.replace(host().os, machine="riscv64"))
    odd.write_bytes(encode(made))
    code, text = match(str(odd))
    assert code == 3 and "no profile fits this host" in text and "What to do" in text


def test_a_host_without_gpus_is_told_why_no_gpu_profile_fits() -> None:
    lines = profiles.explain(profiles.match_fingerprint(host()), others=3)
    assert lines[0].startswith("why: no profile with GPUs fits")
    assert any("no NVIDIA driver answers" in line for line in profiles.explain(profiles.match_fingerprint(host()), 30))


def test_mixed_gpus_are_named_one_by_one() -> None:
    mixed = host(gpu=gpus(h100(0), h100(1, name="NVIDIA L4", capability="8.9", memory_total=23034 * 2**20)))
    best, checks = profiles.match_fingerprint(mixed)[0]
    (told,) = [check for check in checks if check.id == "match.gpu.mixed"]
    assert best.id == "h100-sxm" and told.status == "warn"
    assert "GPU 0 NVIDIA H100 80GB HBM3" in told.actual and "GPU 1 NVIDIA L4" in told.actual
    assert "UUID" in told.remedy


def test_what_is_no_fingerprint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"gpus": 2}')
    done = CliRunner().invoke(cli, ["profiles", "match", str(path)])
    assert done.exit_code != 0 and "no fingerprint" in str(done.exception)


def test_another_document_is_told_in_a_sentence_and_a_torn_fingerprint_in_detail(tmp_path: Path) -> None:
    path = GOLDEN / "configs" / "qwen2.5-7b.json"
    done = CliRunner().invoke(cli, ["profiles", "match", str(path)])
    assert isinstance(done.exception, UsageError)
    assert done.exception.summary == f"{path} is no fingerprint, but another document"
    assert not done.exception.details
    torn = {key: value for key, value in json.loads(FILE.read_text()).items() if key != "cpu"}
    (tmp_path / "torn.json").write_text(json.dumps(torn))
    done = CliRunner().invoke(cli, ["profiles", "match", str(tmp_path / "torn.json")])
    assert isinstance(done.exception, UsageError)
    assert list(done.exception.details) == ["cpu: required, but missing"]


def test_a_failed_driver_still_matches_something() -> None:
    broken = host(gpu=GpuFacts(state="failed", error="the driver did not answer within 60 s"))
    assert profiles.match_fingerprint(broken)[0][0].gpu is None
