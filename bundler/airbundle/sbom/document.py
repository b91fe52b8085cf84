"""The CycloneDX document: every wheel, model, image and installed package, and what asked for what.

The same lock, tool and time give the same bytes: references and the serial number are made from names and hashes.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.exception.factory import InvalidSpdxLicenseException
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import License, LicenseAcknowledgement
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from airbundle.contract.lock import BundleLock, LockedImage, LockedModel, LockedWheel
from airbundle.sbom.inventory import ImageInventory, Inventory, Package
from airbundle.sbom.purl import distribution_of, image_purl, model_purl, package_purl, wheel_purl
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.artifacts import ModelEntry
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import encode

_NAMESPACE = uuid.UUID("6d1c3f0a-4f0e-5b8e-9f0b-2f6b7a5c1e4d")
_ROOT = "bundle"
_VENDORED = re.compile(
    r"^\| `[^`]+` \| `(?P<project>[^`]+)`[^|]*\| (?P<version>\S+) \| `(?P<sha256>[0-9a-f]{64})` \| (?P<license>[^,|]+)",
    re.MULTILINE,
)
"""A row of the table of code that the site program carries from other projects."""

Edges = list[tuple[str, str]]
"""Who depends on whom, by reference."""


def render_sbom(lock: BundleLock, manifest: BundleManifest, inventory: Inventory) -> bytes:
    """The document, as JSON of CycloneDX 1.6.

    Args:
        lock: what is in the bundle.
        manifest: the bundle's, as far as it is known; `outer` holds the site program when that is to be listed.
        inventory: of the same lock.
    """
    edges: Edges = []
    components = [
        *_site_program(manifest, edges),
        *_models(lock, manifest, edges),
        *_wheels(lock.wheels, inventory, edges),
    ]
    for image in lock.images:
        components += _image(image, inventory.images.get(image.name, ImageInventory()), edges)
    root = Component(
        name=manifest.name,
        version=manifest.version,
        type=ComponentType.APPLICATION,
        bom_ref=_ROOT,
        description=lock.spec.bundle.description or None,
    )
    bom = Bom(
        serial_number=_serial(lock, manifest),
        metadata=BomMetaData(
            timestamp=datetime.fromtimestamp(manifest.created, UTC),
            tools=ToolRepository(components=[_tool(manifest.tool)]),
            lifecycles=[PredefinedLifecycle(LifecyclePhase.BUILD)],
            component=root,
            properties=_properties({"profile": manifest.needs.profile.id, "runtime": manifest.needs.runtime}),
        ),
        components=components,
        dependencies=_dependencies([_ROOT, *(_ref(component) for component in components)], edges),
    )
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    return (text + "\n").encode()


def _serial(lock: BundleLock, manifest: BundleManifest) -> uuid.UUID:
    digest = hashlib.sha256(encode(lock)).hexdigest()
    return uuid.uuid5(_NAMESPACE, f"{digest} {manifest.tool} {manifest.created}")


def _tool(tool: str) -> Component:
    name, _, version = tool.partition(" ")
    return Component(name=name, version=version or None, type=ComponentType.APPLICATION, bom_ref="tool")


# --- what is in the bundle --------------------------------------------------------------------------------


def _site_program(manifest: BundleManifest, edges: Edges) -> Iterator[Component]:
    """The program that installs at the site, and what it carries of other projects."""
    listed = {outer.name: outer for outer in manifest.outer}.get(layout.ONSITE)
    if listed is None:
        return
    _name, _, version = manifest.tool.partition(" ")
    reference = f"file:{layout.ONSITE}"
    edges.append((_ROOT, reference))
    yield Component(
        name=layout.ONSITE,
        version=version or None,
        type=ComponentType.APPLICATION,
        bom_ref=reference,
        hashes=_hashes(listed.sha256),
        licenses=_licenses(("Apache-2.0",)),
        properties=_properties({"size": listed.size}),
    )
    register = resources.files("airbundle_onsite").joinpath("_vendor", "README.md").read_text(encoding="utf-8")
    for row in _VENDORED.finditer(register):
        inner = f"{reference}/{row['project']}"
        edges.append((reference, inner))
        yield Component(
            name=row["project"],
            version=row["version"],
            type=ComponentType.LIBRARY,
            bom_ref=inner,
            purl=PackageURL("pypi", None, row["project"], row["version"]),
            hashes=_hashes(row["sha256"]),
            licenses=_licenses((row["license"].strip(),)),
        )


def _models(lock: BundleLock, manifest: BundleManifest, edges: Edges) -> Iterator[Component]:
    entries = {entry.served_name: entry for entry in manifest.models}
    for model in lock.models:
        edges.append((_ROOT, f"model:{model.served_name}"))
        yield _model(model, entries.get(model.served_name))


def _model(model: LockedModel, entry: ModelEntry | None) -> Component:
    """A model; the manifest's entry knows what all of its files say, the lock what those at hand said."""
    reference, read = f"model:{model.served_name}", entry or model
    facts: dict[str, str | int] = {
        "role": model.role,
        "source": model.source,
        "revision": model.revision,
        "format": model.format,
        "quantization": read.quantization,
        "dtype": model.facts.get("dtype", ""),
        "architecture": model.facts.get("architecture") or model.facts.get("architectures", ""),
        "custom-code": ", ".join(read.custom_code),
        "size": sum(file.size for file in model.files),
    }
    return Component(
        name=model.served_name,
        version=model.revision or None,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=reference,
        purl=model_purl(model),
        hashes=_hashes(model.files[0].sha256) if len(model.files) == 1 else (),
        licenses=_licenses((model.license,) if model.license else ()),
        external_references=[_reference(ExternalReferenceType.DISTRIBUTION, model.source, "as the spec names it")],
        properties=_properties(facts, "model:"),
        components=[
            Component(
                name=file.path,
                type=ComponentType.FILE,
                bom_ref=f"{reference}/{file.path}",
                hashes=_hashes(file.sha256),
                properties=_properties({"size": file.size}),
            )
            for file in model.files
        ],
    )


def _wheels(wheels: Sequence[LockedWheel], inventory: Inventory, edges: Edges) -> Iterator[Component]:
    references = {wheel.name: f"wheel:{wheel.name}@{wheel.version}" for wheel in wheels}
    for wheel in wheels:
        # What nothing in the bundle asked for, the spec asked for; or a project that an image brings.
        requesters = {references.get(name, _ROOT) for name in wheel.requested_by} or {_ROOT}
        edges.extend((requester, references[wheel.name]) for requester in requesters)
        yield Component(
            name=wheel.name,
            version=wheel.version,
            type=ComponentType.LIBRARY,
            bom_ref=references[wheel.name],
            purl=wheel_purl(wheel),
            hashes=_hashes(wheel.file.sha256),
            licenses=_licenses(inventory.licenses.get(wheel.file.path, ())),
            external_references=list(_wheel_origins(wheel)),
            properties=_properties(
                {
                    "file": wheel.file.path,
                    "size": wheel.file.size,
                    "requested-by": ", ".join(wheel.requested_by),
                    "built-in": wheel.built_from.get("place", ""),
                    "built-with": wheel.built_from.get("requirements", ""),
                },
                "wheel:",
            ),
        )


def _wheel_origins(wheel: LockedWheel) -> Iterator[ExternalReference]:
    """Where it was fetched, or the source distribution that it was built from."""
    url, source = wheel.file.origin.get("url"), wheel.built_from
    if url:
        yield _reference(ExternalReferenceType.DISTRIBUTION, url)
    if source:
        place, name = source.get("url") or source.get("sdist", ""), source.get("sdist")
        yield _reference(ExternalReferenceType.SOURCE_DISTRIBUTION, place, name, source.get("sha256", ""))


def _image(image: LockedImage, found: ImageInventory, edges: Edges) -> Iterator[Component]:
    reference = f"image:{image.name}"
    edges.append((_ROOT, reference))
    facts = {
        "source": image.source,
        "source-digest": image.source_digest,
        "config-digest": f"sha256:{image.config.sha256}",
        "platform": image.platform,
        "user": image.user,
        "unread": "; ".join(found.unread),
        "unlicensed": found.unlicensed(),
    }
    yield Component(
        name=image.name.rpartition(":")[0],
        version=image.name.rpartition(":")[2],
        type=ComponentType.CONTAINER,
        bom_ref=reference,
        purl=image_purl(image),
        hashes=_hashes(image.manifest.sha256),
        properties=_properties(facts, "image:"),
    )
    distribution, release = distribution_of(found.packages)
    if distribution:
        system = f"{reference}/system"
        edges.append((reference, system))
        yield Component(name=distribution, version=release or None, type=ComponentType.OPERATING_SYSTEM, bom_ref=system)
    same = Counter((package.kind, package.name, package.version) for package in found.packages)
    for package in found.packages:
        inner = f"{reference}/{package.kind}/{package.name}@{package.version}"
        if same[package.kind, package.name, package.version] > 1:  # for two architectures
            inner += f":{package.arch}"
        edges.append((reference, inner))
        yield _package(package, inner, image, (distribution, release))


def _package(package: Package, reference: str, image: LockedImage, system: tuple[str, str]) -> Component:
    return Component(
        name=package.name,
        version=package.version or None,
        type=ComponentType.LIBRARY,
        bom_ref=reference,
        purl=package_purl(package, *system),
        licenses=_licenses(package.licenses),
        properties=_properties({"image": image.name, "architecture": package.arch}),
    )


# --- CycloneDX's own types --------------------------------------------------------------------------------


def _dependencies(references: Iterable[str], edges: Edges) -> list[Dependency]:
    needed: dict[str, list[str]] = {reference: [] for reference in references}
    for one, other in edges:
        needed[one].append(other)
    # Built from the leaves' references alone: the library keeps sorted sets, and nested ones would be compared deeply.
    return [Dependency(BomRef(one), [Dependency(BomRef(other)) for other in others]) for one, others in needed.items()]


def _ref(component: Component) -> str:
    value = component.bom_ref.value
    assert value is not None
    return value


def _hashes(sha256: str) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]


def _properties(facts: Mapping[str, str | int], prefix: str = "") -> list[Property]:
    """Facts that say something, under the tool's own name."""
    return [Property(name=f"airbundle:{prefix}{name}", value=str(value)) for name, value in facts.items() if value]


def _reference(
    kind: ExternalReferenceType, url: str, comment: str | None = None, sha256: str = ""
) -> ExternalReference:
    return ExternalReference(type=kind, url=XsUri(url), comment=comment, hashes=_hashes(sha256) if sha256 else ())


def _licenses(names: Sequence[str]) -> list[License]:
    """One identifier, expression or name as it stands; several as a list, which can hold no expression."""
    factory, declared = LicenseFactory(), LicenseAcknowledgement.DECLARED
    if len(names) == 1:
        return [factory.make_from_string(names[0], license_acknowledgement=declared)]
    found: list[License] = []
    for name in names:
        try:
            found.append(factory.make_with_id(name, acknowledgement=declared))
        except InvalidSpdxLicenseException:
            found.append(factory.make_with_name(name, acknowledgement=declared))
    return found
