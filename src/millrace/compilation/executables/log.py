"""The compile log of a strategy, and its records."""

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from millrace._compat.jax_executables import Sizes
from millrace.base.options import RecompilePolicy
from millrace.base.records.compilation import Cause, CompileRecord, Origin
from millrace.base.records.compile_table import CompileRecords
from millrace.base.records.memory_report import BudgetChoice
from millrace.base.records.sinks import RecordSink
from millrace.base.threads.scoped_value import ScopedValue
from millrace.compilation.cache.listeners import listeners
from millrace.compilation.executables import phases
from millrace.compilation.executables.trials import NewExecutable, Trial, Trials
from millrace.compilation.executables.wanted import Group, LoggedProgram
from millrace.compilation.explain.diagnose import explain, history
from millrace.errors import RecompilationError
from millrace.programs.plan import Plan


def record_of(
    program: LoggedProgram,
    origin: Origin,
    cause: Cause,
    is_recompilation: bool,
    sizes: Sizes,
    *,
    began: float,
    compile_seconds: float,
    trace_seconds: float = 0.0,
    lower_seconds: float = 0.0,
) -> CompileRecord:
    """Returns the record of an executable; see `CompileRecord`."""
    return CompileRecord(
        model=program.key.model,
        program=program.key.program,
        batch=program.batch,
        capacity=program.capacity,
        unrolled=program.unrolled,
        trace_seconds=trace_seconds,
        compile_seconds=compile_seconds,
        temporary_bytes=sizes.temporary_bytes,
        peak_bytes=sizes.peak_bytes,
        lower_seconds=lower_seconds,
        origin=origin,
        key=program.key.digest,
        cause=cause.text,
        remedy=cause.remedy,
        is_recompilation=is_recompilation,
        code_bytes=sizes.code_bytes,
        began=began,
    )


logger = logging.getLogger("millrace")


ExecutableObserver = Callable[[NewExecutable], object]
_OFTEN = 8  # recompilations of one program of a model, after which a warning is logged once


class Reason(NamedTuple):
    """Why a program is compiled, and whether it is a recompilation.

    A recompilation is the compilation of a program in one of whose groups another one was compiled
    before.
    """

    cause: Cause
    is_again: bool
    new: frozenset[Group]  # groups of the program in which none was compiled before


class CompileLog:
    """The compilations of one strategy, and its policy for recompilations."""

    def __init__(
        self,
        on_recompile: RecompilePolicy = RecompilePolicy.LOG,
        records: RecordSink | None = None,
        is_dry_run: bool = False,
    ):
        """Begins an empty log.

        Args:
            on_recompile: whether a recompilation is logged, warned of or refused.
            records: takes the records, too, one by one.
            is_dry_run: whether its executables are never run.
        """
        # The position of the running loop in its data: "batch 3 of epoch 1".
        self.position: Callable[[], str] = str
        self.on_recompile = on_recompile
        self.is_dry_run = is_dry_run
        # Called with every executable, after its record was added.
        self.observers: list[ExecutableObserver] = []
        self.search_seconds = 0.0  # of searches among programs, besides those of the records
        self.planning_seconds = 0.0  # of searches, with those of the records
        self.ahead_seconds = 0.0  # of the plan of a fit that is about to begin
        self._trials = Trials(self._show)
        self.budgets: list[BudgetChoice] = []  # choices of recomputation budgets, in order
        self._sink = records
        self._records: list[CompileRecord] = []
        self._lock = threading.Lock()
        self._groups: set[Group] = set()
        self._quiet = 0  # nesting of no_recompile()
        self._running: str | None = None  # the function that ran last
        self._switches: dict[tuple[str, str], int] = {}  # indices of records

    @property
    def records(self) -> CompileRecords:
        """All records, in order."""
        with self._lock:
            return CompileRecords(self._records)

    @property
    def length(self) -> int:
        """Number of records."""
        return len(self._records)

    @property
    def executables(self) -> tuple[CompileRecord, ...]:
        """The records of executables, in order; without those of switches."""
        return tuple(record for record in self.records if record.is_executable)

    @property
    def seconds(self) -> float:
        """Seconds spent on all executables, and on the choice among them."""
        return sum(record.seconds for record in self.executables) + self.search_seconds

    @property
    def switches(self) -> int:
        """Number of switches from one function to another."""
        return sum(each.count for each in self.records if each.origin is Origin.SWITCH)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Surrounds a search among programs, all of whose time counts as compilation."""
        begin, before = time.perf_counter(), self.seconds
        try:
            yield
        finally:
            took = time.perf_counter() - begin
            self.planning_seconds += took
            self.search_seconds += max(took - (self.seconds - before), 0.0)

    @contextlib.contextmanager
    def no_recompile(self) -> Iterator[None]:
        """Surrounds code that must not compile anything."""
        with self._lock:
            self._quiet += 1
        try:
            yield
        finally:
            with self._lock:
                self._quiet -= 1

    def begin(self, what: str) -> None:
        """Checks that a program may be traced and compiled now.

        Raises:
            RecompilationError: within `no_recompile()`.
        """
        if self._quiet:
            raise RecompilationError(
                f"{what} would be compiled within no_recompile()"
                f"{_after(', at ', self.position())}. Run it once before (a model's loops: "
                "model.precompile(batch_spec)), and keep the shapes of the data the same."
            )

    def reason(self, program: LoggedProgram) -> Reason:
        """Returns why a program is compiled."""
        with self._lock:
            new = program.groups - self._groups
        key = program.key
        cause = explain(key, history.keys(key.program), self.position())
        return Reason(cause, new != program.groups, new)

    @contextlib.contextmanager
    def attempt(self, reason: Reason) -> Iterator[None]:
        """Surrounds the work on a program; after a failed first attempt the next is the first."""
        with self._lock:
            self._groups |= reason.new
        try:
            yield
        except BaseException:
            with self._lock:
                self._groups -= reason.new
            raise

    def allow(self, what: str, cause: Cause, again: bool) -> None:
        """Applies the user's policy to a recompilation, before it takes place.

        Raises:
            RecompilationError: if the policy refuses it.
        """
        if not again or self.is_dry_run or self.on_recompile is RecompilePolicy.LOG:
            return
        text = f"{what} is compiled again: {cause.text}.{_after(' ', cause.remedy)}"
        if self.on_recompile is RecompilePolicy.ERROR:
            raise RecompilationError(
                f"{text} on_recompile='error' refuses it. Set on_recompile='warn' to continue."
            )
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def add(self, record: CompileRecord) -> None:
        """Adds a record, and logs it."""
        with self._lock:
            self._records.append(record)
            self._write(record)
        if not self.is_dry_run:
            for listener in listeners():
                listener.compiled(record)
        logger.info("%s", sentence(record))
        phases.loaded(record)
        if not self.is_dry_run and record.is_recompilation:
            self._warn_if_often(record)

    def trying(self, plan: Plan, model: str) -> contextlib.AbstractContextManager[Trial]:
        """Surrounds a search among plans: only executables of the chosen one are to run.

        Args:
            plan: of the programs; its recomputation does not count.
            model: name of their model.
        """
        return self._trials.of(plan, model)

    def observe(self, executable: NewExecutable) -> None:
        """Shows an executable to all observers; one of a search when that ends."""
        if self.observers:
            self._trials.add(executable)

    def _show(self, executable: NewExecutable) -> None:
        for observer in self.observers:
            observer(executable)

    def add_budget(self, choice: BudgetChoice) -> None:
        """Adds the choice of a recomputation budget."""
        self.budgets.append(choice)
        if self._sink is not None:
            self._sink.add(choice)

    def _warn_if_often(self, record: CompileRecord) -> None:
        names = record.model, record.program
        recompilations = [
            each
            for each in self.executables
            if each.is_recompilation and (each.model, each.program) == names
        ]
        if len(recompilations) == _OFTEN:
            logger.warning(
                "%s%s was compiled again %d times, in %.1f s. The last time because of %s. %s",
                record.program,
                _after(" of ", record.model and repr(record.model)),
                _OFTEN,
                sum(each.seconds for each in recompilations),
                record.cause,
                record.remedy,
            )

    def runs(self, name: str) -> None:
        """Records that a function runs; it is a switch where another one ran before."""
        if self._running == name:
            return
        with self._lock:
            before, self._running = self._running, name
            if before is None or before == name:
                return
            pair = (before, name)
            index = self._switches.get(pair)
            if index is not None:
                switch = self._records[index]
                self._records[index] = replace(switch, count=switch.count + 1)
                return
            self._switches[pair] = len(self._records)
            record = _switch(*pair)
            self._records.append(record)
            self._write(record)

    def close(self) -> None:
        """Writes the counts of switches, at the end of a loop."""
        with self._lock:
            for index in self._switches.values():
                self._write(self._records[index])

    def _write(self, record: CompileRecord) -> None:
        if self._sink is not None:
            self._sink.add(record)


def sentence(record: CompileRecord) -> str:
    """Returns a record as a line of text."""
    if not record.is_executable:
        return f"switched {record.cause}"
    how = {
        Origin.COMPILED: "compiled",
        Origin.CACHE: "read from the cache",
        Origin.SHARED: "shared with an equal program",
        Origin.LOADED: "loaded",
    }[record.origin]
    parts = f"trace {record.trace_seconds:.2f}, lower {record.lower_seconds:.2f}"
    owner = f" of {record.model!r}" if record.model else ""
    return (
        f"{record.program}{owner}: {how} in {record.seconds:.2f} s ({parts}, XLA "
        f"{record.compile_seconds:.2f}), peak {record.peak_bytes:,} bytes: {record.cause}"
        f"{_after('. ', record.remedy)}"
    )


def _switch(before: str, after: str) -> CompileRecord:
    return CompileRecord(
        model="",
        program=after,
        batch="",
        capacity=0,
        unrolled=None,
        trace_seconds=0.0,
        compile_seconds=0.0,
        temporary_bytes=0,
        origin=Origin.SWITCH,
        cause=f"from {before} to {after}",
        began=time.time(),
    )


def _after(separator: str, text: str) -> str:
    return f"{separator}{text}" if text else ""


without_strategy = CompileLog()  # of functions and loops that are called outside of strategies
_log = ScopedValue(without_strategy)


def logging_to(log: CompileLog) -> contextlib.AbstractContextManager[Any]:
    """Surrounds code whose compilations are logged in `log`, in this thread."""
    return _log.bound_to(log)


def current_log() -> CompileLog:
    """Returns the log of this thread."""
    return _log.get()
