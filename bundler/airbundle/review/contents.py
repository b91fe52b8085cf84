"""What is inside, as tables: models, images, wheels and packages of images, each with origin, licence and digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airbundle.contract.lock import BundleLock, LockedImage, LockedModel, LockedWheel
from airbundle.review.tables import Column, Table, count, exact_bytes
from airbundle.sbom.inventory import ImageInventory, Inventory, Package
from airbundle.sbom.purl import distribution_of
from airbundle_onsite.contract.artifacts import ModelEntry
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.units import human_bytes

_UNKNOWN = "not declared"
_COLUMNS = (Column("Package"), Column("Version"))
_KINDS = {"deb": "Debian packages", "rpm": "RPM packages", "apk": "Alpine packages", "python": "Python projects"}


def content_tables(lock: BundleLock, manifest: BundleManifest, inventory: Inventory) -> Iterable[Table]:
    """What was locked, with what reading the files added to it."""
    read = {entry.served_name: entry for entry in manifest.models}
    if lock.models:
        yield Table(
            "models",
            "Models",
            (Column("Model"), Column("Format"), Column("From"), Column("Size", "number"), Column("Licence")),
            tuple(_model_row(model, read.get(model.served_name, model)) for model in lock.models),
        )
        code = tuple((path, model.served_name) for model in lock.models for path in _code(model, read))
        if code:
            columns = (Column("File and origin", "code"), Column("Model"))
            yield Table("code", "Python code that comes with models and is run by the engine", columns, code)
    for number, model in enumerate(lock.models, 1):
        yield Table(
            f"model-files-{number}",
            f"Files of model {model.served_name}",
            (Column("File", "code"), Column("Size", "number"), Column("SHA-256", "hash")),
            tuple((file.path, exact_bytes(file.size), file.sha256) for file in model.files),
        )
    if lock.images:
        yield Table(
            "images",
            "Container images",
            (Column("Image"), Column("System"), Column("Size", "number"), Column("Source and digests", "hash")),
            tuple(_image_row(image, inventory) for image in lock.images),
        )
    if lock.wheels:
        yield Table(
            "wheels",
            "Python packages (wheels)",
            (
                Column("Package"),
                Column("Version"),
                Column("Licence"),
                Column("Asked for by"),
                Column("Size", "number"),
                Column("File and SHA-256", "hash"),
            ),
            tuple(_wheel_row(wheel, inventory) for wheel in lock.wheels),
        )


def _model_row(model: LockedModel, read: LockedModel | ModelEntry) -> tuple[str, ...]:
    role = "" if model.role == "model" else f"\n({model.role})"
    source = f"{model.source}\nrevision {model.revision}" if model.revision else model.source
    size = human_bytes(sum(file.size for file in model.files))
    # A GGUF file's own word for how it is stored begins with the format.
    stored = read.quantization.removeprefix(model.format).strip() or model.facts.get("dtype", "")
    return (f"{model.served_name}{role}", f"{model.format} {stored}".strip(), source, size, model.license or _UNKNOWN)


def _code(model: LockedModel, read: Mapping[str, ModelEntry]) -> tuple[str, ...]:
    return read[model.served_name].custom_code if model.served_name in read else model.custom_code


def _image_row(image: LockedImage, inventory: Inventory) -> tuple[str, ...]:
    found = found_in(inventory, image)
    size = sum({blob.sha256: blob.size for blob in (*image.blobs, image.config, image.manifest)}.values())
    user = f"user {image.user}" if image.user else "user root, as the image names none"
    system = " ".join(filter(None, distribution_of(found.packages)))
    counts = f"{count(len(found.of_system()), 'system package')}, {count(len(found.of_python()), 'Python project')}"
    described = "\n".join(filter(None, (system, image.platform, user, counts)))
    digests = f"there {image.source_digest}\nhere  sha256:{image.manifest.sha256}"
    return (image.name, described, human_bytes(size), f"{image.source}\n{digests}")


def _wheel_row(wheel: LockedWheel, inventory: Inventory) -> tuple[str, ...]:
    licenses = "\n".join(inventory.licenses.get(wheel.file.path, ())) or _UNKNOWN
    asked = ", ".join("the spec" if name == "spec" else name for name in wheel.requested_by) or "the spec"
    index = "" if wheel.index == "pypi" else f"\nfrom {wheel.index}"
    if wheel.built_from:
        index += (
            f"\nbuilt from {wheel.built_from.get('sdist', 'its source')} {wheel.built_from.get('place', '')}".rstrip()
        )
    return (
        wheel.name,
        wheel.version,
        licenses,
        asked,
        human_bytes(wheel.file.size),
        f"{wheel.file.path}\n{wheel.file.sha256}{index}",
    )


def found_in(inventory: Inventory, image: LockedImage) -> ImageInventory:
    """What was found in an image; nothing when it was not looked at."""
    return inventory.images.get(image.name, ImageInventory())


def _package_row(package: Package) -> tuple[str, ...]:
    """Python's have no licence and architecture read: in an image they are rarely more than a name."""
    if package.kind == "python":
        return (package.name, package.version)
    return (package.name, package.version, package.arch, "\n".join(package.licenses) or _UNKNOWN)


def package_tables(lock: BundleLock, inventory: Inventory) -> Iterable[Table]:
    """Every package found in an image, one table for each image and kind of package."""
    for number, image in enumerate(lock.images, 1):
        kinds: dict[str, list[Package]] = {}
        for package in found_in(inventory, image).packages:
            kinds.setdefault(package.kind, []).append(package)
        for kind, packages in sorted(kinds.items()):
            yield Table(
                f"packages-{number}-{kind}",
                f"{_KINDS[kind]} in image {image.name}: {len(packages)}",
                _COLUMNS if kind == "python" else (*_COLUMNS, Column("Architecture"), Column("Licence")),
                tuple(_package_row(package) for package in packages),
            )
