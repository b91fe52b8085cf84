"""Who may bring a bundle to a site: the first key, another key, no signature, an older bundle, keys that change."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airbundle_onsite.cli import main
from airbundle_onsite.contract import layout
from airbundle_onsite.deploy import world
from airbundle_onsite.deploy.signers import Signers, TrustOptions
from airbundle_onsite.errors import TrustError, UsageError
from parts import keys
from parts.keys import Key, sign, signed
from parts.sites import Site, release_bundle, site


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return keys.make_key(tmp_path_factory.mktemp("keys"), "alice")


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return keys.make_key(tmp_path_factory.mktemp("keys"), "mallory")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {version: release_bundle(folder, version) for version in ("v1", "v2", "v3")}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path / "root") as made:
        yield made


def _pinned(where: Site) -> str:
    path = where.root / "allowed_signers"
    return path.read_text() if path.exists() else ""


def _stage(where: Site, bundle: Path, *words: object) -> tuple[int, str]:
    done = where.run("--stage", "--bundle", bundle, "--yes", *words)
    return done.code, done.err


class Terminal(io.StringIO):
    """Somebody who types these lines."""

    def isatty(self) -> bool:
        return True


def _at_a_terminal(where: Site, bundle: Path, typed: str, *words: object) -> tuple[int, str]:
    err = io.StringIO()
    argv = ["--stage", "--bundle", bundle, "--root", where.root, *words]
    code = main([str(word) for word in argv], stdout=io.StringIO(), stderr=err, stdin=Terminal(typed))
    return code, err.getvalue()


def test_the_first_key_is_shown_and_asked_about(
    here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path
) -> None:
    bundle = signed(bundles["v1"], tmp_path, alice)
    code, said = _at_a_terminal(here, bundle, "n\n")
    assert code == 6 and alice.fingerprint in said and "was not accepted" in said
    assert not here.root.exists(), "a refusal leaves nothing behind"

    code, said = _at_a_terminal(here, bundle, "y\nn\n")
    assert code == 1 and "not confirmed" in said
    assert _pinned(here) == "", "whoever does not install accepts nobody"

    code, said = _at_a_terminal(here, bundle, "y\ny\n")
    assert code == 0, said
    assert said.index(alice.fingerprint) < said.index("from now on?") < said.index("Install demo v1")
    assert alice.line.split()[-1] in _pinned(here)


def test_yes_does_not_accept_a_key(
    here: Site, bundles: dict[str, Path], alice: Key, mallory: Key, tmp_path: Path
) -> None:
    bundle = signed(bundles["v1"], tmp_path, alice)
    code, said = _stage(here, bundle)
    assert code == 6 and f"add --accept-signer {alice.fingerprint}" in said, said
    code, said = _stage(here, bundle, "--accept-signer", mallory.fingerprint)
    assert code == 6 and alice.fingerprint in said and mallory.fingerprint in said, said
    assert not here.root.exists()
    code, said = _stage(here, bundle, "--accept-signer", alice.fingerprint)
    assert code == 0 and alice.line.split()[-1] in _pinned(here), said


def test_without_a_terminal_it_says_what_to_add(
    here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path
) -> None:
    done = here.run("--stage", "--bundle", signed(bundles["v1"], tmp_path, alice))
    assert done.code == 6 and f"--accept-signer {alice.fingerprint}" in done.err, done


def test_looking_pins_nobody(here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path) -> None:
    bundle = signed(bundles["v1"], tmp_path, alice)
    for word in ("--verify", "--preflight", "--dry-run"):
        done = here.run(word, "--bundle", bundle)
        assert done.code == 0, done
    assert (
        f"signed by {alice.fingerprint}, a key this site has not pinned" in here.run("--verify", "--bundle", bundle).out
    )
    assert not here.root.exists()


def test_another_signer(here: Site, bundles: dict[str, Path], alice: Key, mallory: Key, tmp_path: Path) -> None:
    here.root.mkdir()
    (here.root / "allowed_signers").write_text(alice.line)
    bundle = signed(bundles["v1"], tmp_path, mallory)
    for words in (("--stage", "--yes"), ("--verify",), ("--preflight",), ("--dry-run",)):
        done = here.run(*words, "--bundle", bundle)
        assert done.code == 6, done
        assert mallory.fingerprint in done.out + done.err and f"alice {alice.fingerprint}" in done.out + done.err, done
    assert [path.name for path in here.root.iterdir()] == ["allowed_signers"]
    assert _stage(here, bundle, "--replace-signer", alice.fingerprint)[0] == 6
    code, said = _stage(here, bundle, "--replace-signer", mallory.fingerprint)
    assert code == 0, said
    assert mallory.line.split()[-1] in _pinned(here) and alice.line.split()[-1] not in _pinned(here)
    assert _stage(here, signed(bundles["v2"], tmp_path, alice))[0] == 6, "the old key is revoked"


def test_a_new_key_beside_the_old_one(
    here: Site, bundles: dict[str, Path], alice: Key, mallory: Key, tmp_path: Path
) -> None:
    here.root.mkdir()
    (here.root / "allowed_signers").write_text(f"# ours\n{alice.line}")
    both = signed(bundles["v1"], tmp_path, mallory, alice)
    code, said = _stage(here, both)
    assert code == 0 and f"signed by alice {alice.fingerprint}" in said, "one allowed signature is enough"
    assert mallory.line.split()[-1] not in _pinned(here), "and it lets nobody else in"
    shown = here.run("--verify", "--bundle", both).out
    assert f"also signed by {mallory.fingerprint}" in shown

    code, said = _stage(here, both, "--accept-signer", mallory.fingerprint)
    assert code == 0, said
    assert _pinned(here).startswith(f"# ours\n{alice.line}") and mallory.line.split()[-1] in _pinned(here)
    for version, key in (("v2", mallory), ("v3", alice)):
        code, said = _stage(here, signed(bundles[version], tmp_path, key))
        assert code == 0 and key.fingerprint in said, said


def test_a_missing_signature(here: Site, bundles: dict[str, Path], alice: Key) -> None:
    here.root.mkdir()
    (here.root / "allowed_signers").write_text(alice.line)
    code, said = _stage(here, bundles["v1"])
    assert code == 6 and alice.fingerprint in said and "bundle.json.sig: it is missing" in said, said
    code, said = _stage(here, bundles["v1"], "--allow-unsigned")
    assert code == 0 and _pinned(here) == alice.line, said


def test_allow_unsigned_excuses_no_bad_signature(
    here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path
) -> None:
    here.root.mkdir()
    (here.root / "allowed_signers").write_text(alice.line)
    bundle = signed(bundles["v1"], tmp_path, alice)
    (bundle / layout.SIGNATURE).write_bytes((signed(bundles["v2"], tmp_path, alice) / layout.SIGNATURE).read_bytes())
    code, said = _stage(here, bundle, "--allow-unsigned")
    assert code == 6 and "not over these bytes" in said, said


def test_an_older_bundle_of_the_right_signer(here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path) -> None:
    new, old = (signed(bundles[version], tmp_path, alice) for version in ("v2", "v1"))
    assert _stage(here, new, "--accept-signer", alice.fingerprint)[0] == 0
    code, said = _stage(here, old)
    assert code == 6 and "sequence 1" in said and "sequence 2" in said, said
    shown = here.run("--verify", "--bundle", old)
    assert shown.code == 0 and "sequence 2 was installed here" in shown.out, shown
    assert here.run("--uninstall", "v2", "--yes").code == 0
    code, said = _stage(here, old, "--allow-older")
    assert code == 0, said


def test_a_file_of_signers_given_by_hand_stays(
    here: Site, bundles: dict[str, Path], alice: Key, mallory: Key, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.write_text(f"# from the office\n{alice.line}")
    code, said = _stage(here, signed(bundles["v1"], tmp_path, alice), "--allowed-signers", given)
    assert code == 0 and _pinned(here) == given.read_text(), said
    assert _stage(here, signed(bundles["v2"], tmp_path, mallory))[0] == 6


def _site(where: Site) -> world.Site:
    return world.Site(where.root, world.real_world(dict(os.environ)))


def test_the_machines_own_file_decides(
    here: Site, bundles: dict[str, Path], alice: Key, mallory: Key, tmp_path: Path
) -> None:
    here.root.mkdir()
    (here.root / "allowed_signers").write_text(mallory.line)
    machine = tmp_path / "machine"
    machine.write_text(alice.line)
    by_alice, by_mallory = (signed(bundles[v], tmp_path, key) for v, key in (("v1", alice), ("v2", mallory)))
    assert Signers(_site(here), TrustOptions(), machine).trust(by_alice).signer == f"alice {alice.fingerprint}"
    with pytest.raises(TrustError):
        Signers(_site(here), TrustOptions(), machine).trust(by_mallory)
    with pytest.raises(UsageError, match="machine"):
        Signers(_site(here), TrustOptions(replace=(mallory.fingerprint,)), machine)


@pytest.mark.parametrize("kind", ["directory", "link to nothing"])
def test_a_pinned_file_that_cannot_be_read_pins_all_the_same(here: Site, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "machine"
    path.mkdir() if kind == "directory" else path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TrustError, match="cannot be read"):
        Signers(_site(here), TrustOptions(), path)


def test_an_empty_file_of_signers_lets_nobody_in(
    here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path
) -> None:
    here.root.mkdir()
    (here.root / "allowed_signers").write_text("# nobody\n")
    assert _stage(here, signed(bundles["v1"], tmp_path, alice))[0] == 6
    assert _stage(here, bundles["v1"])[0] == 6


@pytest.mark.parametrize("word", ["SHA256:abc", "alice", "", "MD5:00:11"])
def test_what_is_no_fingerprint(here: Site, bundles: dict[str, Path], word: str) -> None:
    code, said = _stage(here, bundles["v1"], "--accept-signer", word)
    assert code == 2 and "no fingerprint" in said, said


def test_a_signature_file_that_is_none(here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path) -> None:
    bundle = signed(bundles["v1"], tmp_path, alice)
    path = bundle / layout.SIGNATURE
    good = path.read_bytes()
    for content in (b"", b"\0" * 100, good[:-9], good + b"x", good * 17, bytes(70_000)):
        path.write_bytes(content)
        code, said = _stage(here, bundle, "--accept-signer", alice.fingerprint)
        assert code == 6, (content[:60], said)
    path.write_bytes(good * 2 + b"\n")
    assert _stage(here, bundle, "--accept-signer", alice.fingerprint)[0] == 0


def test_what_is_stored_is_what_was_checked(here: Site, bundles: dict[str, Path], alice: Key, tmp_path: Path) -> None:
    bundle = signed(bundles["v1"], tmp_path, alice)
    assert _stage(here, bundle, "--accept-signer", alice.fingerprint)[0] == 0
    release = here.root / "releases/demo/v1"
    for name in (layout.MANIFEST, layout.SIGNATURE):
        assert (release / name).read_bytes() == (bundle / name).read_bytes()
    sign(bundle)
