"""The use of disk, stated before a build and of a finished bundle: the same places, in the same words."""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from pathlib import Path

from airbundle.cache import Cache
from airbundle.contract.lock import BundleLock, LockedFile, LockedModel
from airbundle.delta.base import Known
from airbundle.delta.content import of_file
from airbundle.delta.facts import Readable
from airbundle.delta.thin import Difference
from airbundle.inspection import manifest_text
from airbundle.planview import plan_build, plan_text
from airbundle.review.page import render_contents
from airbundle.sbom.inventory import Inventory
from airbundle_onsite.capacity import AT_ENGINE, AT_ROOT, MARGIN, peak_of
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.base import BaseFile
from parts import reviews, tuned
from parts.plans import lock as planned_lock

GB = 10**9


def test_of_a_finished_bundle() -> None:
    lock = reviews.lock()
    made = reviews.manifest(lock)
    layers = tuple(
        Layer(f"sha256:{digit * 64}", size * GB, f"sha256:{digit * 64}", "tar") for digit, size in (("1", 3), ("2", 4))
    )
    made = dataclasses.replace(made, images=(dataclasses.replace(made.images[0], layers=layers),))
    peak = peak_of(made)
    assert (peak.medium, peak.root, peak.packed, peak.unpacked) == (4425, GB + MARGIN, 7 * GB, 2 * GB)
    said = manifest_text(made, "")
    page = render_contents(lock, made, Inventory()).decode()
    for words in ("4.4 kB on the transfer medium", f"1.1 GB {AT_ROOT}", f"9.0 GB {AT_ENGINE}"):
        assert words in said
        assert words in page.replace("&#39;", "'")


def locked(cache: Cache, data: bytes, *, fetched: bool = True) -> BundleLock:
    digest = cache.add_bytes(data) if fetched else sha256(data).hexdigest()
    file = LockedFile("model.safetensors", digest, len(data))
    made = planned_lock(gpus=1, files=(file,))
    small = LockedFile("same.safetensors", "7" * 64, 10_000_000)
    same = LockedModel("same", "local:b", "r", "safetensors", (small,), role="adapter")
    return dataclasses.replace(made, models=(*made.models, same) if not fetched else made.models)


def known(folder: Path, *contents: bytes) -> Known:
    files, readable = {}, {}
    for data in contents:
        digest = sha256(data).hexdigest()
        path = folder / digest
        path.write_bytes(data)
        files[digest] = BaseFile("models/m/model.safetensors", len(data), digest)
        readable[digest] = Readable("models/m/model.safetensors", len(data), digest, of_file(path, len(data)), True)
    return Known("b", "0", 0, "0" * 64, files, readable)


def test_a_plan_upon_a_base_counts_what_travels(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    old, new = (tuned.safetensors(tuned.tensors(10, changed=changed)) for changed in ((), (3,)))
    lock = locked(cache, new)
    full = plan_build(lock, cache, 0)
    plan = plan_build(lock, cache, 0, Difference((known(tmp_path, old),)))
    assert (full.bases, full.full) == ((), full.payload)
    assert (plan.bases, plan.full, plan.compared) == (("b 0",), full.payload, True)
    saved = full.payload - plan.payload
    assert 0.8 * len(new) < saved < 0.95 * len(new)  # one tensor of ten travels
    assert plan.peak.medium == plan.payload
    assert plan.peak.root == full.peak.root  # the file is rebuilt whole
    said = plan_text(plan)
    assert "it builds on b 0, which the site must have" in said
    assert "on the transfer medium" in said and AT_ROOT in said
    assert "builds on" not in plan_text(full)


def test_what_is_not_fetched_yet_is_compared_by_whole_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    old, new = (tuned.safetensors(tuned.tensors(10, changed=changed)) for changed in ((), (3,)))
    lock = locked(cache, new, fetched=False)
    base = known(tmp_path, old)
    same = lock.models[1].files[0]
    has = {**base.files, same.sha256: BaseFile("models/same/same.safetensors", same.size, same.sha256)}
    base = dataclasses.replace(base, files=has)
    plan = plan_build(lock, cache, 0, Difference((base,)))
    assert not plan.compared
    assert plan.full - plan.payload >= same.size - 4096
    assert plan.payload > len(new)
    assert "were not compared by tensor" in plan_text(plan)
