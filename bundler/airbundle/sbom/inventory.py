"""What a lock does not say and a reviewer asks: licences of wheels, packages in images."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from email.message import Message
from typing import Literal

from airbundle.cache import Cache
from airbundle.contract.lock import BundleLock, LockedImage, LockedWheel
from airbundle.prove.collect import Facts
from airbundle.prove.facts import LayerFacts
from airbundle.prove.image import merge_layers
from airbundle.prove.wheel import parse_metadata
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

PackageKind = Literal["deb", "rpm", "apk", "python"]

_KINDS: Mapping[str, PackageKind] = {"deb": "deb", "rpm": "rpm", "apk": "apk"}

_CLASSIFIER = "License :: "
_LONGEST_NAME = 120
"""Characters; a License field beyond that is the licence's text, not its name."""

_SPDX = {
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Classifiers that stand for exactly one licence. "BSD License" and the like are kept in their own words."""


@record
class Package:
    """Something installed in an image: a package of its operating system, or a Python project.

    Attributes:
        arch: as the system's package database spells it; empty when it does not say, and for Python.
        licenses: as the package declares them: identifiers of SPDX, Debian's short names, or an expression.
    """

    name: str
    version: str
    kind: PackageKind
    arch: str = ""
    licenses: tuple[str, ...] = ()


@record
class ImageInventory:
    """What an image's own records say it holds.

    Attributes:
        packages: sorted, each once.
        unread: what could not be read, with the reason; the list of packages is then not complete.
    """

    packages: tuple[Package, ...] = ()
    unread: tuple[str, ...] = ()

    def of_system(self) -> tuple[Package, ...]:
        """Packages of the operating system."""
        return tuple(package for package in self.packages if package.kind != "python")

    def unlicensed(self) -> str:
        """How many of the system's packages declare no licence that can be read, and why; empty when all do."""
        system = self.of_system()
        missing = [package for package in system if not package.licenses]
        if not missing:
            return ""
        reason = (
            "no copyright file in Debian's machine-readable form"
            if any(package.kind == "deb" for package in missing)
            else "the package database names none"
        )
        return f"{len(missing)} of {len(system)} system packages have no licence that can be read: {reason}"

    def of_python(self) -> tuple[Package, ...]:
        """Installed Python projects."""
        return tuple(package for package in self.packages if package.kind == "python")


@record
class Inventory:
    """See the module's text.

    Attributes:
        licenses: by the wheel's file name, what its publisher declares: one SPDX expression, or licences in words.
        images: by name.
    """

    licenses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: Mapping[str, ImageInventory] = field(default_factory=dict)


def take_inventory(lock: BundleLock, cache: Cache) -> Inventory:
    """Look into everything of a lock whose files are all in the cache.

    A layer is read once and its facts are kept; the closure proof uses the same ones.

    Raises:
        FetchError: a wheel is not an archive.
        IntegrityError: a layer is damaged.
    """
    layers = {layer.digest: layer for image in lock.images for layer in image.layers}
    facts = Facts(cache)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        read = dict(zip(layers, pool.map(lambda layer: _layer(facts, layer), layers.values()), strict=True))
    return Inventory(
        licenses={wheel.file.path: _wheel_licenses(wheel, cache) for wheel in lock.wheels},
        images={image.name: _image(image, [read[layer.digest] for layer in image.layers]) for image in lock.images},
    )


# --- images -----------------------------------------------------------------------------------------------


def _layer(facts: Facts, layer: Layer) -> LayerFacts:
    """Its facts. One in a form that the reader does not know is listed as unread: the image itself is sound."""
    try:
        return facts.layer(layer)
    except FetchError as error:
        return LayerFacts(unread=(error.summary,))


def _image(image: LockedImage, layers: Sequence[LayerFacts]) -> ImageInventory:
    found = merge_layers(image.name, layers)
    packages = {
        Package(each.name, each.version, _KINDS[each.kind], each.arch, each.licenses) for each in found.os_packages
    }
    packages |= {Package(each.name, each.version, "python") for each in found.distributions if each.name}
    return ImageInventory(
        tuple(sorted(packages, key=lambda each: (each.kind, each.name, each.version, each.arch))),
        tuple(sorted(set(found.unread))),
    )


# --- wheels -----------------------------------------------------------------------------------------------


def _wheel_licenses(wheel: LockedWheel, cache: Cache) -> tuple[str, ...]:
    try:
        with zipfile.ZipFile(cache.path(wheel.file.sha256)) as archive:
            names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return declared_licenses(parse_metadata(archive.read(names[0]))) if names else ()
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.file.path} is not a wheel: {error}", remedy="lock again without it") from error


def declared_licenses(metadata: Message) -> tuple[str, ...]:
    """The licences that a wheel's metadata declares: its expression, else the License field, else its classifiers."""
    expression = _text(metadata.get("License-Expression"))
    if expression:
        return (expression,)
    named = _text(metadata.get("License"))
    if named and len(named) <= _LONGEST_NAME:
        return (_SPDX.get(named, named),)
    classified = _classified(metadata.get_all("Classifier", ()))
    if classified or not named:
        return classified
    first = str(metadata["License"]).strip().splitlines()[0].strip(" |")
    return (_SPDX.get(first, first[:_LONGEST_NAME]),)


def _text(value: object) -> str:
    """A header's value on one line; empty when it is missing or says nothing."""
    text = re.sub(r"\s+", " ", str(value or "")).strip()
    return "" if text.upper() in ("UNKNOWN", "NONE", "N/A") else text


def _classified(classifiers: Iterable[object]) -> tuple[str, ...]:
    lines = [str(line).strip() for line in classifiers]
    names = [line.rpartition(" :: ")[2] for line in lines if line.startswith(_CLASSIFIER)]
    return tuple(dict.fromkeys(_SPDX.get(name, name) for name in names if name != "OSI Approved"))
