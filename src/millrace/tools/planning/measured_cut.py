"""A cut into stages of equal time, from the times of the stages of a cut of equal FLOPs.

calls            a     b     c     d
FLOPs            4     4     4     4
cut by FLOPs     [a b]       [c d]        stages take 6 ms and 2 ms
times of calls   3     3     1     1      each call's share of its stage's FLOPs
cut by time      [a]   [b     c    d]     stages take 3 ms and 5 ms: kept if measured so
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.programs.plan import BatchSpec
from millrace.run.fit.controller import Controller
from millrace.run.fit.setup import Setup
from millrace.run.pipelines.assignment.assignment import Assignment
from millrace.run.pipelines.assignment.balance import balanced, balanced_by, call_flops
from millrace.run.pipelines.assignment.layer_calls import find_calls
from millrace.run.pipelines.programs.stage_programs import StagePrograms
from millrace.run.precompile.precompile import Batches
from millrace.tools.memory_report.needs import training_needs
from millrace.tools.planning.alternatives import base, of_assignment
from millrace.tools.planning.applying import options_of
from millrace.tools.planning.measuring import stage_seconds

ROUNDS = 3  # cuts whose stages are measured; later ones gain nothing


@dataclass(frozen=True, slots=True)
class MeasuredCut:
    """Cuts a model into stages whose measured times are balanced."""

    controller: Controller
    spec: BatchSpec  # of all rows of an update
    tick: Callable[[str], object]

    def __call__(self, setup: Setup, replicas: int, groups: int, stages: int) -> Assignment:
        """Returns the assignment to so many stages.

        Raises:
            MillraceError: if the model cannot be cut into them.
        """
        model = setup.model
        assignment = best = balanced(model, stages, self.spec)
        calls = find_calls(model)
        costs, longest = call_flops(model, calls, self.spec), float("inf")
        for _ in range(ROUNDS):
            of_calls = assignment.stages or ()
            seconds = self._measured(setup, replicas, groups, assignment)
            if max(seconds) >= longest:
                break
            best, longest = assignment, max(seconds)
            costs = as_measured(costs, of_calls, seconds)
            assignment = balanced_by(model, calls, costs, stages)
            if assignment == best:
                break
        return best

    def _measured(
        self, setup: Setup, replicas: int, groups: int, assignment: Assignment
    ) -> list[float]:
        layout = of_assignment(setup, replicas, groups, assignment, True)
        update = base(layout, self.spec.rows, 1)
        self.tick(f"timing the stages of {update.layout}")
        variant = self.controller.variant(options_of(update, setup.options), layout.stages)
        batches = Batches(self.spec.of_rows(update.batch_size), update.steps_per_execution)
        programs = training_needs(variant, batches).programs
        assert isinstance(programs, StagePrograms)  # noqa: S101
        return stage_seconds(programs)


def as_measured(
    costs: Sequence[float], stages: Sequence[int], seconds: Sequence[float]
) -> list[float]:
    """Returns the times of calls: of its stage's, each has the share that it has of the costs."""
    totals, numbers = [0.0] * len(seconds), [0] * len(seconds)
    for cost, stage in zip(costs, stages, strict=True):
        totals[stage] += cost
        numbers[stage] += 1
    return [
        seconds[stage] * (cost / totals[stage] if totals[stage] else 1 / numbers[stage])
        for cost, stage in zip(costs, stages, strict=True)
    ]
