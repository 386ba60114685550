"""The commands `millrace compile-log` and `millrace precompile`."""

import collections
import pathlib
import runpy
import sys
import time

import click

from millrace.cache.use import cache_statistics
from millrace.cli.compile_log_table import show_compile_log
from millrace.cli.types import check_script
from millrace.compiling.log import listeners
from millrace.errors import ModelError
from millrace.precompile.compile_only import compiling_only
from millrace.records.compilation import CompileRecord, Origin


@click.command("compile-log")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--recompilations", is_flag=True, help="Show only what was compiled again.")
@click.argument("run", type=click.Path(exists=True, path_type=pathlib.Path))
def compile_log_command(run: pathlib.Path, recompilations: bool, as_json: bool) -> None:
    """Shows what a run has compiled, how long it took, and why.

    RUN is the directory of Strategy(report_dir=...), or a compile_log*.jsonl in it; the run may
    still go on.
    """
    show_compile_log(run, recompilations, as_json)


@click.command("precompile", context_settings={"allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def precompile_command(script: str, arguments: tuple[str, ...]) -> None:
    """Compiles what a script will run, into the cache, and trains nothing.

    The script runs as ever, but fit, evaluate, predict and their kind for single batches compile
    instead of running, for models of a strategy: train, test and predict programs, all stages, in
    parallel. Their results are zeros, so a script that looks at results may take another way than
    in a real run, and what it would compile there is missing.

    Of the data one batch is drawn, and all others are taken to have its shapes; only arrays say
    how many rows their last batch has. Callbacks are not called. save() leaves files that exist as
    they are. All else in the script takes place, what it prints and writes by itself too.
    """
    records: list[CompileRecord] = []
    listeners.append(records.append)
    listener = listeners[-1]
    begin = time.perf_counter()
    try:
        with compiling_only():
            _run(script, arguments)
    finally:
        listeners.remove(listener)
    made = [record for record in records if record.is_executable]
    if not made:
        raise ModelError(
            f"{script} has compiled nothing: it called fit, evaluate or predict of no model of a "
            "strategy. Build the model in `with strategy.scope()`, or call strategy.attach(model)."
        )
    origins = collections.Counter(record.origin for record in made)
    kinds = {
        Origin.COMPILED: "compiled",
        Origin.CACHE: "read from the cache",
        Origin.SHARED: "equal to another",
        Origin.LOADED: "loaded",
    }
    parts = [f"{origins[each]} {kind}" for each, kind in kinds.items() if origins[each]]
    click.echo(
        f"{len(made)} executables for {script} in {time.perf_counter() - begin:.1f} s: "
        f"{', '.join(parts)}. The cache is {cache_statistics().directory}."
    )


def _run(script: str, arguments: tuple[str, ...]) -> None:
    """Runs a script as Python does. Its exit status is that of this process, unless it is 0."""
    check_script(script)
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(pathlib.Path(script).absolute().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    finally:
        sys.argv, sys.path[:] = argv, path


COMMANDS = (compile_log_command, precompile_command)
