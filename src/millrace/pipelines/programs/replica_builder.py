"""Stages -> programs, for several replicas: those of `builder.py`, under a mesh of replicas.

    forward, backward, ...   as there, on every replica, with a last argument `steps`: the first
                             replica that has a batch, and how many have
    reduce_replicas                   sums, changing, steps -> gradients, changing, whole values
                             once per update, and at the end of evaluation

What replicas have in common (weights, gradients added up, counters) is whole on each device of
the stage's group; what differs has an axis in front: `[replicas, ...]`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from millrace.devices import PARTS, REPLICA, WHOLE
from millrace.pipelines.programs.builder import OneReplicaBuilder, ReplicatedBuilder, replaced_by
from millrace.pipelines.programs.replica_passes import forward_on_replicas, pass_on_replicas
from millrace.pipelines.programs.split import Slot, Stage
from millrace.pipelines.programs.split_update import UpdatePart
from millrace.pipelines.programs.stage_taps import across_rounds, bundle_of_update
from millrace.pipelines.programs.stage_update import contributions
from millrace.pipelines.programs.stages import Stages, state_groups
from millrace.plan import Mode, Plan
from millrace.replicas import state_rules
from millrace.replicas.logs import ReplicaLogs, across_replicas, side_by_side
from millrace.replicas.reduce import GradientReduction
from millrace.replicas.state import (
    layout_of,
    merged_metrics,
    own_part,
    split_spec,
    whole_spec,
    with_axis,
)
from millrace.replicas.state_rules import MergeRule, Rule
from millrace.steps.program import Program
from millrace.steps.state import Values

ROUNDS = PartitionSpec(None, REPLICA)  # of what is tapped, `[1, replicas, ...]`


class ReplicaLayouts:
    """The layouts of stages of several replicas, on the mesh of each stage."""

    def __init__(self, stages: Stages, plans: Sequence[Plan]):
        """Takes the stages, and the plan of each with its group of devices."""
        self._stages, self.plans = stages, plans

    def of(self, index: int, slot: Slot) -> jax.sharding.Sharding:
        """Returns how a value lies on the group of a stage between updates."""
        plan, stages = self.plans[index], self._stages
        if slot.role == "gradient":
            _, weight = contributions(stages.split)[slot.index]
            spec = GradientReduction([stages.trainable[weight]], plan).specs[0]
            return jax.sharding.NamedSharding(plan.group.mesh, spec)
        if slot.role in ("trainable", "optimizer"):
            return layout_of(plan, slot.role, stages.slot(slot))
        return plan.group.whole

    def accumulated(self, stage: Stage) -> list[Any]:
        """Returns the specs of what a stage accumulates into."""
        return self.reduction(stage.index).sums

    def host_layouts(self, index: int) -> list[Any]:
        """Returns the host layouts of what a stage accumulates into; None: not offloaded."""
        return self.reduction(index).host_layouts

    def reduction(self, index: int) -> GradientReduction:
        """Returns what adds up a stage's gradients over replicas."""
        plan, trainable = self.plans[index], self._stages.split.stages[index].trainable
        accumulates = plan.mode is Mode.TRAIN
        variables = [self._stages.trainable[place] for place in trainable if accumulates]
        return GradientReduction(variables, plan)

    def tap_spec(self, index: int) -> PartitionSpec:
        """Returns how what a stage taps lies: each process has all that its stages tap."""
        return ROUNDS if self.plans[index].group.is_local else WHOLE

    def of_taps(self, index: int) -> jax.sharding.Sharding:
        """Returns how what a stage taps lies."""
        return jax.sharding.NamedSharding(self.plans[index].group.mesh, self.tap_spec(index))


class ReplicaStageBuilder:
    """Makes the programs of several replicas, around those of one."""

    def __init__(self, stages: Stages, layouts: ReplicaLayouts):
        """Makes none yet.

        Args:
            stages: of one replica, whose step gives no logs of single steps.
            layouts: of the values of all replicas.
        """
        self.stages, self.layouts = stages, layouts
        self._one = OneReplicaBuilder(stages, layouts)
        self._plans = layouts.plans
        self._each_step = layouts.plans[0].step_logs
        self._rules: dict[int, list[Rule | None]] = {}

    @property
    def replicated(self) -> ReplicatedBuilder:
        """This has what several replicas have besides."""
        return self

    def rules(self, index: int) -> list[Rule | None]:
        """Returns how each value that a stage's forward changes goes on; None for metrics."""
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
                for slot in state_groups(stage)[1]
            ]
        return self._rules[index]

    def is_whole(self, index: int) -> list[bool]:
        """Returns which of the values that a stage's forward changes all replicas share."""
        return [rule is not None and rule.merge is MergeRule.COUNTER for rule in self.rules(index)]

    def forward(self, index: int) -> Program:
        """One micro-batch of each replica through a stage."""
        program, rules = self._one.forward(index), self.rules(index)
        plan = self._plans[index]
        shared = [WHOLE if whole else PARTS for whole in self.is_whole(index)]
        number = len(self.stages.split.stages[index].results)
        results: Any = self._result_layout
        if (tapped := self.stages.taps.forward(index)) is not None:
            results = [results] * number + [self.layouts.tap_spec(index)] * tapped.number

        def show(made: Any, active: Any, steps: Any) -> Any:
            shown = self._across(made[:number], active, steps)
            if tapped is not None:
                shown += across_rounds(made[number:], self.layouts.tap_spec(index) is WHOLE)
            return shown

        forward = forward_on_replicas(program.function, rules, self.is_whole(index), show)
        weights, fixed, changing, batch, carried = program.arguments
        stage = self.stages.split.stages[index]
        arguments = (
            self._laid_out(index, [Slot("trainable", i) for i in stage.trainable], weights),
            self._laid_out(index, state_groups(stage)[0], fixed),
            [
                whole_spec(plan, spec) if s is WHOLE else split_spec(plan, spec)
                for spec, s in zip(changing, shared, strict=True)
            ],
            [split_spec(plan, spec) for spec in batch],
            [split_spec(plan, spec) for spec in carried],
            _STEPS,
        )
        return self._under_mesh(
            index, program, forward, arguments,
            (WHOLE, WHOLE, shared, PARTS, PARTS, WHOLE), (PARTS, shared, results, PARTS),
        )  # fmt: skip

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch of each replica, added to those before it."""
        return self._pass(index, self._one.backward(index), sums=3, result=1)

    def backward_input(self, index: int) -> Program:
        """What the stages before this one wait for."""
        return self._pass(index, self._one.backward_input(index))

    def backward_weight(self, index: int) -> Program:
        """The rest of backward: the gradients, added to those before them."""
        result = None if self.stages.taps.backward(index) is None else 0
        return self._pass(index, self._one.backward_weight(index), sums=4, result=result)

    def zeros(self, index: int) -> Program:
        """What the replicas of a stage accumulate into."""
        reduction = self.layouts.reduction(index)
        shardings = [spec.sharding for spec in reduction.sums]
        program = self.stages.program("zeros", index, reduction.zeros, (), ())
        return replace(program, results=shardings)

    def reduce_replicas(self, index: int) -> Program:
        """Adds up over replicas what an update left: gradients, moving statistics, metrics."""
        plan, rules = self._plans[index], self.rules(index)
        reduction = self.layouts.reduction(index)
        parts = [k for k, whole in enumerate(self.is_whole(index)) if not whole]

        def reduce_replicas(sums: Any, changing: Any, steps: Any) -> Any:
            own = own_part(changing)
            known = [rules[place] for place in parts]
            metrics = [v for v, rule in zip(own, known, strict=True) if rule is None]
            others = [v for v, rule in zip(own, known, strict=True) if rule is not None]
            followed = [rule for rule in known if rule is not None]
            me, active = lax.axis_index(REPLICA), jnp.minimum(steps[1], plan.replicas)
            had, last = me < active, me == (steps[1] - 1) % plan.replicas
            shares = state_rules.shares(followed, others, had, last)
            gradients, sums = reduction.add_up(own_part(sums), [*metrics, *shares])
            agreed = iter(state_rules.merged(followed, others, sums[len(metrics) :], active))
            totals = iter(sums)
            whole = [next(totals if rule is None else agreed) for rule in known]
            # Each replica's metrics stay its own; all else is the same from here on.
            mine = [v if r is None else w for v, w, r in zip(own, whole, known, strict=True)]
            return gradients, with_axis(mine), whole

        slots = state_groups(self.stages.split.stages[index])[1]
        changing = [split_spec(plan, self.stages.slot(slots[place])) for place in parts]
        program = self.stages.program("reduce_replicas", index, reduce_replicas, (), (1,))
        arguments = (reduction.sums, changing, _STEPS)
        specs = (reduction.specs, PARTS, WHOLE)
        return self._under_mesh(
            index, program, reduce_replicas, arguments, (PARTS, PARTS, WHOLE), specs
        )

    def part(self, name: str, index: int, part: UpdatePart) -> Program:
        """A part of the update, on values that lie as they do between updates."""
        program = self._one.part(name, index, part)
        replaced = replaced_by(self.stages.update, part)
        others = [slot for slot in part.inputs if slot not in replaced]
        arguments = tuple(
            self._laid_out(index, slots, specs)
            for slots, specs in zip((replaced, others), program.arguments, strict=True)
        )
        results = [self.layouts.of(index, slot) for slot in part.outputs]
        tapped = bundle_of_update(self.stages.update.taps, part, index)
        results += [self._plans[index].group.whole] * (1 + (tapped.number if tapped else 0))
        return replace(program, arguments=arguments, results=results)

    def spec_of(self, slot: Slot) -> Any:
        """Returns the spec of a value that goes into a part of the update."""
        return self._one.spec_of(slot)

    def logs(self, index: int) -> Program:
        """The logs that follow from the metric values of all replicas."""
        plan = self._plans[index]
        records = ReplicaLogs(self.stages.model, replace(plan, step_logs=False), None)
        repeats = plan.replicas if self._each_step else None

        def logs(parts: Any) -> Any:
            found = records.result((Values([*parts, *merged_metrics(parts)]),), None)
            if repeats is None:
                return found
            return jax.tree.map(lambda v: jnp.broadcast_to(v, (repeats, *v.shape)), found)

        arguments = ([split_spec(plan, spec) for spec in self.stages.specs["metric"]],)
        program = self.stages.program("logs", index, logs, arguments, ())
        return replace(program, results=plan.group.whole)

    def _pass(
        self, index: int, program: Program, sums: int | None = None, result: int | None = None
    ) -> Program:
        """Runs a pass on every replica; `sums` is what only those with a batch add to.

        Args:
            index: of the stage.
            program: that of one replica.
            sums: place of the accumulated gradients among the arguments.
            result: their place among the results, before what is tapped; None if they are all.
        """
        plan, taps = self._plans[index], self.layouts.tap_spec(index)
        weights, *rest = program.arguments
        scalars = 0 if sums is None else 1  # the coefficient, which all replicas share

        run = pass_on_replicas(program.function, sums, result, taps is WHOLE)
        parts = rest[: len(rest) - scalars]
        given = [
            part if place + 1 == sums else [split_spec(plan, spec) for spec in part]
            for place, part in enumerate(parts)
        ]
        arguments = (
            self._laid_out(
                index,
                [Slot("trainable", i) for i in self.stages.split.stages[index].trainable],
                weights,
            ),
            *given,
            *rest[len(parts) :],
            *((_STEPS,) if scalars else ()),
        )
        specs = (WHOLE, *(PARTS for _ in parts), *(WHOLE,) * (2 * scalars))
        results: Any = PARTS
        if result is not None and self.stages.taps.backward(index) is not None:
            results = (*(PARTS,) * (result + 1), taps)
        return self._under_mesh(index, program, run, arguments, specs, results)

    def _under_mesh(
        self,
        index: int,
        program: Program,
        function: Any,
        arguments: tuple[Any, ...],
        in_specs: Any,
        out_specs: Any,
    ) -> Program:
        run = jax.shard_map(
            function,
            mesh=self._plans[index].group.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )
        return replace(program, function=run, arguments=arguments)

    def _across(self, results: Sequence[Any], active: Any, steps: Any) -> list[Any]:
        """Returns a stage's results for all replicas: outputs side by side, logs as one."""
        plan = self._plans[0]
        if plan.mode is not Mode.PREDICT:
            repeats = plan.replicas if self._each_step else None
            return across_replicas(results, plan.replication.metrics, active, steps, repeats)
        return side_by_side(results, self._each_step, gather=self._result_layout is WHOLE)

    @property
    def _result_layout(self) -> PartitionSpec:
        is_local = all(plan.group.is_local for plan in self._plans)
        return PARTS if self._plans[0].mode is Mode.PREDICT and is_local else WHOLE

    def _laid_out(self, index: int, slots: Sequence[Slot], specs: Sequence[Any]) -> list[Any]:
        return [
            jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self.layouts.of(index, slot))
            for slot, spec in zip(slots, specs, strict=True)
        ]


_STEPS = jax.ShapeDtypeStruct((2,), jnp.int32)
