"""What is left out of a bundle: whole files, tensors, layers; and what is never left out."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from airbundle.assemble import Member, plan_payload, write_payload
from airbundle.cache import Cache
from airbundle.delta.base import Known
from airbundle.delta.content import of_file
from airbundle.delta.facts import Readable, TensorReader
from airbundle.delta.thin import SMALLEST, Thinned, thin
from airbundle_onsite import tensors
from airbundle_onsite.contract.artifacts import Layer
from airbundle_onsite.contract.base import BaseFile
from airbundle_onsite.contract.inventory import TensorFact
from airbundle_onsite.contract.payload import FileEntry
from airbundle_onsite.system import Silent
from parts import tuned

PATH = "models/demo/model.safetensors"


class Office:
    """Files by content, a base and a cache under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, Cache(folder / "cache")
        self.content: dict[str, bytes] = {}

    def _file(self, data: bytes) -> tuple[str, Path]:
        digest = sha256(data).hexdigest()
        path = self.folder / digest
        path.write_bytes(data)
        self.content[digest] = data
        return digest, path

    def known(self, files: dict[str, bytes], *, version: str = "v1", stacks: tuple[tuple[str, ...], ...] = ()) -> Known:
        base, readable = {}, {}
        for path, data in files.items():
            digest, place = self._file(data)
            base[digest] = BaseFile(path, len(data), digest)
            readable[digest] = Readable(path, len(data), digest, of_file(place, len(data)), True)
        return Known("demo", version, 1, "0" * 64, base, readable, stacks=stacks)

    def member(self, path: str, data: bytes) -> Member:
        digest, place = self._file(data)
        role = "model" if path.startswith("models/") else "config"
        return Member(path, role, len(data), digest, place)  # type: ignore[arg-type]

    def thin(self, files: dict[str, bytes], *known: Known, **options: object) -> Thinned:
        members = [self.member(path, data) for path, data in files.items()]
        return thin(members, (), known, TensorReader(self.cache, Silent()), **options)  # type: ignore[arg-type]

    def rebuilt(self, made: Thinned) -> dict[str, bytes]:
        """Every file, put together from the parts that are written and the base's files."""
        folder = self.folder / "parts"
        folder.mkdir(exist_ok=True)
        plan = plan_payload(made.members, 0)
        write_payload(plan, folder, part_size=0)
        payload = (folder / "payload.tar.000").read_bytes()
        return {entry.path: self._joined(entry, payload) for entry in plan.entries()}

    def _joined(self, entry: FileEntry, payload: bytes) -> bytes:
        return b"".join(
            (payload if each.base is None else self.content[each.base])[each.offset : each.offset + each.size]
            for each in entry.segments
        )


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def packed(made: Thinned) -> int:
    return sum(run.packed for member in made.members for run in member.runs)


def test_neighbours_are_one_segment(office: Office) -> None:
    old = tuned.safetensors(tuned.tensors(20))
    new = tuned.safetensors(tuned.tensors(20, changed={5}), "a header that grew")
    made = office.thin({PATH: new}, office.known({PATH: old}))
    (member,) = made.members
    assert [run.base is None for run in member.segments] == [True, False, True, False]
    assert office.rebuilt(made) == {PATH: new}
    (base,) = made.bases
    assert (base.title, [file.path for file in base.files]) == ("demo v1", [PATH])


def test_tensors_are_found_wherever_they_moved(office: Office) -> None:
    """Sharded another way: every tensor is in the base, only the headers travel."""
    made_of = tuned.tensors(24)
    old, new = tuned.shards(made_of, 4), tuned.shards(made_of, 3)
    made = office.thin(new, office.known(old))
    assert packed(made) < 5000
    assert office.rebuilt(made) == new


def test_a_whole_file_is_looked_for_in_every_release(office: Office) -> None:
    one, two = tuned.safetensors(tuned.tensors(2)), b"w" * SMALLEST
    made = office.thin(
        {PATH: one, "models/demo/other.bin": two},
        office.known({PATH: one}),
        office.known({"models/x": two}, version="v0"),
    )
    assert packed(made) == 0
    assert [base.title for base in made.bases] == ["demo v1", "demo v0"]


def test_small_files_and_strangers_travel(office: Office) -> None:
    files = {"config/a.json": b"x" * (SMALLEST - 1), "models/demo/odd.gguf": b"GGUF, but no more" * SMALLEST}
    made = office.thin({**files, "models/demo/odd.gguf": files["models/demo/odd.gguf"] + b"."}, office.known(files))
    assert made.bases == ()
    assert all(not member.segments for member in made.members)


def test_only_whole_files_when_asked(office: Office) -> None:
    old, new = tuned.safetensors(tuned.tensors(4)), tuned.safetensors(tuned.tensors(4, changed={1}))
    made = office.thin({PATH: new}, office.known({PATH: old}), skip={"tensors"})
    assert made.bases == ()


def test_hashes_are_remembered(office: Office) -> None:
    old, new = tuned.safetensors(tuned.tensors(4)), tuned.safetensors(tuned.tensors(4, changed={1}))
    known = office.known({PATH: old})
    first = office.thin({PATH: new}, known)
    for digest in office.content:
        (office.folder / digest).unlink()  # nothing to read any more
    member = first.members[0]
    again = thin(
        [Member(PATH, "model", len(new), member.sha256, member.content)],
        (),
        [known],
        TensorReader(office.cache, Silent()),
    )
    assert again.members[0].segments == member.segments


@settings(deadline=None)
@given(
    some.lists(some.integers(0, 5), min_size=1, max_size=12),
    some.lists(some.integers(0, 5), min_size=1, max_size=12),
    some.sampled_from([tuned.safetensors, tuned.gguf]),
)
def test_any_rearrangement_comes_out_whole(tmp_path_factory, old, new, form) -> None:  # type: ignore[no-untyped-def]
    """Tensors repeated, dropped, moved, of sizes below and above what is worth a segment."""
    office = Office(tmp_path_factory.mktemp("office"))
    suffix = ".gguf" if form is tuned.gguf else ".safetensors"
    pool = [tuned.tensors(1, size=size)["layer.000.weight"] for size in (2, 100, 4094, 4096, 70_000, 200_002)]

    def file(numbers: list[int]) -> bytes:
        return form({f"t{place}": pool[number] for place, number in enumerate(numbers)}, "n" * len(numbers) * 40)

    made = office.thin({f"models/m{suffix}": file(new)}, office.known({f"models/m{suffix}": file(old)}))
    assert office.rebuilt(made) == {f"models/m{suffix}": file(new)}


# --- layers -----------------------------------------------------------------------------------------------
def layer(name: str) -> Layer:
    digest = sha256(name.encode()).hexdigest()
    return Layer(f"sha256:{digest}", 10, f"sha256:{digest[::-1]}", "application/vnd.oci.image.layer.v1.tar+gzip")


def stack(names: str) -> tuple[str, ...]:
    return tuple(layer(name).diff_id for name in names)


@pytest.mark.parametrize(
    ("images", "base", "left_out"),
    [
        (["abc"], ["abd"], "ab"),
        (["abc"], ["bc"], ""),  # the same layers above others are other layers
        (["abc", "ax"], ["abc"], "abc"),
        (["abc", "xb"], ["abc"], "a"),  # b is needed above x, so c cannot be looked up without it either
        (["aba"], ["ab"], ""),  # a comes once more, above
        (["abc"], [], ""),
    ],
)
def test_layers_are_left_out_from_the_bottom(office: Office, images: list[str], base: list[str], left_out: str) -> None:
    layers = [[layer(name) for name in names] for names in images]
    blobs = {each.digest: each for image in layers for each in image}
    members = [Member(f"images/blobs/sha256/{d[7:]}", "image", 10, d[7:], b"0123456789") for d in blobs]
    known = office.known({}, stacks=tuple(stack(names) for names in base))
    made = thin(members, layers, [known], TensorReader(office.cache, Silent()))
    assert made.layers == {layer(name).digest for name in left_out}
    assert {member.sha256 for member in made.members} == {d[7:] for d in blobs.keys() - made.layers}
    kept = thin(members, layers, [known], TensorReader(office.cache, Silent()), skip={"images"})
    assert len(kept.members) == len(members)


# --- headers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", [tuned.safetensors, tuned.gguf])
def test_spans_reach_from_the_header_to_the_end(form) -> None:  # type: ignore[no-untyped-def]
    data = form(tuned.tensors(5, size=1002))
    name = "m.gguf" if form is tuned.gguf else "m.safetensors"
    found = tensors.spans(name, len(data), lambda offset, size: data[offset : offset + size])
    assert [span.name for span in found] == list(tuned.tensors(5))
    assert found[-1].offset + found[-1].size == len(data)
    hashed = list(tensors.hash_spans(found, [data[at : at + 777] for at in range(0, len(data), 777)]))
    assert hashed == [
        TensorFact(s.name, s.offset, s.size, sha256(data[s.offset : s.offset + s.size]).hexdigest()) for s in found
    ]


@given(some.binary(max_size=200), some.sampled_from([b"", b"GGUF\x03\0\0\0", b"\x10\0\0\0\0\0\0\0{"]))
def test_bytes_that_are_no_model_are_refused(rest: bytes, begin: bytes) -> None:
    data = begin + rest
    for name in ("a.gguf", "a.safetensors"):
        assert sum(span.size for span in spans(name, data)) <= len(data)


@given(some.integers(0, 600), some.binary(min_size=1, max_size=8))
def test_spoilt_headers_are_refused_or_harmless(place: int, bad: bytes) -> None:
    for name, form in (("a.gguf", tuned.gguf), ("a.safetensors", tuned.safetensors)):
        data = bytearray(form(tuned.tensors(3, size=64)))
        data[place : place + len(bad)] = bad
        assert all(span.offset >= 0 and span.offset + span.size <= len(data) for span in spans(name, bytes(data)))


def spans(name: str, data: bytes) -> tuple[tensors.Span, ...]:
    """None for a header that is refused, which only a ValueError says."""
    try:
        return tensors.spans(name, len(data), lambda offset, size: data[offset : offset + size])
    except ValueError:
        return ()
