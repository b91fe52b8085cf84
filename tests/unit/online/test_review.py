"""contents.html: everything is in it and is text, nothing is loaded, and what it promises is what the site does."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from airbundle.contract.lock import BundleLock
from airbundle.review import launch as review_launch
from airbundle.review.page import render_contents, review_files
from airbundle.sbom.inventory import ImageInventory, Inventory, Package
from airbundle_onsite.contract import launch, layout
from airbundle_onsite.contract.launch import Flag
from airbundle_onsite.contract.manifest import BundleManifest, Serving
from airbundle_onsite.runtimes import docker_config
from airbundle_onsite.runtimes.base import ReleaseFiles
from parts import reviews

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=y>&amp;'\"{{ 7 * 7 }}"
VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADS = {"src", "srcset", "action", "formaction", "poster", "data", "background", "ping", "manifest", "cite", "style"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def all(self, *tags: str) -> list[Element]:
        """Elements below with one of these tags, or all, in document order."""
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, str):
                continue
            found += ([child] if not tags or child.tag in tags else []) + child.all(*tags)
        return found

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class Page(HTMLParser):
    """The page as a tree; fails on markup that is not closed properly."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(data.decode())
        self.close()
        assert [element.tag for element in self._open] == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def table(self, name: str) -> list[list[str]]:
        """The body's rows of the table with this id."""
        (table,) = [each for each in self.root.all("table") if each.attributes["id"] == name]
        (body,) = table.all("tbody")
        return [[cell.text for cell in row.all("th", "td")] for row in body.all("tr")]

    def section(self, name: str) -> str:
        """Text of a section, white space made even."""
        (found,) = [each for each in self.root.all("section") if each.attributes["id"] == name]
        return " ".join(found.text.split())


def page(lock: BundleLock, manifest: BundleManifest, inventory: Inventory = reviews.INVENTORY, **more: str) -> Page:
    return Page(render_contents(lock, manifest, inventory, **more))


@pytest.fixture(scope="module")
def docker() -> Page:
    lock = reviews.lock()
    return page(lock, reviews.manifest(lock))


@pytest.fixture(scope="module")
def venv() -> Page:
    lock = reviews.lock("venv")
    return page(lock, reviews.manifest(lock))


# --- nothing loads, everybody can read it -----------------------------------------------------------------


def check_sealed(found: Page) -> None:
    """No element, attribute or style that loads or runs anything."""
    elements = found.root.all()
    assert not {each.tag for each in elements} & {"script", "link", "iframe", "object", "embed", "img", "form", "base"}
    for each in elements:
        assert not [name for name in each.attributes if name.startswith("on") or name in LOADS], each
        assert each.attributes.get("href", "#").startswith("#")
    (style,) = found.root.all("style")
    assert not re.search(r"url\(|@import|@font-face|expression", style.text)
    policies = [each.attributes["content"] for each in found.root.all("meta") if "http-equiv" in each.attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"]


def check_readable(found: Page) -> None:
    """Titles in order, links that lead somewhere, and tables that can be read aloud."""
    ids = [each.attributes["id"] for each in found.root.all() if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    for each in found.root.all():
        targets = each.attributes.get("aria-labelledby", each.attributes.get("href", "").removeprefix("#"))
        assert not targets or targets in ids
    levels = [int(each.tag[1]) for each in found.root.all("h1", "h2", "h3")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for table in found.root.all("table"):
        assert len(table.all("caption")) == 1 and table.all("caption")[0].text
        (head,) = table.all("thead")
        titles = [each.text for each in head.all("th")]
        assert all(titles) and {each.attributes["scope"] for each in head.all("th")} == {"col"}
        for row in table.all("tbody")[0].all("tr"):
            cells = row.all("th", "td")
            assert [cell.tag for cell in cells] == ["th", *["td"] * (len(titles) - 1)]
            assert cells[0].attributes["scope"] == "row" and cells[0].text
            assert [cell.attributes["data-label"] for cell in cells[1:]] == titles[1:]


def test_nothing_is_loaded_or_run(docker: Page, venv: Page) -> None:
    check_sealed(docker)
    check_sealed(venv)


def test_it_can_be_read_by_everybody(docker: Page, venv: Page) -> None:
    check_readable(docker)
    check_readable(venv)
    (html,) = docker.root.all("html")
    assert html.attributes["lang"] == "en"


def test_every_word_of_others_is_text() -> None:
    """Names, reasons and answers that are markup, wherever they come from."""
    lock = reviews.lock()
    manifest = reviews.manifest(lock)
    plan = dataclasses.replace(
        manifest.launch[0],
        id=HOSTILE,
        engine=HOSTILE,
        argv=("run", HOSTILE.replace("{", "(").replace("}", ")")),
        flags=(Flag(HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        env={"X": "<script>"},
    )
    smoke = dataclasses.replace(manifest.smoke[0], id=HOSTILE, expect=(HOSTILE,), reject=(HOSTILE,))
    manifest = dataclasses.replace(
        manifest, tool=HOSTILE, launch=(plan,), smoke=(smoke,), provenance={HOSTILE: HOSTILE}, serving=Serving(HOSTILE)
    )
    wheel = dataclasses.replace(
        lock.wheels[0],
        name=HOSTILE,
        version=HOSTILE,
        requested_by=(HOSTILE,),
        index=HOSTILE,
        built_from={"sdist": HOSTILE},
    )
    model = dataclasses.replace(
        reviews.MODEL,
        served_name=HOSTILE,
        source=HOSTILE,
        license=HOSTILE,
        files=(reviews.blob("a", HOSTILE),),
        skipped={HOSTILE: 1},
        custom_code=(HOSTILE,),
    )
    image = dataclasses.replace(reviews.IMAGE, name=HOSTILE, source=HOSTILE, user=HOSTILE)
    spec = dataclasses.replace(lock.spec, bundle=dataclasses.replace(lock.spec.bundle, description=HOSTILE))
    profile = dataclasses.replace(reviews.PROFILE, title=HOSTILE)
    lock = dataclasses.replace(lock, spec=spec, wheels=(wheel,), models=(model,), images=(image,), profile=profile)
    manifest = dataclasses.replace(manifest, needs=dataclasses.replace(manifest.needs, profile=profile))
    packages = ImageInventory((Package(HOSTILE, HOSTILE, "deb"), Package(HOSTILE, HOSTILE, "python")), (HOSTILE,))
    inventory = Inventory(licenses={wheel.file.path: (HOSTILE,)}, images={HOSTILE: packages})
    found = page(lock, manifest, inventory, signer=HOSTILE)
    check_sealed(found)
    check_readable(found)
    assert found.root.text.count(HOSTILE) > 35
    assert "49" not in found.section("contents")


def test_no_white_space_of_others_breaks_the_page() -> None:
    lock = reviews.lock()
    wheel = dataclasses.replace(lock.wheels[0], name="a\u202eb\x00c\r\nd")
    check_readable(page(dataclasses.replace(lock, wheels=(wheel,)), reviews.manifest(lock)))


def test_the_same_input_gives_the_same_bytes() -> None:
    lock = reviews.lock()
    made = [review_files(lock, reviews.manifest(lock), reviews.INVENTORY) for _ in range(2)]
    assert made[0] == made[1]


# --- what it says -----------------------------------------------------------------------------------------


def test_the_page_lists_the_sbom_beside_it() -> None:
    lock = reviews.lock()
    files = review_files(lock, reviews.manifest(lock), reviews.INVENTORY)
    assert sorted(files) == [layout.CONTENTS, layout.SBOM]
    rows = {row[0]: row for row in Page(files[layout.CONTENTS]).table("outer")}
    assert sorted(rows) == ["README.txt", "onsite.pyz", "sbom.cdx.json"]
    assert rows["sbom.cdx.json"][2] == hashlib.sha256(files[layout.SBOM]).hexdigest()
    assert json.loads(files[layout.SBOM])["specVersion"] == "1.6"


def test_every_hash_is_there(docker: Page) -> None:
    text = docker.root.text
    for digit in "123456789abcd":
        if digit != "9":  # of the source distribution, in the SBOM
            assert digit * 64 in text, digit


def test_what_a_reader_sees_first(docker: Page, venv: Page) -> None:
    (header,) = docker.root.all("header")
    facts = {each.all("dt")[0].text: each.all("dd")[0].text for each in header.all("dl")[0].all("div")}
    assert docker.root.all("h1")[0].text == "demo v1"
    assert facts["Built"] == "2023-11-14 22:13 UTC by airbundle 1.2"
    assert facts["For"] == "NVIDIA H200 SXM (h200-sxm, x86_64)"
    assert facts["GPU"] == "2 × compute capability 9.0, 141.0 GB each, driver 550.54.14 or newer"
    assert facts["Host has at least"] == "64.0 GB of memory, glibc 2.28"
    assert facts["Runs as"] == "a container"
    assert facts["Engine"] == "vllm 0.11"
    assert facts["Answers at"] == "http://127.0.0.1:8000/v1"
    assert facts["Peak disk"] == (
        "4.4 kB on the transfer medium; 1.1 GB at the site under the installation root; "
        "2.0 GB at the site in the container engine's store"
    )
    assert "a process of the user who installs it" in venv.root.all("header")[0].text


def test_the_signer_is_named_when_known(docker: Page) -> None:
    lock = reviews.lock()
    named = page(lock, reviews.manifest(lock), signer="ops@example SHA256:abc")
    assert "this bundle was to be signed by ops@example SHA256:abc" in named.section("trust")
    assert "without bundle.json.sig nobody vouches for the bundle" in docker.section("trust")


def test_wheels(docker: Page) -> None:
    assert docker.table("wheels") == [
        ["app", "1.0", "MIT", "the spec", "7 B", f"app-1.0-py3-none-any.whl\n{'1' * 64}"],
        [
            "lib",
            "2.0+cu130",
            "BSD License\nApache-2.0",
            "app, torch",
            "7 B",
            f"lib-2.0-py3-none-any.whl\n{'2' * 64}\nfrom https://whl.example/cu130",
        ],
        [
            "made",
            "3.0",
            "not declared",
            "lib",
            "7 B",
            f"made-3.0-py3-none-any.whl\n{'3' * 64}\nbuilt from made-3.0.tar.gz",
        ],
    ]


def test_models_and_images(docker: Page) -> None:
    (model,) = docker.table("models")
    assert model == [
        "qwen",
        "safetensors bfloat16",
        "hf:Qwen/Qwen3-0.6B\nrevision ABCDEF0123",
        "1.2 MB",
        "apache-2.0",
    ]
    assert docker.table("model-files-1")[1] == ["model.safetensors", "1\u00a0234\u00a0567", "b" * 64]
    (image,) = docker.table("images")
    assert image[1] == "debian 12\nlinux/amd64\nuser 2000\n2 system packages, 1 Python project"
    assert image[3] == f"{reviews.IMAGE.source}\nthere sha256:{'c' * 64}\nhere  sha256:{'d' * 64}"
    assert docker.table("packages-1-deb") == [
        ["base-files", "12.4+deb12u5", "", "not declared"],
        ["libc6", "2.36-9", "", "not declared"],
    ]
    assert docker.table("packages-1-python") == [["torch", "2.11.0+cu130"]]


def test_what_was_read_in_the_models_comes_from_the_manifest() -> None:
    lock = reviews.lock()
    manifest = reviews.manifest(lock)
    entry = dataclasses.replace(manifest.models[0], quantization="awq int4", custom_code=("modeling_x.py (own)",))
    found = page(lock, dataclasses.replace(manifest, models=(entry,)))
    assert found.table("models")[0][1] == "safetensors awq int4"
    assert found.table("code") == [["modeling_x.py (own)", "qwen"]]
    assert "Python code that comes with a model" in found.section("host")
    gguf = dataclasses.replace(reviews.MODEL, format="gguf", quantization="gguf Q4_K_M", role="draft")
    found = page(reviews.lock(models=(gguf,)), dataclasses.replace(manifest, models=()))
    assert found.table("models")[0][:2] == ["qwen\n(draft)", "gguf Q4_K_M"]


def test_what_could_not_be_listed_is_said() -> None:
    lock = reviews.lock()
    found = page(
        lock, reviews.manifest(lock), Inventory(images={reviews.ENGINE: ImageInventory((), ("an old rpmdb",))})
    )
    assert f"Not everything in image {reviews.ENGINE} could be listed: an old rpmdb" in found.section("contents")


def test_the_launch_plan(docker: Page) -> None:
    text = docker.section("launch")
    assert "Needs1.0 GB on each GPU, compute capability 9.0" in text.replace(" Needs ", "Needs").replace(
        "Needs ", "Needs"
    )
    (command,) = [each.text for each in docker.root.all("pre") if "-m vllm" in each.text or "vllm \\" in each.text]
    assert command.splitlines() == [
        "{python} \\",
        "    -m vllm \\",
        "    --port {port} \\",
        """    --hf-overrides '{"a": 1}' \\""",
        "    --quiet",
    ]
    assert docker.table("flags-1") == [
        ["--port", "{port}", "where the site wants it", "docs"],
        ["--quiet", "", "no chatter", ""],
    ]
    assert docker.table("env-1") == [["HF_HUB_OFFLINE", "1"], ["HOME", "{state}"]]
    assert docker.table("mounts-1") == [
        ["/cubins", "cubins", "read-only"],
        ["/scratch", "tmp", "may be written to"],
    ]
    assert [row[0] for row in docker.table("names-1")] == ["{port}", "{python}", "{state}"]
    assert docker.table("smoke") == [["capital", "What is the capital of France?", "Paris", ""]]


def test_a_smoke_test_in_another_form_is_shown_whole() -> None:
    lock = reviews.lock()
    test = launch.SmokeTest("embed", "/v1/embeddings", {"input": "text", "model": "{served_name}"})
    found = page(lock, reviews.manifest(lock, smoke=(test,)))
    assert found.table("smoke")[0][1] == '{"input": "text", "model": "{served_name}"}'


def test_every_placeholder_is_explained() -> None:
    assert set(review_launch.MEANINGS) == launch.PLACEHOLDERS


# --- what it promises -------------------------------------------------------------------------------------


def body(manifest: BundleManifest) -> dict[str, Any]:
    """What the site's docker runtime would ask the container engine for."""
    release = ReleaseFiles(Path("/opt/airbundle/releases/demo/v1"), manifest, manifest.launch[0])
    return docker_config.service_body(
        release,
        image="sha256:x",
        slot="service",
        host="127.0.0.1",
        port=8000,
        network=docker_config.SEALED,
        threads=1,
        root="/opt/airbundle",
        engine=docker_config.EngineTraits(),
    )


def test_the_site_confines_containers_as_the_page_says(docker: Page) -> None:
    lock = reviews.lock()
    plan = dataclasses.replace(reviews.manifest(lock).launch[0], mounts=())
    host = body(reviews.manifest(lock, launch=(plan,)))
    config, text = host["HostConfig"], docker.section("host")
    assert config["CapDrop"] == ["ALL"] and config["CapAdd"] == ["DAC_OVERRIDE"]
    assert "every Linux capability dropped but DAC_OVERRIDE" in text
    assert config["SecurityOpt"] == ["no-new-privileges"] and "no-new-privileges set" in text
    assert not config.get("Privileged") and not config.get("PidMode") and "not privileged" in text
    assert config["RestartPolicy"]["Name"] == "unless-stopped" and "restarts with the container engine" in text
    assert "User" not in host and "as the user that the image names" in text
    writable = [mount["Target"] for mount in config["Mounts"] if not mount["ReadOnly"]]
    assert writable == [docker_config.STATE_DIR] and "writes to one directory of the release, state" in text
    assert config["NetworkMode"] == docker_config.SEALED and "without a way out" in text


def test_a_port_open_to_others_is_said_loudly(docker: Page) -> None:
    lock = reviews.lock()
    found = page(lock, reviews.manifest(lock, serving=Serving("0.0.0.0", 9000)))
    text = found.section("host")
    assert "On 0.0.0.0:9000" in text and "reachable from other machines" in text and "without a way out" not in text
    assert "reachable from this host alone" in docker.section("host")
    for host in ("localhost", "::1", "127.0.0.9"):
        text = page(lock, reviews.manifest(lock, serving=Serving(host))).section("host")
        assert "reachable from this host alone" in text


def test_the_venv_runtime_promises_no_confinement(venv: Page) -> None:
    text = venv.section("host")
    assert "nothing else confines it" in text
    assert "container" not in text and "capability" not in text


def test_a_gateway_is_not_denied(docker: Page) -> None:
    lock = reviews.lock()
    spec = dataclasses.replace(lock.spec, gateway={"tls": True})
    found = page(dataclasses.replace(lock, spec=spec), reviews.manifest(lock))
    assert "asks for no password" in docker.section("host")
    assert "asks for no password" not in found.section("host")


def test_commands_that_build_nothing_do_not_pay_for_the_sbom() -> None:
    script = "import sys, airbundle.review.page; sys.exit('cyclonedx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
