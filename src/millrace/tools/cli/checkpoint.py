"""The commands `millrace checkpoint`: lists and verifies checkpoints."""

import json
import pathlib
from dataclasses import dataclass

import click
from rich.table import Table
from rich.text import Text

from millrace.base.checkpoints.directory import CheckpointDirectory, opened_checkpoint
from millrace.base.checkpoints.manifest import FIT, DamagedError, Manifest, check_files
from millrace.base.checkpoints.stored import StoredCheckpoint
from millrace.base.records.memory import bytes_text
from millrace.compilation.executables.progress import search
from millrace.tools.cli.types import table_console

_directory = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path)
)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A directory among checkpoints."""

    path: pathlib.Path
    state: str  # complete, damaged, unfinished
    reason: str = ""  # why it is damaged
    manifest: Manifest | None = None


@click.group("checkpoint")
def checkpoint_command() -> None:
    """List or verify the checkpoints of a training."""


@checkpoint_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_directory
def list_command(directory: pathlib.Path, as_json: bool) -> None:
    """List checkpoints, the oldest first.

    DIRECTORY is that of Checkpoint(directory). Sizes of files are compared, and their contents are
    not read: `millrace checkpoint verify` does that.
    """
    checkpoints = CheckpointDirectory(directory)
    entries = [_entry(checkpoints, step) for step in checkpoints.steps()]
    # Without those that the training that writes has removed meanwhile.
    entries = [entry for entry in entries if entry.path.exists()]
    entries += [
        _Listed(path, "damaged" if ".damaged" in path.name else "unfinished")
        for path in checkpoints.remains()
    ]
    writer = checkpoints.writer()
    if as_json:
        listed = [_as_dict(entry) for entry in entries]
        text = {"directory": str(directory), "writer": writer, "checkpoints": listed}
        print(json.dumps(text, indent=2))
        return
    console = table_console()
    if entries:
        console.print(_table(entries, writer is not None))
    else:
        console.print(f"No checkpoints in {directory}.", markup=False, soft_wrap=True)
    if writer is not None:
        console.print(f"A training writes here: {writer}.", markup=False, soft_wrap=True)


@checkpoint_command.command("verify")
@_directory
@click.argument("step", type=click.IntRange(0), required=False)
@click.pass_context
def verify_command(context: click.Context, directory: pathlib.Path, step: int | None) -> None:
    """Read checkpoints, and compare them with their checksums.

    Without STEP, all of them. The exit status is 1 if one is damaged.
    """
    checkpoints = CheckpointDirectory(directory)
    steps = checkpoints.steps()
    if step is not None or not steps:
        steps = [_step_of(directory, checkpoints, step)]
    damaged = False
    for each in steps:
        try:
            checkpoint = checkpoints.open(each)
            _verify(checkpoint)
        except OSError as error:
            damaged = True
            click.echo(f"step {each}: cannot be read: {error.strerror}")
        except DamagedError as error:
            if not checkpoints.path_of(each).exists():  # the training that writes has removed it
                continue
            damaged = True
            click.echo(f"step {each}: damaged: {error}")
        else:
            click.echo(f"step {each}: as it was written, {bytes_text(checkpoint.manifest.nbytes)}")
    context.exit(1 if damaged else 0)


def _step_of(directory: pathlib.Path, checkpoints: CheckpointDirectory, step: int | None) -> int:
    """Returns the step, or raises the error that names those that there are."""
    if step is None or step not in checkpoints.steps():
        return opened_checkpoint(directory, step).manifest.step
    return step


def _entry(checkpoints: CheckpointDirectory, step: int) -> _Listed:
    path = checkpoints.path_of(step)
    try:
        manifest = checkpoints.open(step).manifest
    except DamagedError as error:
        return _Listed(path, "damaged", str(error))
    try:
        check_files(path, manifest, contents=False)
    except DamagedError as error:
        return _Listed(path, "damaged", str(error), manifest)
    except OSError as error:
        return _Listed(path, "damaged", f"cannot be read: {error.strerror}", manifest)
    return _Listed(path, "complete", manifest=manifest)


def _as_dict(entry: _Listed) -> dict[str, object]:
    manifest = entry.manifest
    facts = (
        {}
        if manifest is None
        else {
            "step": manifest.step,
            "epoch": manifest.epoch,
            "epoch_step": manifest.epoch_step,
            "written": manifest.written,
            "bytes": manifest.nbytes,
            "finite": manifest.is_finite,
            "kind": manifest.kind,
        }
    )
    damage = {"reason": entry.reason} if entry.reason else {}
    return {"name": entry.path.name, "state": entry.state, **damage, **facts}


def _table(entries: list[_Listed], is_written: bool) -> Table:
    table = Table("step", "epochs + steps", "written", "size", "kind", "", box=None, pad_edge=False)
    for column in (table.columns[0], table.columns[1], table.columns[3]):
        column.justify, column.no_wrap = "right", True
    for entry in entries:
        manifest, note, style = entry.manifest, "", None
        if entry.state == "damaged":
            note, style = f"damaged: {entry.reason}".removesuffix(": "), "red"
        elif entry.state == "unfinished":
            is_new = is_written and ".partial-" in entry.path.name
            note, style = "being written" if is_new else "unfinished", "dim"
        elif manifest is not None and not manifest.is_finite:
            note, style = "values are NaN or infinite", "yellow"
        if manifest is None:
            cells = [entry.path.name.removeprefix("step-").lstrip("0").partition(".")[0] or "0"]
            cells += ["", "", "", ""]
        else:
            cells = [
                str(manifest.step),
                f"{manifest.epoch} + {manifest.epoch_step}" if manifest.kind == FIT else "",
                manifest.written.replace("T", " "),
                bytes_text(manifest.nbytes),
                manifest.kind,
            ]
        table.add_row(*map(Text, cells), Text(note), style=style)
    return table


def _verify(checkpoint: StoredCheckpoint) -> None:
    manifest, read = checkpoint.manifest, 0
    with search(f"reading the checkpoint of step {manifest.step}") as tick:

        def has_read(nbytes: int) -> None:
            nonlocal read
            read += nbytes
            tick(f"{bytes_text(read)} of {bytes_text(manifest.nbytes)}")

        check_files(checkpoint.path, manifest, has_read=has_read)
