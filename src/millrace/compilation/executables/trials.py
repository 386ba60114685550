"""New executables, and searches in which several are compiled and compared, and one of them runs.

with trials.of(plan) as trial:     executables of such plans wait
    ...
    trial.chosen = plan            it is shown as one that runs, all others as trials
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from millrace.base.records.compilation import CompileRecord
from millrace.programs.plan import Plan, with_micro_batch


@dataclass(frozen=True, slots=True)
class NewExecutable:
    """An executable that was made, read or shared, for those who look into it."""

    record: CompileRecord
    executable: Callable[..., Any]
    model: keras.Model | None = None  # called by the program, if any
    plan: Plan | None = None  # of a model's program
    source: object = None  # as in `Program`
    is_trial: bool = False  # whether it was compiled for comparison, and never runs


@dataclass
class Trial:
    """A search among plans that differ in their micro-batches, or in what they recompute."""

    plan: Plan
    model: str
    chosen: Plan | None = None  # None if none of them will run
    waiting: list[NewExecutable] = field(default_factory=list[NewExecutable])

    def has(self, new: NewExecutable) -> bool:
        """Whether an executable belongs to the search."""
        if new.plan is None or new.model is None or new.model.name != self.model:
            return False
        return _common(new.plan) == _common(self.plan)

    def ended(self) -> Iterator[NewExecutable]:
        """Yields the executables of the search, of which only those of the chosen plan will run."""
        chosen = None if self.chosen is None else _differing(self.chosen)
        for new in self.waiting:
            yield replace(new, is_trial=new.plan is None or _differing(new.plan) != chosen)


class Trials:
    """The searches that are under way, in any thread."""

    def __init__(self, show: Callable[[NewExecutable], object]):
        """Begins without a search.

        Args:
            show: called with each executable; with one of a search when that ends.
        """
        self._show = show
        self._lock = threading.Lock()
        self._running: list[Trial] = []

    def add(self, new: NewExecutable) -> None:
        """Shows an executable, or keeps it until its search ends."""
        with self._lock:
            trial = next((trial for trial in self._running if trial.has(new)), None)
            if trial is not None:
                trial.waiting.append(new)
                return
        self._show(new)

    @contextlib.contextmanager
    def of(self, plan: Plan, model: str) -> Iterator[Trial]:
        """Surrounds a search.

        Args:
            plan: of the programs; its micro-batches and recomputation do not count.
            model: name of their model.
        """
        trial = Trial(plan, model)
        with self._lock:
            self._running.append(trial)
        try:
            yield trial
        finally:
            with self._lock:
                self._running.remove(trial)
            for new in trial.ended():
                self._show(new)


def _common(plan: Plan) -> Any:
    """Returns what the plans of a search have in common, those of all stages included."""
    plan = with_micro_batch(plan, "auto")
    return replace(plan, recompute=None, group=None, chooses_rows=False)  # type: ignore[arg-type]


def _differing(plan: Plan) -> Any:
    return plan.recompute, plan.accumulation.micro_batch
