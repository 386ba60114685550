"""Trial executables: several are compiled and compared, and one of them runs.

with trials.of(plan) as trial:     executables of such plans wait
    ...
    trial.chosen = plan            it is shown as one that runs, all others as trials
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import keras

from millrace.programs.plan import Plan, with_micro_batch


class PlannedExecutable(Protocol):
    """An executable with its plan."""

    @property
    def model(self) -> keras.Model | None:
        """The model that it calls."""
        ...

    @property
    def plan(self) -> Plan | None:
        """Of its program."""
        ...


@dataclass
class Trial:
    """A search among plans that differ in their micro-batches, or in what they recompute."""

    plan: Plan
    model: str
    chosen: Plan | None = None  # None if none of them will run
    waiting: list[Any] = field(default_factory=list[Any])

    def has(self, plan: Plan | None, model: keras.Model | None) -> bool:
        """Whether an executable belongs to the search."""
        if plan is None or model is None or model.name != self.model:
            return False
        return _common(plan) == _common(self.plan)

    def is_chosen(self, plan: Plan) -> bool:
        """Whether an executable of this plan will run."""
        return self.chosen is not None and _differing(plan) == _differing(self.chosen)


class Trials:
    """The searches that are under way, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Trial] = []

    def keeps(self, executable: PlannedExecutable) -> bool:
        """Whether an executable belongs to a search, which shows it when it ends."""
        with self._lock:
            for trial in self._running:
                if trial.has(executable.plan, executable.model):
                    trial.waiting.append(executable)
                    return True
        return False

    @contextlib.contextmanager
    def of(self, plan: Plan, model: str, show: Callable[[Any, bool], object]) -> Iterator[Trial]:
        """Surrounds a search.

        Args:
            plan: of the programs; its micro-batches and recomputation do not count.
            model: name of their model.
            show: called at the end with each executable, and whether it is a mere trial.
        """
        trial = Trial(plan, model)
        with self._lock:
            self._running.append(trial)
        try:
            yield trial
        finally:
            with self._lock:
                self._running.remove(trial)
            for each in trial.waiting:
                show(each, not trial.is_chosen(each.plan))


def _common(plan: Plan) -> Any:
    """Returns what the plans of a search have in common, those of all stages included."""
    plan = with_micro_batch(plan, "auto")
    return replace(plan, recompute=None, group=None, chooses_rows=False)  # type: ignore[arg-type]


def _differing(plan: Plan) -> Any:
    return plan.recompute, plan.accumulation.micro_batch
