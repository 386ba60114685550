"""The programs of a pipeline's stages for several replicas: those of `builder.py` under a mesh.

    forward, backward, ...   on every replica, with a last argument `steps`: the first replica that
                             has a batch, and the number of replicas that have one
    reduce_replicas          sums, changing, steps -> gradients, changing, whole values
                             once per update, and at the end of evaluation

Values that the replicas share (weights, gradients added up, counters) are whole on each device of
the stage's group; values that differ have an axis in front: `[replicas, ...]`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from millrace.base.devices import PARTS, REPLICA, WHOLE
from millrace.base.pytrees import Layout, Spec, SpecTree
from millrace.programs.plan import Mode, Plan
from millrace.programs.replicas import state_rules
from millrace.programs.replicas.logs import ReplicaLogs, across_replicas, side_by_side
from millrace.programs.replicas.placement import (
    layout_of,
    merged_metrics,
    own_part,
    split_spec,
    whole_spec,
    with_axis,
)
from millrace.programs.replicas.reduce import GradientReduction
from millrace.programs.replicas.state_rules import MergeRule, Rule
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State
from millrace.run.pipelines.programs.builder import (
    OneReplicaBuilder,
    ReplicatedBuilder,
    replaced_by,
)
from millrace.run.pipelines.programs.replica_passes import forward_on_replicas, pass_on_replicas
from millrace.run.pipelines.programs.split import Arrays, Slot, Stage
from millrace.run.pipelines.programs.split_update import UpdatePart
from millrace.run.pipelines.programs.stage_taps import across_rounds, bundle_of_update
from millrace.run.pipelines.programs.stage_update import contributions
from millrace.run.pipelines.programs.stages import Stages, state_groups

ROUNDS = PartitionSpec(None, REPLICA)  # of tapped values, `[1, replicas, ...]`
# Of the arguments or results of a program: PartitionSpecs in a structure.
PartitionTree: TypeAlias = "PartitionSpec | Sequence[PartitionTree]"


class ReplicaLayouts:
    """The layouts of stages of several replicas, on the mesh of each stage's devices."""

    def __init__(self, stages: Stages, plans: Sequence[Plan]):
        """Describes several replicas.

        Args:
            stages: whose values are laid out.
            plans: of each stage, with its group of devices.
        """
        self._stages, self.plans = stages, plans

    def of(self, index: int, slot: Slot) -> Layout:
        """Returns the layout of a value on the group of a stage between updates."""
        plan, stages = self.plans[index], self._stages
        if slot.role == "gradient":
            _, weight = contributions(stages.split)[slot.index]
            spec = GradientReduction([stages.trainable[weight]], plan).specs[0]
            return jax.sharding.NamedSharding(plan.group.mesh, spec)
        if slot.role in ("trainable", "optimizer"):
            return layout_of(plan, slot.role, stages.slot(slot))
        return plan.group.whole

    def accumulated(self, stage: Stage) -> list[Spec]:
        """Returns the specs of a stage's gradient accumulators."""
        return self.reduction(stage.index).sums

    def host_layouts(self, index: int) -> list[Layout | None]:
        """Returns the host layouts of a stage's gradient accumulators; None: not offloaded."""
        return self.reduction(index).host_layouts

    def reduction(self, index: int) -> GradientReduction:
        """Returns the reduction of a stage's gradients over replicas."""
        plan, trainable = self.plans[index], self._stages.split.stages[index].trainable
        accumulates = plan.mode is Mode.TRAIN
        variables = [self._stages.trainable[weight] for weight in trainable if accumulates]
        return GradientReduction(variables, plan)

    def tap_spec(self, index: int) -> PartitionSpec:
        """Returns the partition of a stage's tapped values; each process has all of its stages'."""
        return ROUNDS if self.plans[index].group.is_local else WHOLE

    def of_taps(self, index: int) -> Layout:
        """Returns the layout of the values that a stage taps."""
        return jax.sharding.NamedSharding(self.plans[index].group.mesh, self.tap_spec(index))


class ReplicaStageBuilder:
    """Makes the programs of several replicas, around those of one."""

    def __init__(self, stages: Stages, layouts: ReplicaLayouts):
        """Prepares the programs of all replicas, tracing nothing.

        Args:
            stages: of one replica, whose step returns no logs of single steps.
            layouts: of the values of all replicas.
        """
        self.stages, self.layouts = stages, layouts
        self._one = OneReplicaBuilder(stages, layouts)
        self._plans = layouts.plans
        self._each_step = layouts.plans[0].step_logs
        self._rules: dict[int, list[Rule | None]] = {}

    @property
    def replicated(self) -> ReplicatedBuilder:
        """This builder, which makes the further programs of several replicas."""
        return self

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
                for slot in state_groups(stage)[1]
            ]
        return self._rules[index]

    def is_whole(self, index: int) -> list[bool]:
        """Returns for each value that a stage's forward changes whether all replicas share it."""
        return [rule is not None and rule.merge is MergeRule.COUNTER for rule in self.rules(index)]

    def forward(self, index: int) -> Program:
        """One micro-batch of each replica through a stage."""
        program, rules = self._one.forward(index), self.rules(index)
        plan = self._plans[index]
        shared = [WHOLE if whole else PARTS for whole in self.is_whole(index)]
        number = len(self.stages.split.stages[index].results)
        results: PartitionTree = self._result_layout
        if (tapped := self.stages.taps.forward(index)) is not None:
            results = [results] * number + [self.layouts.tap_spec(index)] * tapped.number

        def gather(own: Sequence[jax.Array], active: jax.Array, steps: jax.Array) -> Arrays:
            gathered = self._across(own[:number], active, steps)
            if tapped is not None:
                gathered += across_rounds(own[number:], self.layouts.tap_spec(index) is WHOLE)
            return gathered

        forward = forward_on_replicas(program.function, rules, self.is_whole(index), gather)
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
        """The gradients of one micro-batch of each replica, added to the accumulators."""
        return self._pass(index, self._one.backward(index), sums=3, result=1)

    def backward_input(self, index: int) -> Program:
        """The half of backward that computes cotangents, for which earlier stages wait."""
        return self._pass(index, self._one.backward_input(index))

    def backward_weight(self, index: int) -> Program:
        """The other half of backward: the gradients, added to the accumulators."""
        result = None if self.stages.taps.backward(index) is None else 0
        return self._pass(index, self._one.backward_weight(index), sums=4, result=result)

    def zeros(self, index: int) -> Program:
        """The gradient accumulators of a stage's replicas, all zero."""
        reduction = self.layouts.reduction(index)
        shardings = [spec.sharding for spec in reduction.sums]
        program = self.stages.program("zeros", index, reduction.zeros, (), ())
        return replace(program, results=shardings)

    def reduce_replicas(self, index: int) -> Program:
        """Adds up the results of an update over replicas: gradients, moving statistics, metrics."""
        plan, rules = self._plans[index], self.rules(index)
        reduction = self.layouts.reduction(index)
        split = [k for k, whole in enumerate(self.is_whole(index)) if not whole]

        def reduce_replicas(
            sums: Arrays, changing: Arrays, steps: jax.Array
        ) -> tuple[Arrays, Arrays, Arrays]:
            own = own_part(changing)
            own_rules = [rules[k] for k in split]
            metrics = [v for v, rule in zip(own, own_rules, strict=True) if rule is None]
            others = [v for v, rule in zip(own, own_rules, strict=True) if rule is not None]
            followed = [rule for rule in own_rules if rule is not None]
            me, active = lax.axis_index(REPLICA), jnp.minimum(steps[1], plan.replicas)
            had, last = me < active, me == (steps[1] - 1) % plan.replicas
            shares = state_rules.shares(followed, others, had, last)
            gradients, sums = reduction.add_up(own_part(sums), [*metrics, *shares])
            agreed = iter(state_rules.merged(followed, others, sums[len(metrics) :], active))
            totals = iter(sums)
            whole = [next(totals if rule is None else agreed) for rule in own_rules]
            # Each replica keeps its own metrics; all other values are the same from here on.
            mine = [v if r is None else w for v, w, r in zip(own, whole, own_rules, strict=True)]
            return gradients, with_axis(mine), whole

        slots = state_groups(self.stages.split.stages[index])[1]
        changing = [split_spec(plan, self.stages.slot(slots[k])) for k in split]
        program = self.stages.program("reduce_replicas", index, reduce_replicas, (), (1,))
        arguments = (reduction.sums, changing, _STEPS)
        specs = (reduction.specs, PARTS, WHOLE)
        return self._under_mesh(
            index, program, reduce_replicas, arguments, (PARTS, PARTS, WHOLE), specs
        )

    def update_part(self, name: str, index: int, part: UpdatePart) -> Program:
        """One stage's part of the update, on values that lie as they do between updates."""
        program = self._one.update_part(name, index, part)
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

    def spec_of(self, slot: Slot) -> Spec:
        """Returns the spec of an input of the update."""
        return self._one.spec_of(slot)

    def logs(self, index: int) -> Program:
        """The logs, computed from the metric values of all replicas."""
        plan = self._plans[index]
        records = ReplicaLogs(self.stages.model, replace(plan, step_logs=False), None)
        repeats = plan.replicas if self._each_step else None

        def logs(metrics: Arrays) -> object:
            state = State().replace(metric_parts=metrics, metric=merged_metrics(metrics))
            merged = records.result(state, None)
            if repeats is None:
                return merged
            return jax.tree.map(lambda v: jnp.broadcast_to(v, (repeats, *v.shape)), merged)

        arguments = ([split_spec(plan, spec) for spec in self.stages.specs.metric],)
        program = self.stages.program("logs", index, logs, arguments, ())
        return replace(program, results=plan.group.whole)

    def _pass(
        self, index: int, program: Program, sums: int | None = None, result: int | None = None
    ) -> Program:
        """Returns the program of a pass on every replica.

        Args:
            index: of the stage.
            program: of one replica.
            sums: index of the accumulated gradients among the arguments, to which only replicas
                with a batch add; None: the pass accumulates nothing.
            result: index of the accumulated gradients among the results, before the tapped values;
                None: they are the only result.
        """
        plan, taps = self._plans[index], self.layouts.tap_spec(index)
        weights, *others = program.arguments
        scalars = 0 if sums is None else 1  # the coefficient, which all replicas share

        run = pass_on_replicas(program.function, sums, result, taps is WHOLE)
        lists = others[: len(others) - scalars]
        specs_of_all = [
            specs if k + 1 == sums else [split_spec(plan, spec) for spec in specs]
            for k, specs in enumerate(lists)
        ]
        arguments = (
            self._laid_out(
                index,
                [Slot("trainable", i) for i in self.stages.split.stages[index].trainable],
                weights,
            ),
            *specs_of_all,
            *others[len(lists) :],
            *((_STEPS,) if scalars else ()),
        )
        specs = (WHOLE, *(PARTS for _ in lists), *(WHOLE,) * (2 * scalars))
        results: PartitionTree = PARTS
        if result is not None and self.stages.taps.backward(index) is not None:
            results = (*(PARTS,) * (result + 1), taps)
        return self._under_mesh(index, program, run, arguments, specs, results)

    def _under_mesh(
        self,
        index: int,
        program: Program,
        function: Callable[..., object],
        arguments: tuple[SpecTree, ...],
        in_specs: PartitionTree,
        out_specs: PartitionTree,
    ) -> Program:
        run = jax.shard_map(
            function,
            mesh=self._plans[index].group.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )
        return replace(program, function=run, arguments=arguments)

    def _across(self, results: Sequence[jax.Array], active: jax.Array, steps: jax.Array) -> Arrays:
        """Combines a stage's results over all replicas: outputs side by side, logs merged."""
        plan = self._plans[0]
        if plan.mode is not Mode.PREDICT:
            repeats = plan.replicas if self._each_step else None
            return across_replicas(results, plan.replication.metrics, active, steps, repeats)
        return side_by_side(results, self._each_step, gather=self._result_layout is WHOLE)

    @property
    def _result_layout(self) -> PartitionSpec:
        is_local = all(plan.group.is_local for plan in self._plans)
        return PARTS if self._plans[0].mode is Mode.PREDICT and is_local else WHOLE

    def _laid_out(self, index: int, slots: Sequence[Slot], specs: Sequence[Spec]) -> list[Spec]:
        return [
            jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self.layouts.of(index, slot))
            for slot, spec in zip(slots, specs, strict=True)
        ]


_STEPS = jax.ShapeDtypeStruct((2,), jnp.int32)
