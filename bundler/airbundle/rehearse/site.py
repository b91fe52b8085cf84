"""The site's half of a rehearsal: the bundle's own install.sh and airbundlectl, step by step."""

from __future__ import annotations

import json
import re
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airbundle.rehearse.notebook import Recorder
from airbundle.rehearse.report import Step
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.launch import LogPattern
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.contract.record import decode, record
from airbundle_onsite.errors import ContractError, ExitCode
from airbundle_onsite.system import Completed, Runner
from airbundle_onsite.verify.bundle import trust

_LONG, _SHORT = 6 * 3600, 900  # seconds; what loads has its own, shorter limits inside the installer
_TAIL = 30  # lines of a failed command kept
_TROUBLE = re.compile(
    r"temporary failure in name resolution|name or service not known|could not resolve host|getaddrinfo failed"
    r"|network is unreachable|max retries exceeded|LocalEntryNotFoundError|OfflineModeIsEnabled",
    re.IGNORECASE,
)


@record
class Place:
    """Where the site's half runs.

    Attributes:
        bundle: its directory.
        root: installation root, not there yet.
        scratch: an empty directory for files in between.
        port: of the service.
        watch: seconds to wait for late attempts while the engine is idle.
        environment: all variables that the commands get.
    """

    bundle: Path
    root: Path
    scratch: Path
    port: int
    watch: float
    environment: Mapping[str, str]


class SiteHalf:
    """Runs the steps.

    Args:
        place: where.
        manifest: of the bundle.
        runner: for the commands.
        recorder: gets the steps.
        instead: called when this machine cannot run the bundle: does what can be done without starting it.
    """

    def __init__(
        self,
        place: Place,
        manifest: BundleManifest,
        runner: Runner,
        recorder: Recorder,
        instead: Callable[[], None],
    ) -> None:
        self._place, self._manifest, self._runner = place, manifest, runner
        self._recorder, self._instead = recorder, instead

    def run(self) -> None:
        """Every step in order; those that no longer make sense after a failure are left out."""
        if not self._verify():
            return
        refused = self._preflight()
        if refused:
            self._recorder.left_out(f"start and generation, because of this machine: {'; '.join(refused)}")
            self._instead()
            return
        if self._step(
            "install", "install, start and prove it", self._install("--yes", *self._accepting()), _LONG, _sentence
        ):
            self._step("generate", "one generation for each smoke test", self._control("--smoke"), _SHORT, _checked)
            self._step("status", "status", self._control("--status"), _SHORT, _status)
            self._idle()
            self._log()
        if (self._place.root / "bin" / "airbundlectl").exists():
            self._step("uninstall", "uninstall", self._control("--uninstall", "--yes"), _SHORT, _sentence)

    # --- commands -----------------------------------------------------------------------------------------

    def _install(self, *words: str) -> list[str]:
        place = self._place
        script = str(place.bundle / layout.INSTALLER)
        return ["bash", script, *words, "--json", "--root", str(place.root), "--port", str(place.port)]

    def _accepting(self) -> list[str]:
        """Words that make a site accept whoever signed the bundle, which the site half does not do unasked."""
        signers = trust(self._place.bundle).signers
        return [word for each in signers for word in ("--accept-signer", each.fingerprint)]

    def _control(self, *words: str) -> list[str]:
        return [str(self._place.root / "bin" / "airbundlectl"), *words, "--json"]

    def _execute(self, argv: Sequence[str], timeout: float) -> tuple[Completed, float]:
        began = time.monotonic()
        place = self._place
        done = self._runner.run(argv, timeout=timeout, env=place.environment, cwd=place.scratch)
        return done, round(time.monotonic() - began, 3)

    def _shown(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command without directories of this machine, so that reports can be compared."""
        places = {str(self._place.root): "ROOT", str(self._place.bundle): "BUNDLE", str(self._place.scratch): "."}
        words = list(argv)
        for path, name in places.items():
            words = [word.replace(path, name) for word in words]
        return tuple(words)

    def _step(
        self, step: str, words: str, argv: Sequence[str], timeout: float, judge: Callable[[Any], tuple[str, Checks]]
    ) -> bool:
        self._recorder.begin(step, words)
        done, seconds = self._execute(argv, timeout)
        found = _json(done.stdout)
        summary, checks = judge(found) if done.code == 0 else _failure(found, done)
        failed = done.code != 0 or any(check.status == "fail" for check in checks)
        made = Step(
            id=step,
            status="fail" if failed else _worst(checks),
            summary=summary,
            seconds=seconds,
            command=self._shown(argv),
            exit_code=done.code,
            checks=checks,
            evidence=_evidence(found, done) if failed else (),
        )
        self._recorder.done(made)
        return not failed

    # --- steps --------------------------------------------------------------------------------------------

    def _verify(self) -> bool:
        """Every byte. That this machine may not be like the target is the next step's business."""
        self._recorder.begin("verify", "verify every byte")
        argv = self._install("--verify")
        done, seconds = self._execute(argv, _LONG)
        found = _json(done.stdout)
        checks = tuple(check for check in _checks(found) if not check.id.startswith("match."))
        whole = done.code in (ExitCode.OK, ExitCode.PREFLIGHT) and bool(checks)
        failed = not whole or any(check.status == "fail" for check in checks)
        summary = f"{len(checks)} checks of its bytes" if not failed else _failure(found, done)[0]
        self._recorder.done(
            Step(
                id="verify",
                status="fail" if failed else _worst(checks),
                summary=summary,
                seconds=seconds,
                command=self._shown(argv),
                exit_code=done.code if failed else 0,
                checks=checks,
                evidence=_evidence(found, done) if failed else (),
            )
        )
        return not failed

    def _preflight(self) -> list[str]:
        """Why this machine cannot take the bundle; nothing when it can."""
        self._recorder.begin("preflight", "can this machine run it?")
        argv = self._install("--preflight")
        done, seconds = self._execute(argv, _SHORT)
        found = _json(done.stdout)
        checks = _checks(found)
        refused = [_needed(check) for check in checks if check.status == "fail"]
        if done.code != 0 and not refused:
            refused = [_failure(found, done)[0]]
        summary = "this machine can run it" if not refused else "this machine cannot run it"
        status: Status = "skip" if refused else _worst(checks)
        shown = self._shown(argv)
        self._recorder.done(Step("preflight", status, summary, seconds, shown, exit_code=done.code, checks=checks))
        return refused

    def _idle(self) -> None:
        self._recorder.begin("idle", f"listen for {self._place.watch:g} s")
        time.sleep(self._place.watch)
        self._recorder.done(Step("idle", "pass", f"listened for {self._place.watch:g} s", self._place.watch))

    def _log(self) -> None:
        self._recorder.begin("log", "read the engine's log")
        target = self._place.scratch / "support.tar.gz"
        argv = self._control("--support-bundle", str(target))
        done, seconds = self._execute(argv, _SHORT)
        shown = self._shown(argv)
        if done.code != 0:
            found = _json(done.stdout)
            summary, _ = _failure(found, done)
            self._recorder.done(
                Step("log", "fail", summary, seconds, shown, done.code, evidence=_evidence(found, done))
            )
            return
        log = engine_log(target, self._manifest)
        checks = scan(log, [pattern for plan in self._manifest.launch for pattern in plan.log_patterns])
        lines = len(log.splitlines())
        self._recorder.done(
            Step("log", _worst(checks), f"{lines} lines of the engine's log", seconds, shown, 0, checks)
        )


Checks = tuple[CheckResult, ...]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _checks(found: Any) -> Checks:
    listed = found.get("checks", ()) if isinstance(found, Mapping) else ()
    try:
        return tuple(decode(CheckResult, item, "the site's answer") for item in listed)
    except ContractError:
        return ()


def _needed(check: CheckResult) -> str:
    needed = f" (needed {check.expected}, found {check.actual or 'nothing'})" if check.expected else ""
    return f"{check.summary}{needed}"


def _worst(checks: Checks) -> Status:
    found = {check.status for check in checks}
    return "fail" if "fail" in found else "warn" if "warn" in found else "pass"


def _sentence(found: Any) -> tuple[str, Checks]:
    said = found if isinstance(found, Mapping) else {}
    removed = ", ".join(said.get("releases", ()))
    return str(said.get("answer") or (f"removed {removed}" if removed else "done")), ()


def _checked(found: Any) -> tuple[str, Checks]:
    checks = _checks(found)
    return f"{len(checks)} smoke test{'s' if len(checks) != 1 else ''} answered", checks


def _status(found: Any) -> tuple[str, Checks]:
    state = found[0] if isinstance(found, list) and found else {}
    return f"{state.get('state', 'unknown')}, {'answers' if state.get('answers') else 'does not answer'}", ()


def _failure(found: Any, done: Completed) -> tuple[str, Checks]:
    checks = _checks(found)
    bad = [check.summary for check in checks if check.status == "fail"]
    said = found.get("summary") if isinstance(found, Mapping) else None
    return str(said or "; ".join(bad) or f"exit code {done.code}"), checks


def _evidence(found: Any, done: Completed) -> tuple[str, ...]:
    details = [str(line) for line in found.get("details", ())] if isinstance(found, Mapping) else []
    return tuple([*details, *done.stderr.splitlines()][-_TAIL:])


def engine_log(support: Path, manifest: BundleManifest) -> str:
    """The engine's log out of a support bundle; empty when it has none."""
    wanted = f"airbundle-support/{manifest.name}/{manifest.version}/engine.log"
    with tarfile.open(support) as archive:
        try:
            handle = archive.extractfile(wanted)
        except KeyError:
            handle = None
        return handle.read().decode("utf-8", "replace") if handle else ""


def scan(log: str, patterns: Sequence[LogPattern]) -> Checks:
    """What a log says of downgrades that the launch plans name, and of a network that was not there."""
    lines = log.splitlines()
    found = []
    for pattern in dict.fromkeys(pattern for pattern in patterns if pattern.level != "fact"):
        hits = [line for line in lines if re.search(pattern.regex, line)]
        if hits:
            level: Status = "fail" if pattern.level == "fail" else "warn"
            made = CheckResult(f"log.{pattern.id}", level, pattern.meaning, remedy=pattern.remedy)
            found.append(_with_evidence(made, hits))
    trouble = [line for line in lines if _TROUBLE.search(line)]
    if trouble:
        made = CheckResult("log.network", "warn", "the engine's log speaks of a network that is not there")
        found.append(_with_evidence(made, trouble))
    return tuple(found)


def _with_evidence(check: CheckResult, lines: Sequence[str]) -> CheckResult:
    shown = tuple(dict.fromkeys(line.strip()[:400] for line in lines[-5:]))
    return CheckResult(check.id, check.status, check.summary, remedy=check.remedy, evidence=shown)
