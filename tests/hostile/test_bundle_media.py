"""install.sh where it will be started: odd paths and media, any shell, old Pythons or none, a hostile environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airbundle_onsite.contract import layout
from airbundle_onsite.errors import ExitCode
from parts import disks, need
from parts.bundles import make_bundle, snapshot
from parts.shells import SHELLS, bare_path, install_sh, shell

FILES = {"models/m/w.gguf": bytes(range(256)) * 64, "config/设置.json": b"{}"}
HOSTILE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "PYTHONHOME": "/nowhere",
    "PYTHONPATH": "/nowhere",
    "PYTHONSTARTUP": "/nowhere",
    "PYTHONIOENCODING": "ascii",
    "PYTHONWARNINGS": "error",
    "CDPATH": "/:/tmp",
    "LC_ALL": "C",
}


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / '移动 硬盘\'s "x" $HOME' / "demo-1", FILES, part_size=8192)


def fake_python(directory, version):
    """A program that behaves as an old Python does for what install.sh asks of it."""
    path = directory / f"python{version}"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *version_info*) printf {version};; *) echo Traceback >&2; exit 1;; esac\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("python", [sys.executable, "none"], ids=["python", "no python"])
def test_every_shell(bundle, name, python):
    before = snapshot(bundle)
    done = install_sh(bundle, "--verify", shell_name=name, python=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "payload.tar.001" in done.stdout
    assert snapshot(bundle) == before


@pytest.mark.parametrize("name", SHELLS)
def test_crlf(bundle, name):
    script = bundle / layout.INSTALLER
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    before = snapshot(bundle)
    for words in ((), ("--verify",), ("--help",)):
        done = install_sh(bundle, *words, shell_name=name)
        assert done.returncode == ExitCode.INTEGRITY
        assert done.stdout == ""
        first, cure = done.stderr.splitlines()
        assert first.startswith("install.sh: found lines ending in CR LF, needed LF")
        assert "What to do: copy the whole bundle again, in binary mode" in cure
    assert snapshot(bundle) == before


def test_crlf_in_the_checksums(bundle):
    sums = bundle / layout.CHECKSUMS
    sums.write_bytes(sums.read_bytes().replace(b"\n", b"\r\n"))
    for python in (sys.executable, "none"):
        done = install_sh(bundle, "--verify", python=python)
        assert done.returncode == ExitCode.INTEGRITY
        assert "SHA256SUMS: a line is not a SHA-256 and a plain file name" in done.stdout


@pytest.mark.parametrize("name", SHELLS)
def test_from_any_directory_and_by_any_name(bundle, name, tmp_path):
    for cwd, script in (
        (bundle, "install.sh"),
        (bundle, "./install.sh"),
        (bundle.parent, "demo-1/install.sh"),
        (Path("/"), str(bundle / "install.sh")),
    ):
        done = install_sh(bundle, "--verify", shell_name=name, cwd=cwd, script=script, env={**os.environ, **HOSTILE})
        assert done.returncode == 0, done.stdout + done.stderr


def test_modules_in_the_current_directory_are_not_imported(bundle, tmp_path):
    for module in ("json", "hashlib", "argparse", "airbundle_onsite", "sitecustomize", "usercustomize", "site"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(99)\n")
    done = install_sh(bundle, "--verify", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr


def test_read_from_standard_input(bundle):
    done = subprocess.run(
        ["bash", "-s", "--", "--verify"],
        stdin=(bundle / "install.sh").open("rb"),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ExitCode.USAGE
    assert "cannot tell where the bundle is" in done.stderr


@pytest.mark.parametrize("python", [sys.executable, "none"], ids=["python", "no python"])
def test_read_only_and_noexec_media(bundle, python):
    for path in bundle.iterdir():
        path.chmod(0o444)
    before = snapshot(bundle)
    with disks.read_only_noexec(bundle) as media:
        done = install_sh(media, "--verify", python=python, umask=0o077, env={**os.environ, **HOSTILE})
    assert done.returncode == 0, done.stdout + done.stderr
    assert snapshot(bundle) == before


def test_a_device_that_fails_to_read(bundle):
    """A part on which every read fails with EIO: this process's own memory stands in for a worn-out stick."""
    need.need("ext4")
    part = bundle / "payload.tar.001"
    subprocess.run(["mount", "--bind", f"/proc/{os.getpid()}/mem", str(part)], check=True)
    try:
        done = install_sh(bundle, "--verify")
        alone = install_sh(bundle, "--verify", python="none")
    finally:
        subprocess.run(["umount", str(part)], check=True)
    assert done.returncode == ExitCode.INTEGRITY
    assert (
        "payload.tar.001, piece 1 of 1 (bytes 0 to 8191): reading it failed at byte 0: Input/output error"
        in done.stdout
    )
    assert done.stdout.count("pieces are whole") == 2
    assert alone.returncode == ExitCode.INTEGRITY
    assert "payload.tar.001: it cannot be read" in alone.stdout


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.8.18"])
def test_an_old_python_gets_a_sentence(bundle, tmp_path, version):
    old = fake_python(tmp_path, version)
    done = install_sh(bundle, "--status", python=old)
    assert done.returncode == ExitCode.PREFLIGHT
    assert f"needed Python 3.9 or newer, found: {old} is {version}." in done.stderr
    assert "What to do: install Python 3.9 or newer" in done.stderr
    assert "Traceback" not in done.stderr
    assert install_sh(bundle, "--verify", python=old).returncode == 0


def test_no_python_at_all(bundle, tmp_path):
    path = bare_path(tmp_path / "tools")
    old = fake_python(tmp_path / "tools", "3.6.15")
    Path(old).rename(tmp_path / "tools" / "python3")
    env = {"PATH": path, "HOME": "/nowhere"}
    done = install_sh(bundle, python=None, env=env)
    assert done.returncode == ExitCode.PREFLIGHT
    assert f"found on this host: {path}/python3 is 3.6.15" in done.stderr
    (tmp_path / "tools" / "python3").unlink()
    done = install_sh(bundle, python=None, env=env)
    assert done.returncode == ExitCode.PREFLIGHT
    assert "found on this host: none." in done.stderr
    done = install_sh(bundle, "--verify", python=None, env=env)
    assert done.returncode == 0
    assert "Not checked: what bundle.json says, its signature, and whether this host fits." in done.stdout
    assert install_sh(bundle, "--help", python=None, env=env).returncode == 0


def test_a_python_without_its_library(bundle, tmp_path):
    thin = tmp_path / "python3"
    thin.write_text('#!/bin/sh\ncase "$*" in *version_info*) printf 3.11.2;; *) exit 1;; esac\n')
    thin.chmod(0o755)
    done = install_sh(bundle, "--status", python=str(thin))
    assert done.returncode == ExitCode.PREFLIGHT
    assert "is 3.11.2, but lacks modules of the standard library" in done.stderr


def test_no_tool_to_hash_with(bundle, tmp_path):
    tools = Path(bare_path(tmp_path / "tools"))
    for tool in ("sha256sum", "busybox"):
        (tools / tool).unlink(missing_ok=True)
    done = install_sh(bundle, "--verify", python="none", env={"PATH": str(tools)})
    assert done.returncode == ExitCode.PREFLIGHT
    assert "needed sha256sum (or shasum, openssl, busybox), found none" in done.stderr
    done = install_sh(bundle, "--verify", env={"PATH": str(tools)})  # the site program needs none of them
    assert done.returncode == 0, done.stdout + done.stderr


def test_shell_and_program_agree_on_debris(bundle):
    """install.sh carries a list of its own; it must say the same as the site program's."""
    names = ["._x", ".DS_Store", ".ds_store", ".Trash-1000", ".Trashes", ".Spotlight-V100", ".fseventsd", "lost+found"]
    names += ["System Volume Information", "$RECYCLE.BIN", "THUMBS.DB", "Desktop.ini", "FSCK0001.REC", "fsck9999.rec"]
    names += ["x._", ".hidden", "FSCK1.REC", "FSCK00001.REC", "thumbs.db2", "RECYCLE.BIN", "lost+found2", "DS_Store"]
    text = (bundle / layout.INSTALLER).read_text()
    function = text[text.index("is_debris() {") :]
    function = function[: function.index("\n}\n") + 3]
    script = function + 'for name in "$@"; do if is_debris "$name"; then echo yes; else echo no; fi; done\n'
    done = subprocess.run([*shell("dash"), "-c", script, "sh", *names], capture_output=True, text=True, timeout=60)
    said = dict(zip(names, done.stdout.split(), strict=True))
    assert said == {name: "yes" if layout.is_debris(name) else "no" for name in names}
