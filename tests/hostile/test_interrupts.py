"""Ctrl-C, TERM and HUP at any time: something always answers, and nothing is left over."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parts.sites import release_bundle, site

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.timeout(300)
def test_a_dozen_times_at_random(tmp_path: Path) -> None:
    bundles = {v: release_bundle(tmp_path, v, sequence=1, memory=m) for v, m in (("v1", 1), ("v2", 1), ("v3", 0))}
    choose = random.Random(20)
    with site(tmp_path / "root") as made:
        assert made.install(bundles["v1"]).code == 0
        for turn in range(12):
            version, number = choose.choice(list(bundles)), choose.choice(_SIGNALS)
            words = ("--bundle", bundles[version], "--yes", "--port", made.port)
            process = made.begin(*words, *(("--reinstall",) if choose.random() < 0.6 else ()))
            time.sleep(choose.uniform(0.4, 2.2))
            for _ in range(choose.choice((1, 1, 3))):
                if process.poll() is None:
                    process.send_signal(number)
                    time.sleep(choose.uniform(0, 0.1))
            out, err = process.communicate(timeout=90)
            what = f"turn {turn}, {version}, {number.name}, exit code {process.returncode}\n{out}\n{err}"
            assert process.returncode in (0, 1, -number), what
            status = made.run("status")
            assert status.code == 0, f"{what}\n{status}"
            assert made.answer() == f"Paris, says {made.current()}", what
            assert made.leftovers() == [], what


def test_interrupted_while_it_starts(tmp_path: Path) -> None:
    """Before the site program has a handler of its own: no trace of Python's insides."""
    bundle = release_bundle(tmp_path, "v1")
    for delay in (0.02, 0.05, 0.1, 0.2):
        process = subprocess.Popen(
            [sys.executable, "-I", str(bundle / "onsite.pyz"), "--status", "--root", str(tmp_path / "root")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        if delay > 0.02:  # sooner, it is not this program's code that runs
            assert "Traceback" not in err, err


def test_a_hang_up_that_nohup_wants_ignored(tmp_path: Path) -> None:
    bundle = release_bundle(tmp_path, "v1")
    with site(tmp_path / "root") as made:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            process = made.begin("--bundle", bundle, "--yes", "--port", made.port, hold_at="")
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, out + err
        assert made.answer() == "Paris, says v1"
