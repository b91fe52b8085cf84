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


_HEADER = ("| | time | size | figure | aim | memory | |", "| --- | --: | --: | --: | --- | --: | --- |")


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
    judged = [row for row in rows if row.met is not None]
    met = sum(bool(row.met) for row in judged)
    lines = [f"# Benchmark of {name}", "", _INTRO.format(command=command), *_machine_lines(machine), ""]
    lines += [f"{met} of {len(judged)} aims are met.", ""]
    for subject, group in itertools.groupby(rows, key=lambda row: row.subject):
        lines += [f"## {subject}", "", *_HEADER, *map(_table_line, group), ""]
    return "\n".join(lines)


def _table_line(row: Row) -> str:
    what = row.what.strip()
    if what != row.what:  # a part of the row above
        what = f"… {what}"
    figure = f"{_figure(row)} {row.to}".strip()
    return f"| {' | '.join((what, _seconds(row), _size(row), figure, _aim(row), _memory(row), row.note))} |"


def _machine_lines(machine: Machine) -> list[str]:
    cores = f"{machine.cores} cores {'with' if machine.sha_extensions else 'without'} SHA extensions"
    return [
        f"- Machine: {machine.cpu}, {cores}, {machine.memory / GIB:.0f} GiB memory",
        f"- Disk: {machine.filesystem}, {machine.free / GIB:.0f} GiB free at the start",
        f"- Software: Linux {machine.kernel}, Python {machine.python}, {machine.tool}",
        f"- Begun {machine.began}; load {_loads(machine.load_at_start)} then, {_loads(machine.load_at_end)} at the end",
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
    digits = 3 if abs(row.figure) < 0.1 else 2 if abs(row.figure) < 100 else 0
    return f"{row.figure:.{digits}f}"


def _aim(row: Row) -> str:
    if row.aim is None:
        return ""
    return f"{row.aim.sign} {row.aim.value:.3g}" + ("" if row.met else ", missed")


def _memory(row: Row) -> str:
    return f"{row.memory / MIB:.0f} MiB" if row.memory else ""
