"""The reduction of gradients: those of all replicas become one, once per update.

every replica's sum   [replicas, ...]   ->  their sum, whole on each device
                                        ->  or in equal parts, where the state is sharded
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from millrace.base.devices import REPLICA
from millrace.programs.plan import Plan
from millrace.programs.replicas import state_rules
from millrace.programs.replicas.placement import axis_of
from millrace.programs.replicas.state_rules import Rule
from millrace.programs.replicas.sums import add_up, packs
from millrace.programs.replicas.transform import OWN, specs_on
from millrace.programs.steps.accumulate import Accumulated, Gradients, make_accumulator
from millrace.programs.steps.offload import host_layouts, with_host_layouts
from millrace.programs.steps.repetition import Index
from millrace.programs.steps.scopes import ACCUMULATION


class GradientReduction:
    """Adds up the gradients of trainable variables over replicas."""

    def __init__(self, variables: Sequence[Accumulated], plan: Plan):
        """Decides whether each gradient arrives whole or in parts.

        Args:
            variables: trainable variables of a whole model or of one stage, or `LOSS_WEIGHT`.
            plan: describes the programs.
        """
        self._plan = plan
        self._overwrites = [variable.overwrite_with_gradient for variable in variables]
        # A gradient arrives in parts where the optimizer's values are sharded. Where only weights
        # are, the optimizer's values would be updated in parts and gathered again.
        axes = [axis_of(plan, "optimizer", tuple(v.shape)) for v in variables]
        self._axes = [
            None if overwrite else axis
            for axis, overwrite in zip(axes, self._overwrites, strict=True)
        ]
        self.specs = [
            PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, REPLICA)
            for axis in self._axes
        ]
        zeros = jax.eval_shape(make_accumulator(variables, plan.accumulation).zeros)
        sums = specs_on(plan.group, OWN, zeros)
        # Layouts of the sums in host memory between micro-batches; None if not offloaded.
        self.host_layouts = host_layouts(plan, "gradient", sums, plan.group.split(0))
        # Specs of the accumulated gradients, [replicas, ...]; [...] of one replica.
        self.sums = with_host_layouts(sums, self.host_layouts)

    @jax.named_scope(ACCUMULATION)
    def zeros(self) -> Gradients:
        """Returns the initial accumulated gradients, `[replicas, ...]`."""
        return [jnp.zeros(spec.shape, spec.dtype) for spec in self.sums]

    def add_up(
        self, gradients: Sequence[jax.Array], others: Sequence[jax.Array] = ()
    ) -> tuple[Gradients, list[jax.Array]]:
        """Adds up the values of all replicas; runs under the mesh's axis.

        Args:
            gradients: of this replica.
            others: more values, to be added up in the same operation.

        Returns:
            Gradients, laid out as in `specs`, and the sums of the others.
        """
        at_once = packs(self._plan.group)
        reduced = list(gradients)
        summed: list[int] = []  # indices of those that are added up whole
        for index, (value, axis) in enumerate(zip(gradients, self._axes, strict=True)):
            if self._overwrites[index]:
                reduced[index] = lax.pmax(value, REPLICA)  # see `accumulate.largest`
            elif axis is None or at_once:
                summed.append(index)
            else:
                reduced[index] = lax.psum_scatter(
                    value, REPLICA, scatter_dimension=axis, tiled=True
                )
        sums = add_up([*(gradients[index] for index in summed), *others], self._plan.group)
        for index, value in zip(summed, sums, strict=False):
            axis = self._axes[index]
            reduced[index] = value if axis is None else self._own_part(value, axis)
        return reduced, sums[len(summed) :]

    def agree(
        self,
        gradients: Sequence[jax.Array],
        rules: Sequence[Rule],
        values: Sequence[jax.Array],
        start: Index,
        count: Index,
        others: Sequence[jax.Array] = (),
    ) -> tuple[Gradients, list[jax.Array], list[jax.Array]]:
        """Makes the values of all replicas the same, and adds up gradients, in one operation.

        Args:
            gradients: of this replica.
            rules: say how each of the values becomes the same.
            values: of the state, of this replica.
            start: first step since the replicas had the same values; step `k` is that of replica
                `k % replicas`.
            count: number of these steps.
            others: more values, to be added up.

        Returns:
            Gradients as `add_up` returns them, the new values, and the sums of the others.
        """
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        had, last = (me - start) % replicas < count, me == (start + count - 1) % replicas
        shares = state_rules.shares(rules, values, had, last)
        gradients, sums = self.add_up(gradients, [*others, *shares])
        active = jnp.minimum(count, replicas)
        new = state_rules.merged(rules, values, sums[len(others) :], active)
        return gradients, new, sums[: len(others)]

    def _own_part(self, value: jax.Array, axis: int) -> jax.Array:
        size = value.shape[axis] // self._plan.replicas
        begin = lax.axis_index(REPLICA) * size
        return lax.dynamic_slice_in_dim(value, begin, size, axis)
