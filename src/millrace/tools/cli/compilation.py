"""The command `millrace compile-log`."""

import pathlib

import click

from millrace.tools.cli.compile_log_table import show_compile_log


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


COMMANDS = (compile_log_command,)
