"""What compression of weights gains and costs, on values as weights have them, in the formats that models come in.

    for row in compress_rows(work, size=256 * MIB): ...

The values are random and normal, with the deviation of a usual layer. Trained weights are spread wider and keep a
little more: of one small speech model (1.2 MB of fp32, also rounded to the others) 0.69, 0.87 and 0.85 were left as
bf16, fp16 and fp32, where these values leave 0.67, 0.84 and 0.83. Weights of a large language model were not at hand.
Rates are of what goes in, or comes out, uncompressed.
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import math
import random
import shutil
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airbundle.assemble import Member, plan_payload, write_payload
from airbundle.cache import Cache
from airbundle.compress.members import compress_members
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.manifest import decode_manifest, features_of
from airbundle_onsite.store.disk import write_new
from airbundle_onsite.store.rebuild import rebuilt
from airbundle_onsite.system import Silent
from airbundle_onsite.verify.bundle import TrustedManifest, trust
from airbundle_onsite.verify.stream import PayloadReader
from parts.bundles import make_bundle, seal

MIB = 1024**2
ROUNDS = 3
_VALUES = 1 << 20
_DEVIATION = 0.02
_MODE = 0o644
_FP8_MOST = 448.0  # of E4M3


@dataclass(frozen=True)
class CompressRow:
    """One format.

    Attributes:
        name: of the format.
        bytes_in, bytes_out: of a file of weights, and of what travels of it.
        ratio: `bytes_out` to `bytes_in`.
        encode: MB/s from the file to its compressed form in the cache, proven to come back, on all cores.
        decode: MB/s from memory to memory, as the site does it: with the SHA-256 of what comes out, on all cores; None
            for weights that were left as they are.
        install: MB/s from the part to the file: each piece hashed, decoded, hashed, and written.
    """

    name: str
    bytes_in: int
    bytes_out: int
    ratio: float
    encode: float
    decode: float | None
    install: float


def compress_rows(
    work: Path, *, size: int = 256 * MIB, tell: Callable[[CompressRow], None] = lambda _: None
) -> list[CompressRow]:
    """A row for each format.

    Args:
        work: a directory for about four times `size`; what is made there is removed.
        size: bytes of the file of weights.
        tell: shown each row as it is found.
    """
    rows = []
    for name, data in samples().items():
        folder = work / "compress"
        folder.mkdir(parents=True)
        try:
            row = _row(name, data, folder, size)
        finally:
            shutil.rmtree(folder)
        rows.append(row)
        tell(row)
    return rows


def samples() -> Mapping[str, bytes]:
    """Some millions of bytes of weights in each format."""
    source = random.Random(20)
    values = array.array("f", (source.gauss(0, _DEVIATION) for _ in range(_VALUES)))
    raw = values.tobytes()
    bf16 = bytearray(2 * _VALUES)
    bf16[0::2], bf16[1::2] = raw[2::4], raw[3::4]
    widened = bytearray(4 * _VALUES)
    widened[2::4], widened[3::4] = raw[2::4], raw[3::4]
    scale = _FP8_MOST / max(map(abs, values))
    return {
        "bf16": bytes(bf16),
        "fp16": struct.pack(f"<{_VALUES}e", *values),
        "fp8 (E4M3)": bytes(_fp8(value * scale) for value in values),
        "fp32": raw,
        "fp32, widened from bf16": bytes(widened),
        "4 bits (nothing to gain)": source.randbytes(2 * _VALUES),
    }


def _fp8(value: float) -> int:
    """The E4M3 number that is nearest."""
    sign, size = (0x80 if value < 0 else 0), abs(value)
    exponent = max(math.frexp(size)[1] - 1, -6)  # of the power of two at or below it
    steps = round(math.ldexp(size, 3 - exponent))  # eighths of 2**exponent; below 8 for subnormal numbers
    return sign | min((exponent + 6) * 8 + steps, 0x7E)


def _row(name: str, data: bytes, folder: Path, size: int) -> CompressRow:
    path, count = folder / "model.safetensors", max(size // len(data), 1)
    hasher = hashlib.sha256()
    with path.open("wb") as handle:
        for _ in range(count):
            handle.write(data)
            hasher.update(data)
    size = count * len(data)
    member = Member("models/m/model.safetensors", "model", size, hasher.hexdigest(), path)
    caches = iter(range(ROUNDS))
    encode = _best(lambda: compress_members([member], Cache(folder / f"cache{next(caches)}"), Silent()))
    made = compress_members([member], Cache(folder / f"cache{ROUNDS - 1}"), Silent())
    for number in range(ROUNDS - 1):
        shutil.rmtree(folder / f"cache{number}")
    bundle = _bundle(folder / "bundle", made.members)
    decode = _decode(bundle)
    install = _best(lambda: _install(bundle, folder / "out"))
    packed = bundle.manifest.files[0].packed
    rates = size / encode / 1e6, size / decode / 1e6 if decode else None, size / install / 1e6
    return CompressRow(name, size, packed, packed / size, *rates)


def _bundle(folder: Path, members: Sequence[Member]) -> TrustedManifest:
    """A bundle of these, trusted."""
    make_bundle(folder, {})
    manifest = decode_manifest((folder / layout.MANIFEST).read_bytes())
    plan = plan_payload(members, 0)
    payload, files = write_payload(plan, folder, part_size=0), plan.entries()
    seal(folder, dataclasses.replace(manifest, payload=payload, files=files, features=features_of(files)))
    return trust(folder)


def _decode(bundle: TrustedManifest) -> float | None:
    """Seconds from memory to memory; None when nothing is compressed."""
    (entry,) = bundle.manifest.files
    if entry.is_plain:
        return None
    chunks = [chunk for _, content in PayloadReader(bundle, Silent()).files() for chunk in content]
    return _best(lambda: sum(map(len, rebuilt(entry, chunks, {}))))


def _install(bundle: TrustedManifest, target: Path) -> None:
    """Every file of the bundle, as an installation writes it."""
    for entry, chunks in PayloadReader(bundle, Silent()).files():
        target.unlink(missing_ok=True)
        write_new(target, chunks if entry.is_plain else rebuilt(entry, chunks, {}), _MODE)


def _best(action: Callable[[], object]) -> float:
    """Seconds of the quickest of three rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        action()
        found.append(time.monotonic() - began)
    return min(found)
