"""What differs between two bundles: packages, flags, images, models by tensor, smoke tests, requirements, bytes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airbundle.cache import Cache
from airbundle.delta.base import Known, of_bundle
from airbundle.delta.facts import TensorReader
from airbundle_onsite import tensors
from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.inventory import TensorFact
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.contract.record import record, to_plain
from airbundle_onsite.system import Talk
from airbundle_onsite.units import human_bytes
from airbundle_onsite.verify.bundle import TrustedManifest


@record
class Change:
    """A value that differs; None where there is none."""

    what: str
    before: Any = None
    after: Any = None


@record
class FlagChange:
    """How the command of a launch plan differs: words that went, words that came, and other values."""

    plan: str
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


@record
class ImageChange:
    """How an image differs. Bytes are those of compressed layers."""

    name: str
    before: str = ""
    after: str = ""
    same_layers: int = 0
    new_layers: int = 0
    gone_layers: int = 0
    new_bytes: int = 0


@record
class FileChange:
    """How a model's file differs.

    Attributes:
        path: inside the payload.
        kind: ``added``, ``removed`` or ``changed``.
        size: bytes of the new one, or of the one that went.
        new_bytes: bytes that the old bundle has nowhere, as far as tensors tell.
        tensors: how many it has; 0 when its tensors could not be compared.
        changed, added, removed: names of tensors.
    """

    path: str
    kind: str
    size: int
    new_bytes: int
    tensors: int = 0
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@record
class Comparison:
    """Everything that differs between two bundles; `new_bytes` of `bytes` of the new one are not in the old one."""

    before: str
    after: str
    bytes: int
    new_bytes: int
    wheels: tuple[Change, ...] = ()
    flags: tuple[FlagChange, ...] = ()
    images: tuple[ImageChange, ...] = ()
    models: tuple[Change, ...] = ()
    files: tuple[FileChange, ...] = ()
    smoke: tuple[Change, ...] = ()
    requirements: tuple[Change, ...] = ()


def compare(before: TrustedManifest, after: TrustedManifest, cache: Cache, talk: Talk) -> Comparison:
    """Compare two bundles. Tensors are compared where the files are in the parts, in the cache, or remembered.

    Raises:
        IntegrityError: a bundle's part is damaged where a tensor was read.
    """
    old, new = before.manifest, after.manifest
    files = tuple(_file_changes(old, new, _Tensors(before, after, cache, talk)))
    images = tuple(_image_changes(old, new))
    new_bytes = sum(file.new_bytes for file in files) + sum(image.new_bytes for image in images)
    return Comparison(
        f"{old.name} {old.version}",
        f"{new.name} {new.version}",
        sum(entry.size for entry in new.files),
        new_bytes,
        tuple(_by_key({w.name: w.version for w in old.wheels}, {w.name: w.version for w in new.wheels})),
        tuple(_flag_changes(old.launch, new.launch)),
        images,
        tuple(_model_changes(old, new)),
        files,
        tuple(_by_key(_keyed(old.smoke), _keyed(new.smoke))),
        tuple(_requirements(old, new)),
    )


# --- values -----------------------------------------------------------------------------------------------
def _by_key(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield Change(key, before.get(key), after.get(key))


def _keyed(records: Iterable[Any]) -> dict[str, Any]:
    return {str(each.id): to_plain(each) for each in records}


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a plain document with the path to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _requirements(old: BundleManifest, new: BundleManifest) -> Iterator[Change]:
    def facts(manifest: BundleManifest) -> dict[str, Any]:
        return dict(_flat({"needs": to_plain(manifest.needs), "serving": to_plain(manifest.serving)}))

    yield from _by_key(facts(old), facts(new))


def _flag_changes(before: Sequence[LaunchPlan], after: Sequence[LaunchPlan]) -> Iterator[FlagChange]:
    old, new = {plan.id: plan for plan in before}, {plan.id: plan for plan in after}
    for key in sorted(old.keys() | new.keys()):
        if key not in new or key not in old:
            gone, came = (old[key].argv, ()) if key in old else ((), new[key].argv)
            yield FlagChange(key, tuple(gone), tuple(came))
            continue
        removed, added = _words(old[key].argv, new[key].argv)
        rest = [dict(_flat({**to_plain(each), "argv": None, "flags": None})) for each in (old[key], new[key])]
        changes = tuple(_by_key(*rest))
        if removed or added or changes:
            yield FlagChange(key, removed, added, changes)


def _words(before: Sequence[str], after: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Flags with their values that went and that came."""
    old, new = list(_flags(before)), list(_flags(after))
    removed, added = [], []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += old[a:b]
            added += new[c:d]
    return tuple(removed), tuple(added)


def _flags(words: Sequence[str]) -> Iterator[str]:
    """Words, with the value of an option joined to it."""
    held = ""
    for word in words:
        if word.startswith("-"):
            if held:
                yield held
            held = word
        elif held:
            yield f"{held} {word}"
            held = ""
        else:
            yield word
    if held:
        yield held


def _image_changes(old: BundleManifest, new: BundleManifest) -> Iterator[ImageChange]:
    before, after = {image.name: image for image in old.images}, {image.name: image for image in new.images}
    had = {layer.diff_id for image in old.images for layer in image.layers}
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is not None and now is not None and was.config_digest == now.config_digest:
            continue
        fresh = {layer.digest: layer.size for layer in (now.layers if now else ()) if layer.diff_id not in had}
        wanted = {layer.diff_id for layer in now.layers} if now else set()
        yield ImageChange(
            name,
            was.config_digest if was else "",
            now.config_digest if now else "",
            same_layers=len(wanted & had),
            new_layers=len(fresh),
            gone_layers=sum(layer.diff_id not in wanted for layer in _layers(was)),
            new_bytes=sum(fresh.values()),
        )


def _layers(image: ImageEntry | None) -> tuple[Any, ...]:
    return image.layers if image else ()


def _model_changes(old: BundleManifest, new: BundleManifest) -> Iterator[Change]:
    def facts(manifest: BundleManifest) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for model in manifest.models:
            plain = {key: value for key, value in to_plain(model).items() if key not in ("files", "size")}
            found.update(_flat(plain, model.served_name))
        return found

    yield from _by_key(facts(old), facts(new))


# --- files ------------------------------------------------------------------------------------------------
class _Tensors:
    """Tensors of both bundles' files, read only when a file is asked for that differs."""

    def __init__(self, before: TrustedManifest, after: TrustedManifest, cache: Cache, talk: Talk) -> None:
        self._old, self._new = of_bundle(before, cache), of_bundle(after, cache)
        self._reader = TensorReader(cache, talk)
        self._contents: set[tuple[str, int]] = set()
        self._read: dict[str, tuple[TensorFact, ...]] = {}

    def load(self, old: Sequence[FileEntry], new: Sequence[FileEntry]) -> None:
        """Read those files."""
        before = self._reader.read(_readable(self._old, old))
        self._contents = {(fact.sha256, fact.size) for facts in before.values() for fact in facts}
        self._read = {**before, **self._reader.read(_readable(self._new, new))}

    def of(self, entry: FileEntry | None) -> dict[str, TensorFact]:
        """By name; empty when they cannot be read."""
        return {fact.name: fact for fact in self._read.get(entry.sha256, ())} if entry else {}

    def new_bytes(self, entry: FileEntry) -> int:
        """Bytes of a file that no file read of the old bundle has."""
        facts = self.of(entry).values()
        return entry.size - sum(fact.size for fact in facts if (fact.sha256, fact.size) in self._contents)


def _readable(known: Known, entries: Sequence[FileEntry]) -> list[Any]:
    return [known.readable[entry.sha256] for entry in entries if entry.sha256 in known.readable]


def _file_changes(old: BundleManifest, new: BundleManifest, facts: _Tensors) -> Iterator[FileChange]:
    before = {entry.path: entry for entry in old.files if entry.role != "image"}
    after = {entry.path: entry for entry in new.files if entry.role != "image"}
    had = {entry.sha256 for entry in old.files}
    differ = [path for path in sorted(before.keys() | after.keys()) if _sha(before.get(path)) != _sha(after.get(path))]
    fresh = [after[path] for path in differ if path in after and tensors.has_tensors(path)]
    if fresh:
        everything = [entry for entry in before.values() if tensors.has_tensors(entry.path)]
        facts.load(everything, [entry for entry in fresh if entry.sha256 not in had])
    for path in differ:
        was, now = before.get(path), after.get(path)
        if now is None:
            yield FileChange(path, "removed", was.size if was else 0, 0)
            continue
        mine, theirs = facts.of(now), facts.of(was)
        both = bool(mine and theirs)
        yield FileChange(
            path,
            "changed" if was else "added",
            now.size,
            0 if now.sha256 in had else facts.new_bytes(now),
            tensors=len(mine),
            changed=tuple(n for n in mine if n in theirs and mine[n].sha256 != theirs[n].sha256) if both else (),
            added=tuple(n for n in mine if n not in theirs) if both else (),
            removed=tuple(n for n in theirs if n not in mine) if both else (),
        )


def _sha(entry: FileEntry | None) -> str:
    return entry.sha256 if entry else ""


# --- text -------------------------------------------------------------------------------------------------
_SHOWN = 8


def comparison_text(found: Comparison) -> str:
    """For people."""
    share = f", {100 * found.new_bytes / found.bytes:.1f} %" if found.bytes else ""
    lines = [
        f"{found.before} -> {found.after}",
        f"  new       {human_bytes(found.new_bytes)} of {human_bytes(found.bytes)}{share}",
    ]
    lines += [f"  wheel     {each.what}: {each.before or '-'} -> {each.after or '-'}" for each in found.wheels]
    for plan in found.flags:
        lines += [f"  launch    {plan.plan}: - {word}" for word in plan.removed]
        lines += [f"  launch    {plan.plan}: + {word}" for word in plan.added]
        lines += [f"  launch    {plan.plan}: {_change(each)}" for each in plan.changes]
    for image in found.images:
        lines.append(
            f"  image     {image.name}: {image.same_layers} layer(s) the same, {image.new_layers} new "
            f"({human_bytes(image.new_bytes)}), {image.gone_layers} gone"
        )
    lines += [f"  model     {_change(each)}" for each in found.models]
    for file in found.files:
        lines.append(f"  file      {file.path}: {file.kind}, {human_bytes(file.size)}{_tensor_text(file)}")
    lines += [f"  smoke     {_change(each)}" for each in found.smoke]
    lines += [f"  needs     {_change(each)}" for each in found.requirements]
    if len(lines) == 2:
        lines.append("  nothing differs")
    return "\n".join(lines)


def _tensor_text(file: FileChange) -> str:
    if not file.tensors or file.kind == "removed":
        return ""
    names = [("changed", file.changed), ("added", file.added), ("removed", file.removed)]
    told = [f"{len(each)} {what} ({_some(each)})" for what, each in names if each]
    return f"; of {file.tensors} tensors {', '.join(told) or 'none changed'}; {human_bytes(file.new_bytes)} new"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _change(each: Change) -> str:
    if each.before is None:
        return f"{each.what}: new, {_short(each.after)}"
    if each.after is None:
        return f"{each.what}: gone, was {_short(each.before)}"
    return f"{each.what}: {_short(each.before)} -> {_short(each.after)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
