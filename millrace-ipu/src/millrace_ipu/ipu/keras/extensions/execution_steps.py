"""The batches of an execution, and those of an epoch.

                            release 2.4              2.5 and later
steps_per_epoch             all replicas             all replicas; what is over is left out
steps_per_execution         all replicas             one replica
    a multiple of           replicas x accumulation  accumulation
    a divisor of            steps_per_epoch          steps_per_epoch // replicas

In evaluate and predict there is no accumulation, but a pipeline runs several micro-batches at once.
An error has all numbers, and values that work.
"""

import logging
from dataclasses import dataclass

from millrace.errors import DataError, PlanError
from millrace.extend import Mode, Setup, factors
from millrace_ipu.ipu.keras.extensions.settings import Settings
from millrace_ipu.ipu.ops.schedules import concurrent_micro_batches
from millrace_ipu.ipu.release import VARIABLE, counts_one_replica
from millrace_ipu.tensorflow.no_operation import notes

logger = logging.getLogger("millrace")
_NAMES = {Mode.TRAIN: "steps_per_epoch", Mode.TEST: "steps", Mode.PREDICT: "steps"}


def replicas_as_one(setup: Setup) -> int:
    """Returns the replicas of whose batches `steps_per_execution` counts those of one."""
    return setup.replicas if counts_one_replica() else 1


def steps_of_epoch(setup: Setup, mode: Mode, steps: int) -> int:
    """Returns the batches of an epoch, without those that are too few for all replicas.

    Args:
        setup: of the model.
        mode: of the loop.
        steps: batches that the data has, or that the program asks for.

    Raises:
        DataError: if some replicas would have none.
    """
    replicas = setup.replicas
    if not counts_one_replica() or steps % replicas == 0:
        return steps
    name = setup.model.name
    if steps < replicas:
        raise DataError(
            f"An epoch of {name!r} has {steps} batches, and each of {replicas} replicas takes one "
            f"at a time. Set {_NAMES[mode]} to {replicas} or more, with data of as many batches, "
            f"or auto_select_ipus to {steps} or fewer devices."
        )
    if notes.is_new(f"batches of {name}, {id(setup.model)}: {mode} {steps} {replicas}"):
        logger.warning(
            "An epoch of %r has %d batches for %d replicas, which take %d each. Left out "
            "at the end: %d.",
            name,
            steps,
            replicas,
            steps // replicas,
            steps % replicas,
        )
    return steps - steps % replicas


def steps_of_execution(
    setup: Setup, settings: Settings, mode: Mode, steps_per_execution: int, steps: int
) -> int:
    """Returns the batches of a full execution, of all replicas together.

    Args:
        setup: of the model.
        settings: of the model.
        mode: of the loop.
        steps_per_execution: as compiled.
        steps: of an epoch, from `steps_of_epoch`.

    Raises:
        PlanError: if an execution is no whole number of updates or of rounds of a pipeline.
        DataError: if an epoch is no whole number of executions.
    """
    counted = replicas_as_one(setup)
    numbers = _Numbers(setup, settings, mode, steps_per_execution, steps, counted)
    if numbers.taken % numbers.multiple:
        raise PlanError(numbers.message())
    if numbers.available % numbers.taken:
        raise DataError(numbers.message())
    return numbers.taken * counted


@dataclass(frozen=True)
class _Numbers:
    """The numbers of one loop, as `steps_per_execution` counts: of one replica, or of all."""

    setup: Setup
    settings: Settings
    mode: Mode
    steps_per_execution: int
    steps: int  # of an epoch, of all replicas
    counted: int  # replicas that are counted as one

    @property
    def available(self) -> int:
        """Batches of an epoch."""
        return self.steps // self.counted

    @property
    def taken(self) -> int:
        """Batches of an execution, which is no longer than the epoch."""
        return min(self.steps_per_execution, self.available)

    @property
    def at_once(self) -> int:
        """Micro-batches of a replica that an update takes, or that a pipeline runs at once."""
        if self.mode is Mode.TRAIN:
            return self.setup.accumulation.steps
        assignment = self.setup.stages.assignment()
        if assignment is None:
            return 1
        mapping = self.setup.options.pipelining.devices_of(assignment.num_stages)
        return concurrent_micro_batches(self.settings.schedule, mapping, training=False)

    @property
    def multiple(self) -> int:
        """The number of which an execution is a multiple."""
        return self.at_once * self.setup.replicas // self.counted

    def message(self) -> str:
        """Returns what is wrong with these numbers, and numbers that work."""
        shown = f"steps_per_execution={self.steps_per_execution}"
        if self.taken < self.steps_per_execution:
            shown += f", truncated to the {self.taken} steps of the epoch,"
        shown += f" of {self.setup.model.name!r}"
        if self.taken % self.multiple:
            wrong = f"{shown} must be {self._rule()}."
        else:
            per = " for each replica" if self.counted > 1 else ""
            steps = f"{self.available} steps{per}"
            wrong = f"The epoch has {steps}, which are not a multiple of {shown}."
        return f"{wrong} {self._counts()} {self._advice()}"

    def _rule(self) -> str:
        replicas, counts_one = self.setup.replicas, self.counted == self.setup.replicas
        if self.mode is Mode.TRAIN and self.at_once > 1:
            names, numbers = factors(self.setup.accumulation)
            if self.counted > 1:
                return f"a multiple of {names} = {numbers}"
            return f"a multiple of {names} x replicas = {numbers} x {replicas} = {self.multiple}"
        if self.at_once == 1:
            return f"a multiple of the number of replicas, {replicas}"
        assignment = self.setup.stages.assignment()
        stages = 1 if assignment is None else assignment.num_stages
        each = "" if counts_one else f" x replicas = {self.at_once} x {replicas} = {self.multiple}"
        return (
            f"a multiple of the {self.at_once} micro-batches that the schedule "
            f"{self.settings.schedule.name} with {stages} stages runs at once{each}"
        )

    def _counts(self) -> str:
        replicas = self.setup.replicas
        if replicas == 1:
            return f"An epoch has {self.steps} batches."
        if self.counted > 1:
            return (
                f"It counts the batches of one replica, of which an epoch of {self.steps} batches "
                f"has {self.available}, for {replicas} replicas. Release 2.4 counted those of "
                f"all: set {VARIABLE}=2.4 for its programs."
            )
        return (
            f"It counts the batches of all {replicas} replicas, as release 2.4 did; an epoch has "
            f"{self.steps}. Later releases count those of one: unset {VARIABLE} for their programs."
        )

    def _advice(self) -> str:
        values = _near(self.steps_per_execution, self.multiple, self.available)
        if values:
            return f"Set steps_per_execution to {' or '.join(map(str, values))} in compile()."
        whole = self.available - self.available % self.multiple
        whole = whole or self.multiple
        values = _near(min(self.steps_per_execution, whole), self.multiple, whole)
        total, name = whole * self.counted, _NAMES[self.mode]
        data = f"such as dataset.take({total})" if whole <= self.available else "more than now"
        return (
            f"Give an epoch {total} batches (where {name} is set, {name}={total}; else data of "
            f"{total} batches, {data}), and set steps_per_execution to "
            f"{' or '.join(map(str, values))} in compile()."
        )


def _near(wanted: int, multiple: int, total: int) -> list[int]:
    """Returns the multiples of a number that divide a total: the nearest below and above."""
    fitting = [n for n in range(multiple, total + 1, multiple) if total % n == 0]
    below = [n for n in fitting if n <= wanted][-1:]
    above = [n for n in fitting if n > wanted][:1]
    return below + above
