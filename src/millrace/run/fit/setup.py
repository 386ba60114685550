"""The choices of the user for one model, their consequences, and the rules that they must keep.

options, stages, devices -> device groups, replicas, steps of an update, what is offloaded
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import keras

from millrace._compat.jax_targets import belongs_here, is_described
from millrace._compat.keras_data import DataAdapter
from millrace.base.devices import DeviceGroup, share_out
from millrace.base.options import Accumulation, MetricReduction, Offload, Options
from millrace.programs.feeds.block import Destination
from millrace.programs.plan import Mode
from millrace.run.fit.checks import (
    check_data,
    check_micro_batch,
    check_model,
    check_steps,
    check_steps_per_execution,
    check_synchronized,
    log_replicas,
    shortened_to_stop,
)
from millrace.run.fit.offloading import check_offload, offload_in_force
from millrace.run.fit.pipelined_model import (
    StageAssignment,
    check_number_of_stages,
    check_pipeline,
    groups_needed,
)


class Rules:
    """Rules that a loop keeps. A package with other rules derives from these."""

    runs_uncompiled = True  # whether Keras's own loop may run models that are not to be compiled

    def devices_of_replica(self, stages: int, mapping: Sequence[int], number: int) -> int:
        """Returns how many devices one replica of a pipeline takes.

        Args:
            stages: their number.
            mapping: the device of each within a replica.
            number: of devices of the strategy.

        Raises:
            PlanError: if they do not fit together.
        """
        return groups_needed(stages, mapping, number)

    def check(self, setup: "Setup", mode: Mode) -> None:
        """Refuses more than `Setup.check` does, before anything is compiled."""

    def arguments(self, setup: "Setup", arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the arguments of Keras's epoch iterator, with other data where it is needed."""
        del setup
        return arguments

    def check_built(self, setup: "Setup") -> None:
        """Refuses more, or prepares more, once the model is built."""

    def check_data(
        self, setup: "Setup", mode: Mode, adapter: DataAdapter, arguments: Mapping[str, Any]
    ) -> None:
        """Refuses unsuitable data.

        Args:
            setup: of the model.
            mode: of the loop.
            adapter: Keras's, of the data.
            arguments: of Keras's epoch iterator.
        """
        check_data(adapter, arguments.get("steps_per_epoch") or adapter.num_batches, mode)

    def replicas_as_one(self, setup: "Setup") -> int:
        """Returns the replicas of whose batches `steps_per_execution` counts those of one."""
        return 1

    def steps_of_epoch(self, setup: "Setup", mode: Mode, steps: int) -> int:
        """Returns how many of the steps of an epoch are run.

        Args:
            setup: of the model.
            mode: of the loop.
            steps: that the data has, or that the loop is to run.
        """
        return steps

    def steps_of_execution(
        self,
        setup: "Setup",
        mode: Mode,
        steps_per_execution: int,
        steps: int | None,
        rows: int | None,
    ) -> int:
        """Returns the steps of a full execution.

        Args:
            setup: of the model.
            mode: of the loop.
            steps_per_execution: as compiled.
            steps: of the epoch; None if unknown.
            rows: of one batch; None if unknown.

        Raises:
            PlanError: if executions and updates do not fit together.
        """
        replicas, accumulation = setup.replicas, setup.accumulation
        full = check_steps(accumulation, mode, steps_per_execution, steps, replicas)
        if mode is Mode.TRAIN and replicas > 1:
            log_replicas(setup.model.name, replicas, accumulation, rows)
        return full


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Setup:
    """All that decides how the loops of one model run. Another choice is another setup."""

    model: keras.Model
    devices: tuple[jax.Device, ...]  # of the strategy
    stages: StageAssignment
    options: Options = field(default_factory=Options)
    rules: Rules = field(default_factory=Rules)

    @property
    def groups(self) -> tuple[DeviceGroup, ...]:
        """The groups of devices that the model runs on: one, or as many as its pipeline takes.

        Raises:
            PlanError: if the devices are not a whole number of replicas.
        """
        assignment = self.stages.assignment()
        size = 1
        if assignment is not None:
            mapping = self.options.pipelining.devices_of(assignment.num_stages)
            size = self.rules.devices_of_replica(assignment.num_stages, mapping, len(self.devices))
        return share_out(self.devices, size)

    @property
    def replicas(self) -> int:
        """Copies of the model, each with a batch of its own in every step."""
        return self.groups[0].replicas

    @property
    def destination(self) -> Destination:
        """The devices for blocks of batches; a pipeline cuts them up in host memory."""
        is_pipelined = self.stages.assignment() is not None
        return Destination(self.groups[0], stays_on_host=is_pipelined)

    @property
    def spans_processes(self) -> bool:
        """Whether some devices of the strategy belong to other processes."""
        return _are_elsewhere(self.devices)

    @property
    def is_described(self) -> bool:
        """Whether the devices are those of a target, for which programs are compiled only."""
        return is_described(self.devices[0])

    @property
    def accumulation(self) -> Accumulation:
        """The accumulation of one update; a pipeline has separate options for it.

        Of one step where its micro-batches are computed as one batch.
        """
        accumulation = self.accumulation_as_set
        if self.merges(Mode.TRAIN) > 1:
            return replace(accumulation, steps=1)
        return accumulation

    @property
    def accumulation_as_set(self) -> Accumulation:
        """The accumulation in micro-batches, even where those of an update are computed as one."""
        own = self.options.pipelining.accumulation
        if own is None or (self.stages.assignment() is None and self.model.built):
            return self.options.accumulation
        return replace(own, micro_batch=self.options.accumulation.micro_batch)

    @property
    def shares_statistics(self) -> bool:
        """Whether the batches of an update share the statistics of BatchNormalization."""
        accumulation = self.accumulation_as_set
        is_several = accumulation.steps * self.replicas > 1
        return accumulation.synchronized_statistics and is_several

    def merges(self, mode: Mode) -> int:
        """Returns the number of micro-batches that a step computes as one batch."""
        accumulation = self.accumulation_as_set
        is_merged = mode is Mode.TRAIN and accumulation.synchronized_statistics
        return accumulation.steps if is_merged else 1

    @property
    def stop_within(self) -> int | None:
        """Steps of training after which it may be stopped.

        Raises:
            PlanError: if that would be within an update.
        """
        stop_within, merges = self.options.stop_within, self.merges(Mode.TRAIN)
        if stop_within is None or merges == 1:
            return stop_within
        shortened_to_stop(stop_within + 1, stop_within, merges * self.replicas)
        return stop_within // merges

    def steps_per_execution(self, mode: Mode) -> int:
        """Returns the steps of one execution, of all replicas together; 1 before `compile()`."""
        if not self.model.compiled:
            return 1
        steps = self.model.steps_per_execution * self.rules.replicas_as_one(self)
        return max(steps // self.merges(mode), 1)

    def update_steps(self, mode: Mode) -> int:
        """Steps of one update; outside of training, one step of each replica."""
        return self.replicas * (self.accumulation.steps if mode is Mode.TRAIN else 1)

    @property
    def offload(self) -> Offload:
        """The offloading of training, each option True or False."""
        is_pipelined = self.stages.assignment() is not None
        return offload_in_force(self.options.offload, self.accumulation, is_pipelined, self.devices)

    @property
    def reports_each_replica(self) -> bool:
        """Whether logs are those of single replicas, not of the metrics over all batches."""
        return self.options.replication.metrics is not MetricReduction.MEAN and self.replicas > 1

    def check(self, mode: Mode) -> None:
        """Refuses options and models that do not go together, before anything is compiled.

        Raises:
            MillraceError: of the class for the mistake.
        """
        check_steps_per_execution(self.model)
        assignment = self.stages.assignment()
        if assignment is not None and mode is Mode.TRAIN:
            check_number_of_stages(self.options.pipelining, assignment.num_stages)
        replicas = self.replicas
        self.rules.check(self, mode)
        accumulation = self.accumulation_as_set
        check_model(self.model, mode, accumulation, assignment is not None, replicas)
        if mode is Mode.TRAIN:
            check_synchronized(self.model, self.options, assignment is not None)
            check_offload(self.options.offload, self.options.replication, self.devices)
            check_micro_batch(
                self.model.name,
                self.options.accumulation.micro_batch,
                assignment is not None,
                self.spans_processes,
            )
        if assignment is None and self.options.pipelining.steps is not None:
            self.stages.check_readable()
        if assignment is not None:
            check_pipeline(self.model, assignment, self.options.pipelining, len(self.groups), mode)


@functools.lru_cache(maxsize=64)  # asked for in each execution
def _are_elsewhere(devices: tuple[jax.Device, ...]) -> bool:
    return not all(map(belongs_here, devices))
