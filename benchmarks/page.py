"""Writes docs/benchmarks.md and the table in README from the files in `results/`.

    results/*.txt ── figures.py ──┐
    bars.py: words, reasons ──────┴──> docs/benchmarks.md; README between its markers

`--check` writes nothing, and fails if a page does not match the results.
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping

from bars import CLAIMS, SECTIONS, Claim, Section
from figures import Figure, Result, results

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
_MARKED = re.compile(r"(?<=<!-- capabilities -->\n).*?(?=<!-- end capabilities -->)", re.DOTALL)

_INTRODUCTION = (
    "# Benchmarks\n\n"
    "Every figure below was printed by a script in [`benchmarks/`](../benchmarks); "
    "`make benchmarks-page` copies it from the result file, and none is typed by hand. A ratio is "
    "the median over rounds in which both sides alternate, with the smallest and the largest round "
    "in brackets. The bar is the claim of the script. The reason for a missed bar is below the "
    "table. `make bench` measures everything again.\n"
)

_ON_GPUS = (
    "`make gpu` takes at most 20 minutes, prints each result at once, and continues where it "
    "stopped when you call it again; `make gpu GPU=--dry-run` lists its steps. It uses the Python "
    "that you name (`PY=...`), whose JAX must support the GPU. Other missing packages may come as "
    "wheels from another machine: run `pip download --no-deps` for keras, optree and namex, often "
    "also for absl-py, h5py, ml-dtypes, packaging, rich, click and pytest, for that Python, and "
    "then `make gpu WHEELS=directory`. `NEXT_WHEELS=directory` with a newer Keras times that, too. "
    "`make gpu GPU='--platform cpu --small'` rehearses every step on a CPU.\n"
)


def page(found: Iterable[Result]) -> str:
    """Returns docs/benchmarks.md.

    Raises:
        ValueError: if a script has no section, a missed bar has no reason, or a reason belongs to
            no missed bar.
    """
    on_cpu = _by_script(found)
    elsewhere = [result for result in found if result.device != "cpu"]
    if unknown := sorted(set(on_cpu) - set(SECTIONS)):
        raise ValueError(
            f"{unknown} in benchmarks/results have no section. Add it to SECTIONS of "
            "benchmarks/bars.py."
        )
    blocks = [_INTRODUCTION, _summary(on_cpu)]
    blocks += [_section(SECTIONS[name], on_cpu[name]) for name in SECTIONS if name in on_cpu]
    blocks.append(_on_gpus(elsewhere))
    if missing := [name for name in SECTIONS if name not in on_cpu]:
        names = ", ".join(f"[`{name}.py`](../benchmarks/{name}.py)" for name in missing)
        blocks.append(f"## Without a recorded run\n\n{names}.\n")
    return "\n".join(blocks)


def _by_script(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns the results of CPUs: one of each processor, newest first."""
    scripts: dict[str, list[Result]] = {}
    for result in found:
        if result.device == "cpu":
            scripts.setdefault(result.script, []).append(result)
    return scripts


def _summary(found: Mapping[str, list[Result]]) -> str:
    parts = [part for results in found.values() for result in results for part in result.parts]
    figures = [figure for part in parts for figure in part.figures if figure.bar]
    met = sum(bool(figure.met) for figure in figures)
    return f"Bars: {met} of {len(figures)} met, {len(figures) - met} missed.\n"


def _section(section: Section, found: list[Result]) -> str:
    lines, reasons_left = [f"## {section.title}\n", section.text + "\n"], dict(section.misses)
    for result in found:
        missed = [f.name for part in result.parts for f in part.figures if f.met is False]
        for part in result.parts:
            lines += (_grid if section.is_grid else _table)(part.figures)
        for pattern, reason in section.misses.items():
            names = [name for name in missed if re.fullmatch(pattern, name)]
            if names:
                reasons_left.pop(pattern, None)
                # One reason for all needs no names; the table shows them.
                shown = (
                    "" if len(section.misses) == 1 else f" {', '.join(f'*{n}*' for n in names)}."
                )
                lines.append(f"**Missed:**{shown} {reason}\n")
            missed = [name for name in missed if name not in names]
        if missed:
            raise ValueError(
                f"{result.path.name} misses {missed}. Say why in SECTIONS of benchmarks/bars.py."
            )
        lines.append(_source(result) + "\n")
    if reasons_left:
        name, pattern = found[0].path.name, next(iter(reasons_left))
        raise ValueError(f"{name} misses nothing named {pattern!r}. Remove it.")
    if section.page:
        lines[-1] = f"{lines[-1].rstrip()} Feature: [{section.page}]({section.page}).\n"
    return "\n".join(lines)


def _grid(figures: Iterable[Figure]) -> list[str]:
    cells: dict[str, dict[str, str]] = {}
    for figure in figures:
        row, _, column = figure.name.partition(": ")
        text = figure.text if figure.met is not False else f"**{figure.text}**"
        cells.setdefault(row, {})[column] = text
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    rows = [["", *columns], ["---", *["--:" for _ in columns]]]
    rows += [[name, *(row.get(column, "") for column in columns)] for name, row in cells.items()]
    return [*(f"| {' | '.join(row)} |" for row in rows), ""]


def _table(figures: Iterable[Figure]) -> list[str]:
    rows = ["| | measured | bar | verdict |", "|---|--:|--:|---|"]
    words = {True: "met", False: "**missed**", None: ""}
    for figure in figures:
        rows.append(f"| {figure.name} | {figure.text} | {figure.bar} | {words[figure.met]} |")
    return [*rows, ""]


def _source(result: Result) -> str:
    header = result.parts[0].header
    note = f" Note: {header['note']}." if "note" in header else ""
    return (
        f"{header['date']}, {header['machine']}; {header['versions']}.{note} "
        f"All times: [{result.path.name}](../benchmarks/results/{result.path.name})."
    )


def _on_gpus(found: list[Result]) -> str:
    title = "## On GPUs\n"
    if not found:
        return (
            f"{title}\nNothing was measured yet. `make gpu` measures on a machine that has one.\n"
            f"\n{_ON_GPUS}"
        )
    lines = [title, _ON_GPUS]
    for result in found:
        lines.append(f"### {result.device}, {result.date}\n")
        for part in result.parts:
            lines += [f"{part.title}\n", *_table(part.figures)]
        lines.append(_source(result) + "\n")
    return "\n".join(lines)


def table(found: Iterable[Result]) -> str:
    """Returns the table in README, and the origin of its figures."""
    on_cpu = _by_script(found)
    rows = ["| | compared with | figures | processor, date |", "|---|---|---|---|"]
    versions: set[str] = set()
    for claim in CLAIMS:
        measured = sorted(
            (result for script in claim.scripts for result in on_cpu[script]),
            key=lambda result: result.date,
        )
        makers = [re.split(r"[ (]", result.processor)[0] for result in measured]
        origin = ", ".join(f"{m} {r.date}" for m, r in zip(makers, measured, strict=True))
        name = f"[{claim.name}](docs/{claim.page})"
        rows.append(f"| {name} | {claim.peer} | {_range(claim, measured)} | {origin} |")
        versions |= {part.header["versions"] for result in measured for part in result.parts}
    return "\n".join(
        [
            *rows,
            "",
            f"Medians, the lowest and the highest of all cases; two CPU cores; "
            f"{'; '.join(sorted(versions))}. Below 1.00 times as fast, the other one is faster. "
            "[All figures](docs/benchmarks.md), with their spread, their bars, and the reasons for "
            "missed bars.",
            "",
        ]
    )


def _range(claim: Claim, measured: Iterable[Result]) -> str:
    """Returns the lowest and the highest figure of all processors, for each name of a claim."""
    figures = [figure for result in measured for part in result.parts for figure in part.figures]
    ranges = []
    for pattern in claim.names:
        values = []
        for figure in figures:
            if re.fullmatch(pattern, figure.name):
                values.append(float(figure.value))
            elif re.fullmatch(pattern, f"1 / {figure.name}"):
                values.append(1 / float(figure.value))
        if not values:
            raise ValueError(f"{claim.scripts} have no figure named {pattern!r}.")
        ends = (f"{v:.2f}" if v < 100 else f"{v:.0f}" for v in (min(values), max(values)))
        ranges.append(" to ".join(dict.fromkeys(ends)))
    return claim.text.format(*ranges)


def main() -> None:
    """Writes or checks both pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = results()
    before = README.read_text()
    after, marked = _MARKED.subn(lambda _: "\n" + table(found) + "\n", before)
    if marked != 1:
        sys.exit("README.md needs one pair of <!-- capabilities --> and <!-- end capabilities -->.")
    for path, text in ((PAGE, page(found)), (README, after)):
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.name} is not what benchmarks/results say. Run make benchmarks-page.")


if __name__ == "__main__":
    main()
