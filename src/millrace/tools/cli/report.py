"""The command `millrace report`: the page of a run, and a summary on the terminal."""

import pathlib
import webbrowser

import click

from millrace.base.records.run import RunRecords, load, run_path
from millrace.errors import OptionError
from millrace.tools.cli.types import table_console
from millrace.tools.reports.page import write_page
from millrace.tools.reports.perfetto import write_perfetto
from millrace.tools.reports.summary import print_summary


@click.command("report")
@click.option("--compare", is_flag=True, help="Show two runs side by side.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="File of the page. The default is report.html in the directory of the run.",
)
@click.option(
    "--perfetto",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="Also write the traces to this file, for ui.perfetto.dev and chrome://tracing.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.argument(
    "runs",
    metavar="RUN",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
)
def report_command(
    runs: tuple[pathlib.Path, ...],
    compare: bool,
    output: pathlib.Path | None,
    perfetto: pathlib.Path | None,
    opens: bool,
) -> None:
    """Write the page of a run, and print its summary.

    RUN is the directory of Strategy(report_dir=...) or MILLRACE_REPORT_DIR; of a directory with
    several runs, the one that began last. The run may still be running, or may have been killed.
    The page is one file that needs no network. With --compare, give two runs.
    """
    _check(runs, compare)
    read = [load(_directory(each)) for each in runs]
    if perfetto is not None:
        _write_perfetto(read, perfetto)
    # Before anything is printed: a pipe such as `| head` may end the command.
    page = write_page(read, output or _default_output(read))
    for each in read:
        print_summary(each, table_console())
        click.echo("")
    click.echo(f"The page is {page.absolute()}")
    if opens:
        _open(page.absolute().as_uri())


def _write_perfetto(runs: list[RunRecords], path: pathlib.Path) -> None:
    """Writes the traces of a run.

    Raises:
        OptionError: if there are none, or the file cannot be written.
    """
    if len(runs) != 1:
        raise OptionError(
            "--perfetto takes the traces of one run: remove --compare, or --perfetto."
        )
    (run,) = runs
    if not run.traces:
        raise OptionError(
            f"--perfetto {path} would be empty: {run.path} has no traces. They are written while a "
            "model of a strategy with report_dir trains."
        )
    try:
        write_perfetto(run, path)
    except OSError as error:
        raise OptionError(
            f"--perfetto {path} cannot be written: {error.strerror}. Set it to a file in a "
            "directory that exists and that you may write to."
        ) from error
    click.echo(f"{path} has {len(run.traces)} traces, for https://ui.perfetto.dev.", err=True)


def _check(runs: tuple[pathlib.Path, ...], compare: bool) -> None:
    """Refuses numbers of runs that do not go with the options."""
    if compare and len(runs) != 2:
        raise click.UsageError(
            f"--compare shows two runs side by side. Received {len(runs)}: give two directories."
        )
    if not compare and len(runs) > 1:
        raise click.UsageError(
            f"A report shows one run. Received {len(runs)}: give one directory, or two and "
            "--compare."
        )


def _directory(path: pathlib.Path) -> pathlib.Path:
    """Returns the directory of a run, and says which one it took."""
    found = run_path(path)
    if found != path:
        click.echo(f"The newest run in {path} is {found}", err=True)
    return found


def _default_output(runs: list[RunRecords]) -> pathlib.Path:
    if len(runs) == 1:
        return runs[0].path / "report.html"
    return runs[0].path / f"report_{runs[1].path.absolute().name}.html"


def _open(address: str) -> None:
    """Opens an address in the browser, or says that there is none."""
    try:
        has_opened = webbrowser.open(address)
    except (webbrowser.Error, OSError):
        has_opened = False
    if not has_opened:
        click.echo(f"There is no browser to open. Open this address in one: {address}", err=True)
