"""The commands `millrace compile-log` and `millrace precompile`."""

import collections
import pathlib
import runpy
import sys
import time

import click

from millrace.cache.listeners import (
    ProgramListener,
    register_listener,
    unregister_listener,
)
from millrace.cache.use import cache_statistics
from millrace.cli.compile_log_table import show_compile_log
from millrace.cli.types import check_script
from millrace.errors import ModelError
from millrace.precompile.compile_only import compiling_only
from millrace.records.compilation import CompileRecord, Origin


@click.command("compile-log")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--recompilations", is_flag=True, help="Show only recompilations.")
@click.argument("run", type=click.Path(exists=True, path_type=pathlib.Path))
def compile_log_command(run: pathlib.Path, recompilations: bool, as_json: bool) -> None:
    """Show what a run compiled, how long it took, and why.

    RUN is the directory of Strategy(report_dir=...), or a file compile_log*.jsonl in it. The run
    need not have ended.
    """
    show_compile_log(run, recompilations, as_json)


@click.command("precompile", context_settings={"allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def precompile_command(script: str, arguments: tuple[str, ...]) -> None:
    """Compile the programs of a script, without training.

    The script runs, but for models of a strategy fit, evaluate, predict, train_on_batch,
    test_on_batch and predict_on_batch only compile: train, test and predict programs of all
    stages, in parallel, into the cache. Their results are zeros, so a script that depends on
    results may take another path than in a real run; programs of the real path are then missing.

    Only one batch is drawn from the data, and all others are assumed to have its shapes; where the
    data are arrays, the last batch has its true number of rows. Callbacks are not called, and
    save() does not overwrite existing files. The rest of the script runs as usual, and prints and
    writes its own output.
    """
    records: list[CompileRecord] = []
    listener = ProgramListener()
    listener.compiled = records.append  # type: ignore[method-assign]
    register_listener(listener)
    begin = time.perf_counter()
    try:
        with compiling_only():
            _run(script, arguments)
    finally:
        unregister_listener(listener)
    executables = [record for record in records if record.is_executable]
    if not executables:
        raise ModelError(
            f"{script} has compiled nothing: it never called fit, evaluate or predict of a model "
            "that belongs to a strategy. Build the model in `with strategy.scope()`, or call "
            "strategy.attach(model)."
        )
    origins = collections.Counter(record.origin for record in executables)
    kinds = {
        Origin.COMPILED: "compiled",
        Origin.CACHE: "read from the cache",
        Origin.SHARED: "equal to another",
        Origin.LOADED: "loaded",
    }
    numbers = [f"{origins[each]} {kind}" for each, kind in kinds.items() if origins[each]]
    click.echo(
        f"{len(executables)} executables for {script} in {time.perf_counter() - begin:.1f} s: "
        f"{', '.join(numbers)}. The cache is {cache_statistics().directory}."
    )


def _run(script: str, arguments: tuple[str, ...]) -> None:
    """Runs a script as Python does. An exit status other than 0 becomes that of this process."""
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
