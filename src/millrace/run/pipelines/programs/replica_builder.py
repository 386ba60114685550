"""The programs of a pipeline's stages for several replicas: those of `builder.py` on all of them.

    forward, backward, ...   on every replica, with a last argument `steps`: the first replica that
                             has a batch, and the number of replicas that have one
    reduce_replicas          sums, changing, steps -> gradients, changing, whole values
                             once per update, and at the end of evaluation

Values that the replicas share (weights, gradients added up, counters) are whole on each device of
the stage's group; values that differ are of each replica, `[replicas, ...]` outside. Replicas
without a batch compute on arbitrary values and discard the results.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from millrace.base.devices import PARTS, REPLICA, WHOLE
from millrace.programs.plan import Mode
from millrace.programs.replicas import state_rules
from millrace.programs.replicas.logs import ReplicaLogs, across_replicas, side_by_side
from millrace.programs.replicas.state_rules import MergeRule, Rule
from millrace.programs.replicas.transform import OWN, Kinds, on_replicas, specs_on
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Arrays
from millrace.run.pipelines.programs.stage_taps import across_rounds
from millrace.run.pipelines.programs.stages import StageLayouts, Stages


# Around, and not in place of: what a replica computes in a pass is the program of one replica, so
# its kernels, and the order in which they add up, are those of a pipeline on its own. Forward and
# backward exchange nothing between replicas. All of that is in `reduce_replicas`, once per update,
# so a schedule orders tasks as it does without replicas, and no stage waits for another replica in
# the middle of an update.
#
# `steps` is an argument, since the last update of an epoch may have fewer batches: a program for
# each number of them would be compiled at the end of the first epoch.
class ReplicaStageBuilder(StageBuilder):
    """Makes the programs of several replicas, around those of one."""

    def __init__(self, stages: Stages, layouts: StageLayouts):
        """Prepares the programs of all replicas, tracing nothing.

        Args:
            stages: of one replica, whose step returns no logs of single steps.
            layouts: of the values of all replicas.
        """
        super().__init__(stages, layouts)
        self._plan = layouts.plans[0]  # whose group is that of the first stage
        self._rules: dict[int, list[Rule | None]] = {}

    def rules(self, index: int) -> list[Rule | None]:
        """Returns the rule of each value that a stage's forward changes; None for metrics."""
        if index not in self._rules:
            stage = self.stages.split.stages[index]
            inputs = dict(
                zip(stage.state, stage.graph.invars[len(stage.trainable) :], strict=False)
            )
            first = len(stage.sent) + stage.has_loss
            results = dict(zip(stage.new_state, stage.graph.outvars[first:], strict=False))
            self._rules[index] = [
                None
                if slot.role == "metric"
                else state_rules.find_rule(stage.graph, inputs.get(slot), results[slot])
                for slot in stage.new_state
            ]
        return self._rules[index]

    def is_whole(self, index: int) -> list[bool]:
        """Returns for each value that a stage's forward changes whether all replicas share it."""
        # Of what changes, only a counter is the same on all replicas within an update: it follows
        # from the number of batches, where metrics and statistics follow from the batches.
        return [rule is not None and rule.merge is MergeRule.COUNTER for rule in self.rules(index)]

    def forward(self, index: int) -> Program:
        """One micro-batch of each replica through a stage."""
        program, stage = super().forward(index), self.stages.split.stages[index]
        # Within an update a metric does what the last value does: it takes the new value where this
        # replica had a batch, and stays where it had none.
        rules = [rule or Rule(MergeRule.LAST) for rule in self.rules(index)]
        number, tapped = len(stage.results), self.stages.taps.forward(index)
        taps = self.layouts.tap_spec(index)

        def forward(
            weights: Arrays,
            fixed: Arrays,
            changing: Arrays,
            batch: Arrays,
            carried: Arrays,
            steps: jax.Array,
        ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
            before, active = _position(steps)
            begun = state_rules.begin(rules, changing, before)
            sent, new, results, residuals = program.function(weights, fixed, begun, batch, carried)
            new = state_rules.end(rules, changing, new, active, steps[1])
            gathered = self._across(results[:number], active, steps)
            gathered += across_rounds(results[number:], taps is WHOLE)
            return sent, new, gathered, residuals

        changing = [WHOLE if whole else OWN for whole in self.is_whole(index)]
        results = [self._result_layout] * number + [taps] * (tapped.number if tapped else 0)
        arguments = (WHOLE, WHOLE, changing, OWN, OWN, WHOLE)
        return self._on_replicas(index, program, forward, arguments, (OWN, changing, results, OWN))

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch of each replica, added to the accumulators."""
        return self._pass(index, super().backward(index))

    def backward_input(self, index: int) -> Program:
        """The half of backward that computes cotangents, for which earlier stages wait."""
        # Without `steps`: the cotangents of a replica without a batch go to its own earlier stages,
        # each of which leaves its sums as they were.
        program = super().backward_input(index)
        kinds = (WHOLE, *(OWN for _ in program.arguments[1:]))
        return self._on_replicas(index, program, program.function, kinds, OWN)

    def backward_weight(self, index: int) -> Program:
        """The other half of backward: the gradients, added to the accumulators."""
        return self._pass(index, super().backward_weight(index))

    def zeros(self, index: int) -> Program:
        """The gradient accumulators of a stage's replicas, all zero."""
        sums = self.layouts.reduction(index).sums
        return replace(super().zeros(index), results=[spec.sharding for spec in sums])

    def reduce_replicas(self, index: int) -> Program:
        """Adds up the results of an update over replicas: gradients, moving statistics, metrics."""
        stage, reduction = self.stages.split.stages[index], self.layouts.reduction(index)
        pairs = zip(stage.new_state, self.rules(index), self.is_whole(index), strict=True)
        # Counters are there already, on every device, and are not sent.
        split = [(slot, rule) for slot, rule, whole in pairs if not whole]
        rules = [rule for _, rule in split if rule is not None]

        def reduce_replicas(
            sums: Arrays, changing: Arrays, steps: jax.Array
        ) -> tuple[Arrays, Arrays, Arrays]:
            own = list(zip(changing, (rule for _, rule in split), strict=True))
            metrics = [value for value, rule in own if rule is None]
            others = [value for value, rule in own if rule is not None]
            # Gradients, statistics and metrics in one exchange, which between processes on CPUs
            # costs the same for few bytes as for many.
            gradients, new, totals = reduction.agree(sums, rules, others, 0, steps[1], metrics)
            agreed, total = iter(new), iter(totals)
            whole = [next(total if rule is None else agreed) for _, rule in own]
            # Each replica keeps its own metrics; all other values are the same from here on.
            mine = [v if r is None else w for (v, r), w in zip(own, whole, strict=True)]
            return gradients, mine, whole

        changing = [self.stages.slot(slot) for slot, _ in split]
        arguments = (reduction.sums, changing, _STEPS)
        program = self.stages.program("reduce_replicas", index, reduce_replicas, arguments, (1,))
        return self._on_replicas(
            index, program, reduce_replicas, (OWN, OWN, WHOLE), (reduction.specs, OWN, WHOLE)
        )

    def logs(self, index: int) -> Program:
        """The logs, computed from the metric values of all replicas."""
        plan = self.layouts.plans[index]
        records = ReplicaLogs(self.stages.model, replace(plan, step_logs=False), None)
        repeats = plan.replicas if self._plan.step_logs else None

        def logs(metrics: Arrays) -> object:
            # In Keras metric states are sums and counts.
            totals = [value.sum(axis=0, dtype=value.dtype) for value in metrics]
            merged = records.result(State().replace(metric_parts=metrics, metric=totals), None)
            if repeats is None:
                return merged
            return jax.tree.map(lambda v: jnp.broadcast_to(v, (repeats, *v.shape)), merged)

        metrics = specs_on(plan.group, OWN, list(self.stages.specs.metric))
        program = self.stages.program("logs", index, logs, (metrics,), ())
        return replace(program, results=plan.group.whole)

    def _pass(self, index: int, program: Program) -> Program:
        """Returns the program of a pass that accumulates gradients, on every replica.

        Args:
            index: of the stage.
            program: of one replica. Its last two arguments are the accumulated gradients, to which
                only replicas with a batch add, and the coefficient, which all replicas share.
        """
        taps = self.layouts.tap_spec(index)

        def run(*arguments: Any) -> Any:
            *others, steps = arguments
            (returned, added, *tapped), (before, _) = program.function(*others), others[-2:]
            _, active = _position(steps)
            # Chosen, not multiplied: what was computed on arbitrary values may be NaN.
            kept = [jnp.where(active, n, o) for n, o in zip(added, before, strict=True)]
            return returned, kept, *(across_rounds(arrays, taps is WHOLE) for arrays in tapped)

        kinds = (WHOLE, *(OWN for _ in program.arguments[1:-1]), WHOLE, WHOLE)
        results: Kinds = OWN
        if self.stages.taps.backward(index) is not None:
            results = (OWN, OWN, taps)
        return self._on_replicas(index, program, run, kinds, results)

    def _on_replicas(
        self,
        index: int,
        program: Program,
        function: Callable[..., object],
        kinds: tuple[Kinds, ...],
        results: Kinds,
    ) -> Program:
        """Returns the program of all replicas of a stage.

        Args:
            index: of the stage.
            program: of one replica.
            function: of one replica, possibly with `steps` as a further argument.
            kinds: of the arguments.
            results: kinds of the results.
        """
        group = self.layouts.plans[index].group
        specs = (*program.arguments, _STEPS)[: len(kinds)]
        return replace(
            program,
            function=on_replicas(function, group, kinds, results),
            arguments=specs_on(group, kinds, specs),
        )

    def _across(self, results: Sequence[jax.Array], active: jax.Array, steps: jax.Array) -> Arrays:
        """Combines a stage's results over all replicas: outputs side by side, logs merged."""
        plan = self._plan
        if plan.mode is not Mode.PREDICT:
            repeats = plan.replicas if plan.step_logs else None
            return across_replicas(results, plan.replication.metrics, active, steps, repeats)
        return side_by_side(results, plan.step_logs, gather=self._result_layout is WHOLE)

    @property
    def _result_layout(self) -> PartitionSpec:
        # Keras gets the outputs of all replicas in every process. One process can read the parts
        # where they are; of several, each sees its own devices only.
        is_local = all(plan.group.is_local for plan in self.layouts.plans)
        return PARTS if self._plan.mode is Mode.PREDICT and is_local else WHOLE


def _position(steps: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns how many replicas with a batch come before this one, and whether it has one."""
    before = lax.axis_index(REPLICA) - steps[0]
    return before, (before >= 0) & (before < steps[1])


_STEPS = jax.ShapeDtypeStruct((2,), jnp.int32)
