"""Decides for each file of a bundle where its bytes come from: the payload, or what the site has."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from airbundle.assemble import Member
from airbundle.cache import Cache
from airbundle.contents import Contents, packed_files, unpacked_images
from airbundle.contract.lock import BundleLock
from airbundle.delta.base import Known
from airbundle.delta.content import of_file
from airbundle.delta.facts import Readable, TensorReader
from airbundle_onsite import tensors
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.base import BaseFile, BaseRelease, Rollback
from airbundle_onsite.contract.inventory import TensorFact
from airbundle_onsite.contract.payload import Segment
from airbundle_onsite.contract.record import record
from airbundle_onsite.system import Talk

SMALLEST = 64 * 1024
"""Files below this many bytes always travel: an administrator may have edited a configuration at the site, and that
must not keep a model from being updated."""

_SMALLEST_RUN = 4096
"""A tensor below this many bytes is worth no segment of its own; it goes with its neighbours, or travels."""


@record
class Difference:
    """What a bundle is to be built upon.

    Attributes:
        known: releases that the site has.
        skip: see `thin`.
        rollback: for a bundle that leads back to an older release.
    """

    known: tuple[Known, ...]
    skip: frozenset[str] = frozenset()
    rollback: Rollback | None = None


@record
class Thinned:
    """What is left of the members, and what the site must have for the rest.

    Attributes:
        members: as they will be packed; layers that were left out are gone.
        bases: for the manifest.
        layers: digests of the image layers that were left out.
    """

    members: tuple[Member, ...]
    bases: tuple[BaseRelease, ...]
    layers: frozenset[str]


@record
class Preview:
    """What would be packed.

    Attributes:
        members: with what is left of each.
        layers: digests of the image layers that are left out.
        exact: whether files that differ were compared by tensor, if that was wanted.
        bases: titles of the releases that the site must have.
    """

    members: tuple[Member, ...]
    layers: frozenset[str]
    exact: bool
    bases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of content in the payload."""
        return sum(segment.packed for member in self.members for segment in member.runs)


def thin(
    members: Sequence[Member],
    images: Sequence[Sequence[Layer]],
    known: Sequence[Known],
    reader: TensorReader,
    *,
    skip: Collection[str] = (),
) -> Thinned:
    """Leave out what the base has.

    Args:
        members: of the full bundle.
        images: layers of each image, from the bottom up.
        known: releases that the site has; the first that has something is named for it.
        reader: for tensors.
        skip: ``images`` to keep every layer, ``tensors`` to leave out only whole files.

    Raises:
        IntegrityError: the base's own bundle is damaged.
    """
    layers = {} if "images" in skip else _shared_layers(images, known)
    blobs = {digest.removeprefix("sha256:") for digest in layers}
    found = _Finder(members, known, reader, by_tensor="tensors" not in skip)
    left = [
        member if member.role == "image" else found.thinned(member)
        for member in members
        if member.role != "image" or member.sha256 not in blobs
    ]
    return Thinned(tuple(left), _releases(left, known, layers), frozenset(layers))


def preview(lock: BundleLock, cache: Cache, difference: Difference | None, talk: Talk) -> Preview:
    """What would be packed of a lock's files, before they are fetched.

    Files and layers are told apart by their digests. Tensors are compared when the cache has every model file, which
    is as much reading as the build then saves; else files that differ count whole.
    """
    members = tuple(packed_files(lock, cache))
    if difference is None:
        return Preview(members, frozenset(), exact=True)
    exact = all(cache.has(file.sha256, file.size) for model in lock.models for file in model.files)
    skip = difference.skip if exact else difference.skip | {"tensors"}
    layers = [image.layers for image in lock.images]
    made = thin(members, layers, difference.known, TensorReader(cache, talk), skip=skip)
    return Preview(made.members, made.layers, exact, tuple(base.title for base in made.bases))


def leave_out(contents: Contents, lock: BundleLock, cache: Cache, difference: Difference, talk: Talk) -> Contents:
    """The contents of a full bundle without what the site has."""
    layers = [image.layers for image in lock.images]
    made = thin(contents.members, layers, difference.known, TensorReader(cache, talk), skip=difference.skip)
    return dataclasses.replace(
        contents,
        members=made.members,
        image_bytes=unpacked_images(lock.images, cache, made.layers),
        bases=made.bases,
        rollback=difference.rollback,
    )


def _releases(
    members: Sequence[Member], known: Sequence[Known], layers: Mapping[str, Known]
) -> tuple[BaseRelease, ...]:
    used = {segment.base for member in members for segment in member.segments if segment.base is not None}
    made = []
    for each in known:
        own: list[BaseFile] = sorted((each.files[sha] for sha in used & each.files.keys()), key=lambda file: file.path)
        used -= each.files.keys()
        digests = tuple(sorted(digest for digest, release in layers.items() if release is each))
        if own or digests:
            made.append(BaseRelease(each.name, each.version, each.manifest_sha256, tuple(own), digests))
    return tuple(made)


# --- image layers -----------------------------------------------------------------------------------------
def _shared_layers(images: Sequence[Sequence[Layer]], known: Sequence[Known]) -> dict[str, Known]:
    """Digests of layers that an engine with the base's images has, each above the very same layers.

    A layer is identified by all that is beneath it, too, so only the lowest layers of an image can be left out. One
    that another image of the bundle needs above other layers has to travel, and those above it with it.
    """
    deepest = [_deepest(image, known) for image in images]
    depths = [depth for depth, _ in deepest]
    while True:
        needed = {layer.digest for image, depth in zip(images, depths, strict=True) for layer in image[depth:]}
        cut = [
            next((at for at, layer in enumerate(image[:depth]) if layer.digest in needed), depth)
            for image, depth in zip(images, depths, strict=True)
        ]
        if cut == depths:
            break
        depths = cut
    return {
        layer.digest: owner
        for image, depth, (_, owner) in zip(images, depths, deepest, strict=True)
        if owner is not None
        for layer in image[:depth]
    }


def _deepest(image: Sequence[Layer], known: Sequence[Known]) -> tuple[int, Known | None]:
    """How many of an image's lowest layers a release's images have, and which release has the most."""
    best: tuple[int, Known | None] = (0, None)
    for each in known:
        for stack in each.stacks:
            depth = 0
            while depth < min(len(stack), len(image)) and stack[depth] == image[depth].diff_id:
                depth += 1
            if depth > best[0]:
                best = (depth, each)
    return best


# --- files ------------------------------------------------------------------------------------------------
class _Finder:
    """Looks bytes up in the base."""

    def __init__(
        self, members: Sequence[Member], known: Sequence[Known], reader: TensorReader, *, by_tensor: bool
    ) -> None:
        self._files = {sha256: file for each in known for sha256, file in each.files.items()}
        self._runs = _Runs()
        self._tensors: Mapping[str, tuple[TensorFact, ...]] = {}
        fresh = [_readable(member) for member in members if self._by_tensor(member)] if by_tensor else []
        suffixes = {Path(file.path).suffix.lower() for file in fresh}
        old = {
            sha256: file
            for each in known
            for sha256, file in each.readable.items()
            if Path(file.path).suffix.lower() in suffixes
        }
        listed = {sha256: facts for each in known for sha256, facts in each.tensors.items() if sha256 in old}
        if fresh and old:
            read = reader.read([file for sha256, file in old.items() if sha256 not in listed])
            for sha256, facts in {**read, **listed}.items():
                self._runs.add(sha256, facts)
            self._tensors = reader.read(fresh)

    def _by_tensor(self, member: Member) -> bool:
        return (
            member.role == "model"
            and member.size >= SMALLEST
            and member.sha256 not in self._files
            and tensors.has_tensors(member.path)
        )

    def thinned(self, member: Member) -> Member:
        """The member, with segments where the base has some of its bytes."""
        if member.size < SMALLEST:
            return member
        if member.sha256 in self._files:
            return dataclasses.replace(member, segments=(Segment(member.size, 0, member.sha256),))
        facts = self._tensors.get(member.sha256)
        segments = self._runs.segments(member.size, facts) if facts else ()
        if all(segment.base is None for segment in segments):
            return member
        return dataclasses.replace(member, segments=segments)


class _Runs:
    """Tensors of the base by content and by place."""

    def __init__(self) -> None:
        self._by_content: dict[tuple[str, int], tuple[str, int]] = {}
        self._by_place: dict[tuple[str, int], tuple[str, int]] = {}

    def add(self, sha256: str, facts: Sequence[TensorFact]) -> None:
        """Those of one file."""
        for fact in facts:
            self._by_content.setdefault((fact.sha256, fact.size), (sha256, fact.offset))
            self._by_place[sha256, fact.offset] = (fact.sha256, fact.size)

    def segments(self, size: int, facts: Sequence[TensorFact]) -> tuple[Segment, ...]:
        """What a file of these tensors is made of: unchanged neighbours are one segment, the header travels."""
        made: list[Segment] = []
        position = 0
        for fact in facts:
            if fact.offset > position:
                _append(made, Segment(fact.offset - position, position))
            _append(made, self._segment(fact, made[-1] if made else None))
            position = fact.offset + fact.size
        if position < size:
            _append(made, Segment(size - position, position))
        return tuple(made)

    def _segment(self, fact: TensorFact, before: Segment | None) -> Segment:
        content = (fact.sha256, fact.size)
        if before is not None and before.base is not None:
            follows = (before.base, before.offset + before.size)
            if self._by_place.get(follows) == content:
                return Segment(fact.size, follows[1], before.base)
        place = self._by_content.get(content)
        if place is None or fact.size < _SMALLEST_RUN:
            return Segment(fact.size, fact.offset)
        return Segment(fact.size, place[1], place[0])


def _append(made: list[Segment], segment: Segment) -> None:
    """Add a segment, joined with the one before where it goes on there."""
    if made and made[-1].base == segment.base and made[-1].offset + made[-1].size == segment.offset:
        made[-1] = Segment(made[-1].size + segment.size, made[-1].offset, segment.base)
    else:
        made.append(segment)


def _readable(member: Member) -> Readable:
    content = member.content
    if isinstance(content, Path):
        return Readable(member.path, member.size, member.sha256, of_file(content, member.size), True)
    return Readable(member.path, member.size, member.sha256, content if isinstance(content, tuple) else None, True)
