"""The executables of one strategy, to be written for other processes.

made(wanted, executable)        registers one; keeps nothing alive
stages(key, plan, make)
write(directory)                one file each; obstacles are logged
"""

import logging
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from millrace._compat.jax_executables import from_bytes
from millrace._compat.jax_targets import is_described
from millrace.base.records.compilation import ProgramKey
from millrace.compilation.cache import files as cache_files
from millrace.compilation.cache.private import NotPrivateError, check_private, make_private
from millrace.compilation.executables.executable import Executable, compiled_of, renames_of
from millrace.compilation.executables.sharing import serialize
from millrace.compilation.executables.wanted import Wanted
from millrace.compilation.export import file as export_file
from millrace.compilation.export.exported import Exported
from millrace.compilation.export.file import EXECUTABLE, STAGES, Header, environment
from millrace.errors import OptionError
from millrace.programs.plan import LoopForm, Plan

logger = logging.getLogger("millrace")


def why_not(plan: Plan, key: ProgramKey, gaps: Sequence[str] = ()) -> str | None:
    """Returns why other processes may not use a plan's programs; None if they may."""
    if not key.is_complete:
        return f"it may differ in another process, by {'; '.join(gaps[:3])}"
    if plan.tapped:
        return "values are tapped, and their queues are objects of this process"
    recompute = plan.recompute
    if recompute is not None and (recompute.budget is not None or recompute.choice is not None):
        return "its recomputation was chosen by a budget"
    if not plan.group.is_local:
        return "it spans processes"
    return None


@dataclass(frozen=True, slots=True)
class _Export:
    """An executable or stages to export, or the obstacle."""

    key: ProgramKey
    devices: tuple[jax.Device, ...]
    kind: str
    source: Callable[[], Any]  # returns the content; None if its model is gone
    layers: tuple[str, ...] = ()
    form: LoopForm | None = None
    obstacle: str | None = field(default=None, compare=False)


class Exports:
    """The executables of a strategy's models, and those that they may load instead."""

    def __init__(self) -> None:
        self.loaded = Exported()
        self._lock = threading.Lock()
        self._exports: dict[tuple[str, str, str], _Export] = {}  # by kind, program and digest

    def made(self, wanted: Wanted, executable: Executable) -> None:
        """Registers the executable of a program, and does not keep it alive."""
        olds = {new: old for old, new in renames_of(executable).items()}
        layers = tuple(olds.get(name, name) for name in wanted.layers)
        source, form, why = weakref.ref(compiled_of(executable)), wanted.form, wanted.obstacle
        self._add(_Export(wanted.key, wanted.devices, EXECUTABLE, source, layers, form, why))

    def stages(self, key: ProgramKey, plan: Plan, source: Callable[[], object]) -> None:
        """Registers the stages of a pipeline.

        Args:
            key: of the stages.
            plan: of the stages.
            source: returns the content of the file; None if its model is gone.
        """
        devices, obstacle = plan.group.devices, why_not(plan, key)
        self._add(_Export(key, devices, STAGES, source, obstacle=obstacle))

    def write(self, directory: str | os.PathLike[str]) -> int:
        """Writes everything that is still in use, and returns the number of executables.

        Raises:
            OptionError: if the directory cannot be made or written, or others can write to it.
        """
        root = pathlib.Path(directory).expanduser().absolute()
        with self._lock:
            exports = list(self._exports.values())
        try:
            make_private(root)
            check_private(root)
            files = [(export, data) for export in exports if (data := _packed(export)) is not None]
            for export, data in files:
                cache_files.write(root / _name(export), data)
        except OSError as error:
            raise OptionError(
                f"export_executables() cannot write {os.fspath(directory)!r}: "
                f"{error.strerror or error}. Give it a directory that can be written."
            ) from error
        except NotPrivateError as error:
            raise OptionError(
                "export_executables() writes code, and another user could replace it. "
                f"{error}, or give it another directory."
            ) from None
        count = sum(export.kind == EXECUTABLE for export, _ in files)
        logger.info("%d executables are exported to %s", count, root)
        return count

    def _add(self, export: _Export) -> None:
        with self._lock:
            self._exports[export.kind, export.key.program, export.key.digest] = export


def _packed(export: _Export) -> bytes | None:
    """Returns the bytes of a file; None if it cannot be written, which is logged."""
    source = export.source()
    if source is None:  # its model is gone
        return None
    why = export.obstacle
    if why is None:
        try:
            return _bytes_of(export, source)
        except Exception as error:  # of XLA and pickle: kinds that cannot be written
            why = str(error) or repr(error)
    if export.kind == EXECUTABLE:
        logger.info("%s of %r is not exported: %s", export.key.program, export.key.model, why)
    return None


def _bytes_of(export: _Export, source: Any) -> bytes:  # a compiled program, or facts of stages
    devices = export.devices
    content = source
    if export.kind == EXECUTABLE:
        content = serialize(source, tuple(device.id for device in devices))
        # XLA also writes executables that it cannot read. An error now is better than one then;
        # for a target, reading would take its device.
        if not is_described(devices[0]):
            from_bytes(content.data, content.in_tree, content.out_tree, content.numbers, devices)
    header = Header(
        kind=export.kind,
        key=export.key,
        environment=environment(devices[0]),
        layers=export.layers,
        unroll=None if export.form is None else export.form.unroll,
    )
    return export_file.pack(header, content)


def _name(export: _Export) -> str:
    slug = "".join(c if c.isalnum() else "_" for c in export.key.program)[:80]
    return f"{slug}-{export.kind}-{export.key.digest}{export_file.SUFFIX}"
