"""Executables that another process has exported, looked up by the keys of programs.

load(directory)         reads the headers of files for this environment
executable(wanted)      equal in every field  ->  read, verified, on the plan's devices
form(key), stages(key)  the facts that a runner needs of programs that were not traced
                        missing, damaged, refused by XLA  ->  None, and it is compiled
"""

import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax

from millrace._compat.jax_executables import sizes_of
from millrace.base.records.compilation import Aspect, Origin, ProgramKey
from millrace.base.records.printable import printable
from millrace.compilation.cache.entry import DamagedEntryError
from millrace.compilation.cache.private import NotPrivateError, check_private, read_private
from millrace.compilation.executables.compile import CompileResult
from millrace.compilation.executables.executable import Executable, logged
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.sharing import Numbers, SerializedExecutable, remember
from millrace.compilation.executables.wanted import Wanted
from millrace.compilation.explain.diagnose import explain, history
from millrace.compilation.export import file as export_file
from millrace.compilation.export.file import EXECUTABLE, STAGES, Header, differences, environment
from millrace.compilation.export.read_ahead import Devices, ExportedFile, ReadAhead, Ready, loaded
from millrace.errors import OptionError
from millrace.programs.plan import LoopForm

logger = logging.getLogger("millrace")

UNROLLED = "steps in unrolled code"  # the one field that differs between programs of a plan
_LONGEST = 1000  # characters of a file that are shown

Taken = TypeVar("Taken")


class Exported:
    """The exported executables that one strategy has loaded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[tuple[str, str, str], ExportedFile] = {}  # by kind, program and digest
        self._forms: dict[str, tuple[ProgramKey, LoopForm]] = {}  # by the digest of a plan
        self._explained: set[str] = set()  # programs whose missing file was explained
        self._ahead = ReadAhead()

    @property
    def is_empty(self) -> bool:
        """Whether no file was loaded."""
        return not self._files

    def load(self, directory: str | os.PathLike[str], devices: Sequence[jax.Device]) -> int:
        """Registers a directory's files, and returns the number for this environment.

        Args:
            directory: of an export.
            devices: of the strategy.

        Raises:
            OptionError: if it is not a directory, or others can write to it or to one of its files.
        """
        root = pathlib.Path(directory).expanduser().absolute()
        if not root.is_dir():
            raise OptionError(
                "load_executables() takes a directory that export_executables() has written. "
                f"Received: {os.fspath(directory)!r}, which is not a directory."
            )
        try:
            check_private(root)
            files = list(_files(root))
        except NotPrivateError as error:
            raise OptionError(
                "load_executables() runs code from the files of an export, and another user could "
                f"have written it. {error}; or export to another directory."
            ) from None
        here, others = environment(devices[0]), list[Header]()
        usable = list[ExportedFile]()
        for file in files:
            if file.header.environment == here:
                self._add(file)
                usable.append(file)
            else:
                others.append(file.header)
        self._ahead.read(usable, devices)
        count = sum(file.header.kind == EXECUTABLE for file in usable)
        if others:
            what = printable("; ".join(differences(others[0].environment, here))[:_LONGEST])
            logger.warning(
                "%d files in %s are not for this environment, and their programs are compiled "
                "here: %s. Export them where these are equal.", len(others), root, what
            )  # fmt: skip
        logger.info("%d executables in %s can be loaded", count, root)
        return count

    def executable(self, wanted: Wanted, log: CompileLog) -> Executable | None:
        """Returns the executable of a program, if it was exported, and adds a record to `log`."""
        file = None if wanted.obstacle else self._find(EXECUTABLE, wanted.key)
        if file is None:
            return None
        began, begin = time.time(), time.perf_counter()
        compiled = self._content(file, lambda content: _on_devices(content, file, wanted.devices))
        if compiled is None:
            return None
        seconds, reason = time.perf_counter() - begin, log.reason(wanted)
        with log.attempt(reason):
            history.add(wanted.key, "")
        layers, sizes = file.header.layers, sizes_of(compiled)
        result = CompileResult(compiled, Origin.LOADED, reason.cause, layers, sizes, seconds)
        return logged(wanted, result, reason.is_again, log, began)

    def form(self, key: ProgramKey) -> LoopForm | None:
        """Returns the loop form of the programs of a plan, if one of them was exported.

        Args:
            key: of any program of the plan.
        """
        plan_key = _of_plan(key)
        exported_key, form = self._forms.get(plan_key.digest, (None, None))
        if exported_key is None or _fields(exported_key) != _fields(plan_key):
            return None
        return form

    def stages(self, key: ProgramKey) -> Any:
        """Returns the facts of the stages of a pipeline, if they were exported."""
        file = self._find(STAGES, key)
        return None if file is None else self._content(file, lambda content: content)

    def _add(self, file: ExportedFile) -> None:
        header = file.header
        with self._lock:
            self._files[header.kind, header.key.program, header.key.digest] = file
            if header.kind == EXECUTABLE:
                plan = _of_plan(header.key)
                self._forms[plan.digest] = plan, LoopForm(header.unroll)

    def _find(self, kind: str, key: ProgramKey) -> ExportedFile | None:
        """Returns the file whose key is equal in every field, not in its digest alone."""
        if not key.is_complete:
            return None
        file = self._files.get((kind, key.program, key.digest))
        if file is not None and _fields(file.header.key) == _fields(key):
            return file
        if self._files:
            self._explain(kind, key)
        return None

    def _explain(self, kind: str, key: ProgramKey) -> None:
        """Warns, once for each program, why none of the files of its name is used."""
        with self._lock:
            if key.program in self._explained:
                return
            files = [
                f for (k, name, _), f in self._files.items() if (k, name) == (kind, key.program)
            ]
            if not files:
                return
            self._explained.add(key.program)
        keys = [file.header.key for file in files]
        same_model = [other for other in keys if other.model == key.model] or keys
        cause = explain(key.without_identity, [other.without_identity for other in same_model])
        logger.warning(
            "%s of %r is not as it was exported, and is compiled: %s. %s",
            key.program, key.model, printable(cause.text), cause.remedy,
        )  # fmt: skip

    def _content(self, file: ExportedFile, take: Callable[[Any], Taken]) -> Taken | None:
        """Returns the result of `take` for a file's content; None, with a warning, if it fails."""
        try:
            ready = self._ahead.take(file)
            if ready is None:
                return take(export_file.unpack(read_private(file.path), file.header))
            return take(ready)
        except Exception as error:  # of XLA, of pickle, of the file system, of ours
            header = file.header
            with self._lock:
                self._files.pop((header.kind, header.key.program, header.key.digest), None)
            logger.warning(
                "%s cannot be used, and %s of %r is compiled: %s",
                file.path, header.key.program, header.key.model, str(error) or repr(error),
            )  # fmt: skip
            return None


def _files(root: pathlib.Path) -> Iterable[ExportedFile]:
    for path in sorted(root.glob(f"*{export_file.SUFFIX}")):
        try:
            yield ExportedFile(path, export_file.read_header(path))
        except (OSError, DamagedEntryError) as error:
            logger.warning("%s cannot be used: %s", path, error)


def _on_devices(
    content: Ready | SerializedExecutable, file: ExportedFile, devices: Devices
) -> jax.stages.Compiled:
    """Returns a file's executable for devices of this process."""
    if isinstance(content, Ready) and content.devices == devices:
        compiled = content.compiled
    else:
        source = content.source if isinstance(content, Ready) else content
        compiled = loaded(source, devices)

    def again(_: jax.stages.Compiled, __: Numbers) -> SerializedExecutable:
        return export_file.unpack(read_private(file.path), file.header)

    remember(compiled, again)
    return compiled


def _of_plan(key: ProgramKey) -> ProgramKey:
    """Returns the common part of the keys of all programs of a plan."""
    fields = tuple(field for field in key.fields if field.name != UNROLLED)
    return replace(key, program="", fields=fields)


def _fields(key: ProgramKey) -> dict[tuple[Aspect, str], str]:
    return {(field.aspect, field.name): field.value for field in key.without_identity.fields}
