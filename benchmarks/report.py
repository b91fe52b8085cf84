"""Shows rows on the terminal, and writes them to a JSON file and a page."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

from benchmarks.bench import GIB, MIB, Row
from benchmarks.machine import Machine

_INTRO = """\
Taken by `{command}` in one run. Times are wall seconds of whole commands, each the best of three where its name does
not say otherwise; the inputs are synthetic (normally distributed bf16 numbers) and in the page cache, as far as it
holds them. What a figure is a ratio to was measured in the same run, on the same bytes.
"""


def row_text(row: Row) -> str:
    """One line for the terminal."""
    cells = (f"{row.what:58}", f"{_seconds(row):>11}", f"{_size(row):>13}", f"{_figure(row):>9} {row.to:26}")
    return "  ".join((*cells, _aim(row), _memory(row), row.note)).rstrip()


def write_results(directory: Path, name: str, machine: Machine, rows: list[Row], command: str) -> Path:
    """Write ``NAME.json`` and ``NAME.md``; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    plain = [{**dataclasses.asdict(row), "aim": _aim(row), "met": row.met} for row in rows]
    document = {"machine": dataclasses.asdict(machine), "command": command, "rows": plain}
    (directory / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    page = directory / f"{name}.md"
    page.write_text(_page(name, machine, rows, command))
    return page


def _page(name: str, machine: Machine, rows: list[Row], command: str) -> str:
    lines = [f"# Benchmark of {name}", "", _INTRO.format(command=command), *_machine_lines(machine), ""]
    judged = [row for row in rows if row.met is not None]
    missed = [row for row in judged if not row.met]
    lines += [f"{len(judged) - len(missed)} of {len(judged)} aims are met.", ""]
    for subject, group in itertools.groupby(rows, key=lambda row: row.subject):
        lines += [
            f"## {subject}",
            "",
            "| | time | size | figure | aim | memory | |",
            "| --- | --: | --: | --: | --- | --: | --- |",
        ]
        for row in group:
            what = row.what.strip() if row.what.strip() == row.what else f"… {row.what.strip()}"
            cells = (
                what,
                _seconds(row),
                _size(row),
                f"{_figure(row)} {row.to}".strip(),
                _aim(row),
                _memory(row),
                row.note,
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _machine_lines(machine: Machine) -> list[str]:
    extensions = "with" if machine.sha_extensions else "without"
    return [
        f"- Machine: {machine.cpu}, {machine.cores} cores, {extensions} SHA extensions, "
        f"{machine.memory / GIB:.0f} GiB memory",
        f"- Disk: {machine.filesystem}, {machine.free / GIB:.0f} GiB free at the start",
        f"- Software: Linux {machine.kernel}, Python {machine.python}, {machine.tool}",
        f"- Begun {machine.began}; load {_loads(machine.load_at_start)} at the start, "
        f"{_loads(machine.load_at_end)} at the end",
    ]


def _loads(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _seconds(row: Row) -> str:
    return "" if row.seconds is None else f"{row.seconds:.2f} s"


def _size(row: Row) -> str:
    return "" if row.size is None else f"{row.size / MIB:.1f} MiB"


def _figure(row: Row) -> str:
    if row.figure is None:
        return ""
    return (
        f"{row.figure:.3f}"
        if abs(row.figure) < 0.1
        else f"{row.figure:.2f}"
        if row.figure < 100
        else f"{row.figure:.0f}"
    )


def _aim(row: Row) -> str:
    if row.aim is None:
        return ""
    return (
        f"{row.aim.sign} {row.aim.value:.2g}{'' if row.met else ' missed'}"
        if row.aim.value < 100
        else f"{row.aim.sign} {row.aim.value:g}{'' if row.met else ' missed'}"
    )


def _memory(row: Row) -> str:
    return f"{row.memory / MIB:.0f} MiB" if row.memory else ""
