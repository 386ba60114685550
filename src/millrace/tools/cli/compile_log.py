"""The command `millrace compile-log`: the compile log of a run, as tables or as JSON."""

import json
import pathlib
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console

from millrace.base.records.compilation import CompileRecord, compile_totals
from millrace.base.records.run import read_compile_log
from millrace.tools.cli.types import table_console

_MIN_WIDTH = 72


@click.command("compile-log")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--recompilations", is_flag=True, help="Show only recompilations.")
@click.argument("run", type=click.Path(exists=True, path_type=pathlib.Path))
def compile_log_command(run: pathlib.Path, recompilations: bool, as_json: bool) -> None:
    """Show what a run compiled, how long it took, and why.

    RUN is the directory of Strategy(report_dir=...), or a file compile_log*.jsonl in it. The run
    need not have ended.
    """
    records = read_compile_log(run)
    shown = [
        (number, each)
        for number, each in enumerate(records, 1)
        if each.is_recompilation or not recompilations
    ]
    if as_json:
        print(json.dumps(_as_dict(records, [each for _, each in shown]), indent=2))
        return
    console = table_console()
    if console.width < _MIN_WIDTH:  # the terminal wraps lines better than a table wraps words
        console = Console(highlight=False, width=_MIN_WIDTH)
    records.print_some(console, shown)


def _as_dict(records: Sequence[CompileRecord], shown: Sequence[CompileRecord]) -> dict[str, object]:
    totals = compile_totals(records)
    return {
        "records": [{**asdict(each), "origin": each.origin.value} for each in shown],
        "executables": totals.executables,
        "seconds": totals.seconds,
        "recompilations": totals.recompilations,
        "recompilation_seconds": totals.recompilation_seconds,
        "switches": totals.switches,
    }
