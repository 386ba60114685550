"""The options of `millrace simulate` that say what an update costs, and their meaning.

--costs RUN                          medians of a run, which the options below replace
--forward 1 --backward 2             tasks
--transfer 0.1 --dispatch 0.01       beside them
--gradient-sum 0.5 --update 0.2      after them
"""

import pathlib
from dataclasses import dataclass

import click

from millrace.base.records.run import load
from millrace.run.schedules.costs import StageCosts, UpdateCosts, equal_stages
from millrace.run.schedules.task import Pass
from millrace.tools.cli.types import FiniteRange, with_options
from millrace.tools.reports.run_costs import RunCosts, costs_of_run

TIME = FiniteRange(0, min_open=True)
_FREE = FiniteRange(0)
_FORWARD, _BACKWARD = 1.0, 2.0

# A command gets them as `CostOptions(**options)`.
cost_options = with_options(
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
    click.option("--dispatch", type=_FREE, help="Host time of each task.  [default: 0.0]"),
    click.option(
        "--gradient-sum",
        type=_FREE,
        help="Time of the sum of gradients over replicas, after the last task.  [default: 0.0]",
    ),
    click.option("--update", type=_FREE, help="Time of the update.  [default: 0.0, or of --costs]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The options as given."""

    costs: pathlib.Path | None
    forward: float | None
    backward: float | None
    backward_input: float | None
    backward_weight: float | None
    transfer: float | None
    dispatch: float | None
    gradient_sum: float | None
    update: float | None

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
        """
        return UpdateCosts(
            tasks=self._tasks(stages, run),
            transfer=self.transfer if self.transfer is not None else run.transfer if run else 0.0,
            dispatch=self.dispatch or 0.0,
            gradient_sum=self.gradient_sum or 0.0,
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
