"""What stands in for a start that this machine cannot give: the bundled engine's own import, parser and loaders.

An engine module may name better tries than the general one by a method ``rehearsal_tries(plan)`` beside those of
`airbundle.engines.base.Engine`; see `airbundle.engines.trying`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from airbundle import engines
from airbundle.data import data_dir
from airbundle.engines.recipes import PROBE
from airbundle.engines.trying import KnowsTries, Try
from airbundle.rehearse.judging import checks_of, for_want_of_a_gpu
from airbundle.rehearse.notebook import Recorder
from airbundle.rehearse.report import Step
from airbundle.rehearse.rooms import Room
from airbundle.rehearse.serving import generate_once, too_large_here
from airbundle_onsite.contract.checks import CheckResult, Status
from airbundle_onsite.contract.launch import LaunchPlan, fill
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import UsageError
from airbundle_onsite.system import Completed

__all__ = ["KnowsTries", "Try", "install_argv", "probe_files", "run_tries", "tries_for"]

_TAIL = 30  # lines
_GPU_ONLY = "kernels, loading into GPU memory and generation: they need a GPU"


def tries_for(plan: LaunchPlan) -> tuple[Try, ...]:
    """The engine's own tries; else the plan's whole command line with ``--help``, read by the bundled engine itself.

    What precedes ``--help`` is parsed by most engines before they print it, and everything is imported for that; but
    not by all, so that a failure there is told and does not fail the rehearsal.
    """
    try:
        engine: object = engines.create(plan.engine)
    except UsageError:  # a bundle of an engine that this version does not know
        engine = None
    found = tuple(engine.rehearsal_tries(plan)) if isinstance(engine, KnowsTries) else ()
    if found:
        return found
    proves = "the bundled engine starts and prints its help after reading the plan's flags"
    return (Try("help", (*plan.argv, "--help"), proves, binding=False),)


def probe_files(tries: Sequence[Try]) -> dict[str, str]:
    """Everything that the tries read in ``{probes}``, by name."""
    program = (data_dir("templates") / "rehearse" / PROBE).read_text(encoding="utf-8")
    return {PROBE: program, **{name: text for each in tries for name, text in each.files.items()}}


@record
class _Job:
    """A try with everything filled in; two plans whose jobs are alike need only one."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]


def run_tries(plans: Sequence[LaunchPlan], room: Room, recorder: Recorder) -> None:
    """Make the tries of every plan, once where several share one; say what they could not show."""
    listed = [(plan, each) for plan in plans for each in tries_for(plan)]
    crowded = {plan.id: too_large_here(room.weights(plan)) for plan, each in listed if each.kind == "server"}
    wanted = {each.model for plan, each in listed if each.kind != "server" or not crowded[plan.id]}
    model = next((how for how in ("whole", "thin") if how in wanted), "")
    room.prepare(probe_files([each for _, each in listed]), model)
    done: set[_Job] = set()
    steps: list[tuple[LaunchPlan, Try, Step]] = []
    for plan, each in listed:
        values = room.values(plan)
        environment = {name: fill(value, values) for name, value in {**plan.env, **each.env}.items()}
        argv = tuple(fill(word, values) for word in each.argv)
        job = _Job(argv, tuple(sorted(environment.items())))
        if job in done:
            continue
        done.add(job)
        recorder.begin(f"try.{each.id}", f"try: {each.proves}")
        if each.kind == "server" and crowded[plan.id]:
            step = _unknown(each, crowded[plan.id])
        else:
            step = _made(room, plan, each, argv, environment)
        recorder.done(step)
        steps.append((plan, each, step))
    for sentence in _left_out(steps):
        recorder.left_out(sentence)


def _left_out(steps: Sequence[tuple[LaunchPlan, Try, Step]]) -> Iterator[str]:
    """What the tries could not show, each once, with the launch plans that it is about."""
    about: dict[tuple[str, str], list[str]] = {}
    for plan, _, step in steps:
        for check in step.checks:
            if check.status == "skip":
                about.setdefault((check.id.removeprefix("rehearsal."), check.summary), []).append(plan.id)
    for (name, reason), ids in about.items():
        yield f"{name} (launch plan {', '.join(dict.fromkeys(ids))}): {reason}"
    if not any(each.kind == "server" and step.status == "pass" for _, each, step in steps):
        yield _GPU_ONLY


def _made(room: Room, plan: LaunchPlan, each: Try, argv: Sequence[str], environment: Mapping[str, str]) -> Step:
    began = time.monotonic()
    if each.kind == "server":
        step = _served(room, plan, each, argv, environment)
    else:
        done = room.execute(plan, argv, environment, each.seconds)
        step = _probed(each, done) if each.kind == "probe" else _commanded(each, done)
    return _timed(step, round(time.monotonic() - began, 3))


def _served(room: Room, plan: LaunchPlan, each: Try, argv: Sequence[str], environment: Mapping[str, str]) -> Step:
    outcome = generate_once(room, plan, argv, environment, each.seconds)
    if outcome.code:
        return _commanded(each, Completed(tuple(argv), outcome.code, outcome.log, ""))
    if outcome.late:
        return _unknown(each, f"on this machine it did not load within {each.seconds} s")
    if not outcome.text:
        evidence = tuple(outcome.log.splitlines()[-_TAIL:])
        return Step(f"try.{each.id}", "fail", "it started and generated nothing", 0, each.argv, 1, evidence=evidence)
    return Step(f"try.{each.id}", "pass", f"{each.proves}: {outcome.text[:80]!r}", command=each.argv)


def _unknown(each: Try, why: str) -> Step:
    check = CheckResult(f"rehearsal.{each.id}", "skip", why)
    return Step(f"try.{each.id}", "skip", why, command=each.argv, checks=(check,))


def _timed(step: Step, seconds: float) -> Step:
    return Step(step.id, step.status, step.summary, seconds, step.command, step.exit_code, step.checks, step.evidence)


def _commanded(each: Try, done: Completed) -> Step:
    said = done.stdout + done.stderr
    evidence = tuple(said.splitlines()[-_TAIL:]) if done.code else ()
    if not done.code:
        return Step(f"try.{each.id}", "pass", each.proves, command=each.argv)
    missing = for_want_of_a_gpu(said)
    if missing:
        check = CheckResult(f"rehearsal.{each.id}", "skip", f"needs a GPU: {missing}")
        return Step(f"try.{each.id}", "skip", check.summary, command=each.argv, exit_code=done.code, checks=(check,))
    summary = f"it could not be shown that {each.proves}: exit code {done.code}"
    status: Status = "fail" if each.binding else "warn"
    return Step(f"try.{each.id}", status, summary, command=each.argv, exit_code=done.code, evidence=evidence)


def _probed(each: Try, done: Completed) -> Step:
    checks = checks_of(done)
    failed = [check for check in checks if check.status == "fail"]
    counts = {status: sum(check.status == status for check in checks) for status in ("pass", "warn", "fail", "skip")}
    status: Status = next(each for each in ("fail", "warn", "pass", "skip") if counts[each])
    words = [f"{counts['pass'] + counts['warn']} shown"]
    words += [f"{counts['skip']} not rehearsed"] if counts["skip"] else []
    summary = f"{each.proves}: {', '.join(words)}"
    if failed:
        summary = "; ".join(check.summary for check in failed)
    return Step(
        id=f"try.{each.id}",
        status=status,
        summary=summary,
        command=each.argv,
        exit_code=done.code if not failed else done.code or 1,
        checks=checks,
        evidence=tuple(line for check in failed for line in (check.summary, *check.evidence)),
    )


def install_argv(python: str, pip: str, wheels: str, target: str = "") -> list[str]:
    """The command that installs a bundle's wheels from themselves alone, as the site's runtimes do.

    Args:
        pip: pip's own wheel, run from inside the file.
        wheels: directory of the wheels and their requirements.txt.
        target: install there; empty for the interpreter's own environment.
    """
    return [
        *(python, "-I", f"{pip}/pip", "install", "--isolated", "--no-index", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--require-hashes", "--quiet"),
        *(("--target", target) if target else ()),
        *("--find-links", wheels, "--requirement", f"{wheels}/requirements.txt"),
    ]
