"""The options of `millrace simulate` that say what an update costs, and their meaning.

--costs RUN                          medians of a run, which the options below replace
--forward 1 --backward 2             tasks
--transfer 0.1                       or --transfer-bytes B --bandwidth B/s --latency s
--replicas 8 --gradient-bytes B      the sum of gradients, in a ring
"""

import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from millrace.base.records.run import load
from millrace.errors import OptionError
from millrace.run.schedules.costs import (
    StageCosts,
    UpdateCosts,
    equal_stages,
    ring_sum_time,
    transfer_time,
)
from millrace.run.schedules.task import Pass
from millrace.tools.cli.types import FiniteRange
from millrace.tools.reports.run_costs import RunCosts, costs_of_run

TIME = FiniteRange(0, min_open=True)
_FREE = FiniteRange(0)
_FORWARD, _BACKWARD = 1.0, 2.0
CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--costs",
        metavar="RUN",
        type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
        help="Directory of a run with records: take the medians of its tasks, transfers and "
        "updates, in seconds. Options that are given count instead.",
    ),
    click.option(
        "--forward", type=TIME, help=f"Time of one forward.  [default: {_FORWARD}, or of --costs]"
    ),
    click.option(
        "--backward",
        type=TIME,
        help=f"Time of one backward.  [default: {_BACKWARD}, or of --costs]",
    ),
    click.option(
        "--backward-input", type=TIME, help="Time of its half for inputs.  [default: half of it]"
    ),
    click.option(
        "--backward-weight", type=TIME, help="Time of its half for weights.  [default: half of it]"
    ),
    click.option(
        "--transfer",
        type=_FREE,
        help="Time of a transfer between two device groups.  [default: 0.0, or of --costs]",
    ),
    click.option(
        "--transfer-bytes",
        type=_FREE,
        help="Bytes of a transfer, which then takes --latency and its bytes over --bandwidth.",
    ),
    click.option("--bandwidth", type=TIME, help="Bytes in a unit of time, between two devices."),
    click.option(
        "--latency", type=_FREE, help="Time of a transfer besides its bytes.  [default: 0.0]"
    ),
    click.option("--dispatch", type=_FREE, help="Host time of each task.  [default: 0.0]"),
    click.option(
        "--shared-core",
        is_flag=True,
        help="Dispatch takes time of the core that computes, instead of going ahead of it.",
    ),
    click.option(
        "--transfer-work",
        type=_FREE,
        help="Time of that core for each transfer, on both sides; with --shared-core.",
    ),
    click.option("--update", type=_FREE, help="Time of the update.  [default: 0.0, or of --costs]"),
    click.option(
        "--replicas",
        type=click.IntRange(1),
        default=1,
        help="Replicas, which sum their gradients in a ring.",
        show_default=True,
    ),
    click.option("--gradient-bytes", type=TIME, help="Bytes of the gradients of one device group."),
    click.option(
        "--replica-bandwidth",
        type=TIME,
        help="Bytes in a unit of time, between replicas.  [default: --bandwidth]",
    ),
    click.option(
        "--replica-latency",
        type=_FREE,
        help="Time of a step of the ring besides its bytes.  [default: --latency]",
    ),
)


def cost_options(function: CommandFunction) -> CommandFunction:
    """Adds the options to a command, which gets them as `CostOptions(**options)`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The options as given."""

    costs: pathlib.Path | None
    forward: float | None
    backward: float | None
    backward_input: float | None
    backward_weight: float | None
    transfer: float | None
    transfer_bytes: float | None
    bandwidth: float | None
    latency: float | None
    dispatch: float | None
    shared_core: bool
    transfer_work: float | None
    update: float | None
    replicas: int
    gradient_bytes: float | None
    replica_bandwidth: float | None
    replica_latency: float | None

    def run(self) -> RunCosts | None:
        """Returns the costs of the run; None without `--costs`.

        Raises:
            DataError: if it has none.
        """
        return costs_of_run(load(self.costs)) if self.costs is not None else None

    def of(self, stages: int, run: RunCosts | None) -> UpdateCosts:
        """Returns the costs of an update.

        Args:
            stages: number of stages.
            run: the costs of the run.

        Raises:
            OptionError: if options do not go together.
        """
        self._check()
        return UpdateCosts(
            tasks=self._tasks(stages, run),
            transfer=self._transfer(run),
            transfer_work=self.transfer_work or 0.0,
            dispatch=self.dispatch or 0.0,
            is_core_shared=self.shared_core,
            gradient_sum=self._gradient_sum(),
            update=self.update if self.update is not None else run.update if run else 0.0,
        )

    def _tasks(self, stages: int, run: RunCosts | None) -> StageCosts:
        backward = self.backward
        if backward is None and self.backward_input and self.backward_weight:
            backward = self.backward_input + self.backward_weight
        half = backward / 2 if backward is not None else None
        given = (self.forward, backward, self.backward_input or half, self.backward_weight or half)
        defaults = dict(zip(Pass, (_FORWARD, _BACKWARD, _BACKWARD / 2, _BACKWARD / 2), strict=True))
        tasks = dict(run.of_stages(stages) if run else equal_stages(defaults, stages))
        for kind, time in zip(Pass, given, strict=True):
            if time is not None:
                tasks[kind] = (time,) * stages
        return tasks

    def _transfer(self, run: RunCosts | None) -> float:
        if self.transfer_bytes is not None and self.bandwidth is not None:
            return transfer_time(self.transfer_bytes, self.bandwidth, self.latency or 0.0)
        if self.transfer is not None:
            return self.transfer
        return run.transfer if run else 0.0

    def _gradient_sum(self) -> float:
        bandwidth = self.replica_bandwidth or self.bandwidth
        if self.gradient_bytes is None or bandwidth is None:
            return 0.0
        latency = self.latency if self.replica_latency is None else self.replica_latency
        return ring_sum_time(self.gradient_bytes, self.replicas, bandwidth, latency or 0.0)

    def _check(self) -> None:
        if self.transfer is not None and self.transfer_bytes is not None:
            raise OptionError(
                f"--transfer {self.transfer:g} and --transfer-bytes {self.transfer_bytes:g} both "
                "say what a transfer takes. Remove one of them."
            )
        if self.transfer_bytes is not None and self.bandwidth is None:
            raise OptionError(
                f"--transfer-bytes {self.transfer_bytes:g} takes a time that depends on the link. "
                "Set --bandwidth to its bytes in a unit of time, such as 1e10."
            )
        if (self.replicas > 1) != (self.gradient_bytes is not None):
            raise OptionError(
                "Replicas sum their gradients, so --replicas above 1 and --gradient-bytes go "
                f"together. Received: --replicas {self.replicas}, --gradient-bytes "
                f"{self.gradient_bytes}. Set both, or none."
            )
        if self.replicas > 1 and (self.replica_bandwidth or self.bandwidth) is None:
            raise OptionError(
                f"--replicas {self.replicas} sum their gradients over a link. Set "
                "--replica-bandwidth or --bandwidth to its bytes in a unit of time, such as 1e10."
            )
        if self.transfer_work is not None and not self.shared_core:
            raise OptionError(
                f"--transfer-work {self.transfer_work:g} is time of the core that computes. Add "
                "--shared-core, or remove it."
            )
