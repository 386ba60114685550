"""A thread that reads exported executables while their model is still being built.

    load_executables()   starts a thread, which begins with the files in order
    build the model      ... the thread reads, verifies, and passes machine code to XLA
    fit                  takes a file that is ready, waits for it, or reads it itself

On two cores the executable of ResNet50 is ready when its layers are (`benchmarks/start_up.py`).
"""

import contextlib
import pathlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from millrace._compat.jax_executables import from_bytes
from millrace.compilation.cache.private import read_private
from millrace.compilation.executables.sharing import SerializedExecutable
from millrace.compilation.export import file as export_file
from millrace.compilation.export.file import EXECUTABLE, Header

MAX_BYTES = 256 * 2**20  # of files that are read ahead; others are read when they are needed
Devices = tuple[jax.Device, ...]


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of an export."""

    path: pathlib.Path
    header: Header


@dataclass(frozen=True, slots=True)
class Ready:
    """An executable that can be called."""

    source: SerializedExecutable
    compiled: jax.stages.Compiled
    devices: Devices


class ReadAhead:
    """The contents of files, until they are needed."""

    def __init__(self) -> None:
        self._begun: dict[pathlib.Path, Future[Any]] = {}
        self._nbytes = 0

    def read(self, files: Sequence[ExportedFile], devices: Sequence[jax.Device]) -> None:
        """Begins to read files, in a thread that ends after the last one.

        Args:
            files: of this environment.
            devices: of the strategy; an executable is made for those with the same ids.
        """
        pool = ThreadPoolExecutor(1, "millrace-read-ahead")
        for file in files:
            with contextlib.suppress(OSError):
                self._nbytes += file.path.stat().st_size
            if self._nbytes > MAX_BYTES:
                break
            self._begun[file.path] = pool.submit(_content, file, tuple(devices))
        pool.shutdown(wait=False)

    def take(self, file: ExportedFile) -> Any:
        """Returns a file's content, `Ready` if it is an executable; None if it was not begun."""
        begun = self._begun.pop(file.path, None)
        # A file that is still waiting is read sooner by the caller.
        return None if begun is None or begun.cancel() else begun.result()


def loaded(source: SerializedExecutable, devices: Devices) -> jax.stages.Compiled:
    """Returns an executable for devices of this process."""
    return from_bytes(source.data, source.in_tree, source.out_tree, source.numbers, devices)


def _content(file: ExportedFile, devices: Devices) -> Any:
    content = export_file.unpack(read_private(file.path), file.header)
    by_number = {device.id: device for device in devices}
    if file.header.kind != EXECUTABLE or not set(content.numbers) <= set(by_number):
        return content
    placed = tuple(by_number[number] for number in content.numbers)
    return Ready(content, loaded(content, placed), placed)
