"""The reduction of gradients: those of all replicas become one, once per update.

every replica's sum   [replicas, ...]   ->  their sum, whole on each device
                                        ->  or in equal parts, where the state is sharded
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import PartitionSpec

from millrace.base.devices import REPLICA
from millrace.programs.plan import Plan
from millrace.programs.replicas.placement import axis_of, split_spec
from millrace.programs.replicas.sums import add_up, packs
from millrace.programs.steps.accumulate import Gradients, largest_of_replicas, make_accumulator
from millrace.programs.steps.offload import host_layouts, with_host_layouts


class GradientReduction:
    """Adds up the gradients of trainable variables over replicas."""

    def __init__(self, variables: Sequence[keras.Variable], plan: Plan):
        """Decides whether each gradient arrives whole or in parts.

        Args:
            variables: trainable variables of a whole model or of one stage.
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
        sums = [split_spec(plan, spec) for spec in zeros]
        # Layouts of the sums in host memory between micro-batches; None if not offloaded.
        self.host_layouts = host_layouts(plan, "gradient", sums, plan.group.split(0))
        # Specs of the accumulated gradients, [replicas, ...].
        self.sums = with_host_layouts(sums, self.host_layouts)

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
                reduced[index] = largest_of_replicas(value)
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

    def _own_part(self, value: jax.Array, axis: int) -> jax.Array:
        size = value.shape[axis] // self._plan.replicas
        begin = lax.axis_index(REPLICA) * size
        return lax.dynamic_slice_in_dim(value, begin, size, axis)
