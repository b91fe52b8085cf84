"""What a person meets first: install.sh passes shellcheck, the READMEs say true things, onsite.pyz is reproducible."""

import ast
import io
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from airbundle.outer import onsite_pyz, render_outer
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.artifacts import ImageEntry, ModelEntry, WheelEntry
from airbundle_onsite.contract.payload import FileEntry, Part, Payload
from airbundle_onsite.verify.bundle import trust
from parts import need
from parts.bundles import EPOCH, make_bundle

ZERO = "0" * 64


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    return trust(
        make_bundle(tmp_path_factory.mktemp("outer") / "b", {"models/m/w.gguf": b"w", "wheels/x.whl": b"x"})
    ).manifest


def payload(*sizes):
    parts = tuple(
        Part(layout.part_name(index), size, ZERO, (ZERO,) * -(-size // layout.PIECE_SIZE))
        for index, size in enumerate(sizes)
    )
    return Payload(sum(sizes), parts)


def variants(draft):
    image = ImageEntry("demo/engine:1.0", f"sha256:{ZERO}", f"sha256:{ZERO}", f"sha256:{ZERO}", "linux/amd64", (), 1)
    model = ModelEntry("m", "gguf", "hf:org/m", "abc", ("models/m/w.gguf",), 1, "w.gguf", "apache-2.0")
    archive = FileEntry("images/manifest.json", "image", 0, ZERO)
    wheel = WheelEntry("x", "1", "wheels/x.whl", ZERO)
    return {
        "bare": draft,
        "docker": replace(draft, images=(image,), models=(model,), needs=replace(draft.needs, runtime="docker")),
        "docker archive": replace(draft, images=(image,), files=(archive,)),
        "wheels": replace(draft, wheels=(wheel,), models=(model, model)),
        "many parts": replace(draft, payload=payload(*[4_000_000_000] * 3, 5)),
        "one huge part": replace(draft, payload=payload(5_000_000_000)),
        "thousands": replace(draft, payload=payload(*[1] * 1001)),
    }


CASES = ["bare", "docker", "docker archive", "wheels", "many parts", "one huge part", "thousands"]


@pytest.mark.real("shellcheck")
@pytest.mark.parametrize("case", CASES)
def test_shellcheck(draft, tmp_path, case):
    path = tmp_path / "install.sh"
    path.write_bytes(render_outer(variants(draft)[case])[layout.INSTALLER])
    done = subprocess.run([need.program("shellcheck"), str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", CASES)
def test_readmes(draft, case):
    manifest = variants(draft)[case]
    files = render_outer(manifest)
    assert sorted(files) == sorted([layout.INSTALLER, layout.README, layout.README_ZH])
    for name in (layout.README, layout.README_ZH):
        text = files[name].decode()
        assert text.startswith("demo 1\n======\n")
        assert "bash install.sh --verify" in text
        assert "{{" not in text and "{%" not in text and "\r" not in text
        assert ("skopeo copy oci:/srv/demo/images:1.0 docker-daemon:demo/engine:1.0" in text) == (case == "docker")
        assert ("images -cf - . | docker load" in text) == (case == "docker archive")
        assert ("pip install --no-index" in text) == bool(manifest.wheels)
        assert ("--part-size 4GB" in text) == (case == "one huge part")
        assert ("sort -t . -k 3 -n" in text) == (case == "thousands")


def test_the_readme_works_by_hand(tmp_path):
    """The commands of the README's last section, on a real bundle, with nothing but a shell."""
    files = {"models/m/w.gguf": bytes(range(256)) * 99, "config/设置.json": b"{}"}
    bundle = make_bundle(tmp_path / "demo", files, part_size=5000)
    text = (bundle / layout.README).read_text()
    commands = [
        line.strip() for line in text.splitlines() if line.startswith(("    sha256sum", "    mkdir", "    cat "))
    ]
    assert len(commands) == 3
    target = tmp_path / "srv"
    script = "set -e\n" + "\n".join(commands).replace("/srv/demo", str(target))
    done = subprocess.run(["sh", "-c", script], cwd=bundle, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == files


def test_onsite_pyz_is_reproducible():
    data = onsite_pyz(EPOCH)
    assert data == onsite_pyz(EPOCH)
    assert data != onsite_pyz(EPOCH + 86400)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        assert names == ["__main__.py", *sorted(names[1:])]
        assert "airbundle_onsite/cli.py" in names
        assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}
        assert {info.date_time[:3] for info in archive.infolist()} == {(2023, 11, 14)}


def test_a_time_before_zip_files():
    with zipfile.ZipFile(io.BytesIO(onsite_pyz(0))) as archive:
        assert archive.infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)


def test_onsite_pyz_runs_alone(tmp_path):
    path = tmp_path / "onsite.pyz"
    path.write_bytes(onsite_pyz(EPOCH))
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "--verify" in done.stdout
    assert [item.name for item in tmp_path.iterdir()] == ["onsite.pyz"]


def test_its_first_file_can_be_read_by_old_pythons(tmp_path):
    with zipfile.ZipFile(io.BytesIO(onsite_pyz(EPOCH))) as archive:
        source = archive.read("__main__.py").decode("ascii")
    ast.parse(source, feature_version=(3, 4))
    assert "from __future__" not in source and "print" not in source


def interpreters():
    """Every Python of this machine, whatever its age; behind a version manager's shims, the real ones."""
    found = {Path(sys.executable)}
    for program in ("python2.7", "python3.6", "python3.7", "python3.8", "python3.9", "python3.13"):
        path = Path(shutil.which(program) or sys.executable)
        if path.parent.name == "shims":
            found.update(path.parent.parent.glob(f"versions/{program.removeprefix('python')}.*/bin/python"))
        else:
            found.add(path)
    return sorted(found)


def test_every_python_here_runs_it_or_says_why_not(tmp_path):
    path = tmp_path / "onsite.pyz"
    path.write_bytes(onsite_pyz(EPOCH))
    for python in interpreters():
        version = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, timeout=60).stdout.strip()
        done = subprocess.run([python, str(path), "--help"], capture_output=True, text=True, timeout=60)
        if tuple(map(int, version.split("."))) >= (3, 9):
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 3
            assert done.stderr.startswith(f"onsite.pyz: needed Python 3.9 or newer, found {version} (")
            assert "Traceback" not in done.stderr


_VERSION = "import sys; sys.stdout.write('%d.%d.%d' % sys.version_info[:3])"
