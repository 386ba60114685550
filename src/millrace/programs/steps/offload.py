"""Values that stay in host memory between their uses, and the moves there and back.

    optimizer state          on the device while an update runs
    accumulated gradients    on the device while those of a micro-batch are added
    sharded weights          on the device while micro-batches use them: a task of a pipeline, an
                             update of a model in one piece
    residuals                run/pipelines/runtime/activation_offload.py

    loop over updates   | gradients        update | gradients        update |
    device memory       |             +--> state -+---+          +--> state-+--
    host memory         | state ------+           |   +-> state -+          |

A loop carries an offloaded value as a value of host memory. XLA turns the moves into copies that
run beside the computation: the optimizer values of one weight arrive while another is updated, and
go back while the next micro-batch runs. Nothing is fetched before there are gradients. Otherwise
XLA would begin all copies so early that nothing is saved: for four layers of 2048 units and 8192
rows, accumulating four micro-batches, its compiler for TPUs needs 748 MiB of device memory without
offload, 733 with, and 653 if the state waits for the gradients; the state is 96.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jax import lax
from jax.sharding import Sharding

from millrace._compat.jax_memory import is_on_host, on_device, on_host
from millrace.base.pytrees import ArrayTree, LayoutTree
from millrace.programs.plan import Plan
from millrace.programs.steps.accumulate import Accumulator, Factor, Gradients
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State

Tree = TypeVar("Tree")


class Shaped(Protocol):
    """An array, a spec or a variable: something with a shape and a dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of the elements: a NumPy dtype, or its name."""
        ...


# Bytes on one device below which a value stays there: a copy costs more than it saves. Also, a
# step reads some of the optimizer's scalars, such as the factor of loss scaling.
SMALLEST = 128

_OPTIONS = {"optimizer": "optimizer_state", "trainable": "weights", "gradient": "accumulators"}


def host_layout(plan: Plan, role: str, value: Shaped, layout: Sharding) -> Sharding | None:
    """Returns the layout of an offloaded value in host memory; None if it stays on the device.

    Args:
        plan: its `offload` says which roles are offloaded.
        role: role of a value of the state, or "gradient" for an accumulated gradient.
        value: array or spec.
        layout: layout of the value on the devices.
    """
    option = _OPTIONS.get(role)
    if option is None or not getattr(plan.offload, option):
        return None
    if role == "trainable" and layout.is_fully_replicated:
        return None  # only sharded weights are offloaded
    size = math.prod(layout.shard_shape(tuple(value.shape)))
    if size * np.dtype(value.dtype).itemsize < SMALLEST:
        return None
    return on_host(layout, plan.group.mesh)


def host_layouts(
    plan: Plan, role: str, values: Sequence[Shaped], layout: Sharding
) -> list[Sharding | None]:
    """Returns `host_layout` of each value."""
    return [host_layout(plan, role, value, layout) for value in values]


def host_layouts_of_state(plan: Plan, state: State) -> State:
    """Returns `host_layout` of each value of a state."""
    return state.map(lambda role, value: host_layout(plan, role, value, plan.group.whole))


def with_host_layouts(specs: Tree, layouts: LayoutTree) -> Tree:
    """Returns specs, those of offloaded values with their layouts in host memory."""

    def lay(spec: jax.ShapeDtypeStruct, layout: Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=layout)

    return _each(specs, layouts, lay)


def fetched(values: Tree, layouts: LayoutTree) -> Tree:
    """Moves offloaded values to the device. Runs within a program.

    Args:
        values: a tree.
        layouts: of its leaves or subtrees; those of device memory, and None, move nothing.
    """
    return _each(values, layouts, _fetched)


def _fetched(value: jax.Array, layout: Any) -> jax.Array:
    """Moves a value to the device, where it stays in parts if it arrives in parts."""
    there: Any = on_device(layout)
    value = jax.device_put(value, there)
    if not isinstance(there, Sharding) or there.is_fully_replicated:
        return value
    # Otherwise XLA's compiler for TPUs gathers the parts of a weight that comes next as a whole
    # before it moves them: the hosts exchange them, and each device fetches all.
    return lax.with_sharding_constraint(value, there)


def fetched_after(values: Tree, layouts: LayoutTree, others: ArrayTree) -> Tree:
    """Moves offloaded values to the device, once `others` have been computed.

    Only the moves wait. Computation that uses `others` is fused as it is without offload: behind a
    barrier it would be rounded in other places.
    """
    leaves, tree = jax.tree.flatten(values)
    spread = _spread(layouts, values)
    moving = [k for k, layout in enumerate(spread) if is_on_host(layout)]
    if moving:
        waiting, _ = lax.optimization_barrier(([leaves[k] for k in moving], others))
        for k, value in zip(moving, waiting, strict=True):
            leaves[k] = value
    return fetched(jax.tree.unflatten(tree, leaves), layouts)


def offloaded(values: Tree, layouts: LayoutTree) -> Tree:
    """Moves values to host memory where their layouts say so; the counterpart of `fetched`."""
    return _each(values, layouts, jax.device_put)


def offloaded_accumulator(
    accumulator: Accumulator, layouts: Sequence[Sharding | None]
) -> Accumulator:
    """Returns an accumulator whose values are in host memory between calls of its functions."""
    if not any(map(is_on_host, layouts)):
        return accumulator
    layouts = list(layouts)

    def zeros() -> Gradients:
        return offloaded(accumulator.zeros(), layouts)

    def add(
        accumulated: Gradients, gradients: Sequence[jax.Array], coefficient: Factor
    ) -> Gradients:
        accumulated = fetched_after(accumulated, layouts, list(gradients))
        return offloaded(accumulator.add(accumulated, gradients, coefficient), layouts)

    def finish(accumulated: Gradients, scale: Factor) -> Gradients:
        return accumulator.finish(fetched(accumulated, layouts), scale)

    return Accumulator(zeros, add, finish)


def with_moves(program: Program) -> Program:
    """Returns a program that fetches its offloaded arguments and offloads its results.

    The values are on the device from the program's first operation to its last.
    """
    layouts = [spec.sharding for spec in jax.tree.leaves(program.arguments)]
    if not any(map(is_on_host, [*layouts, *jax.tree.leaves(program.results)])):
        return program
    function = program.function

    def run(*arguments: ArrayTree) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        results = function(*jax.tree.unflatten(tree, fetched(leaves, layouts)))
        return offloaded(results, program.results)

    return replace(program, function=run)


def _each(values: Tree, layouts: LayoutTree, move: Callable[..., object]) -> Tree:
    """Applies `move` to the values whose layouts are in host memory, and these layouts."""
    leaves, tree = jax.tree.flatten(values)
    moved = [
        move(leaf, layout) if is_on_host(layout) else leaf
        for leaf, layout in zip(leaves, _spread(layouts, values), strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


def _spread(layouts: LayoutTree, values: object) -> list[Any]:
    """Returns the layout of each leaf of a tree."""
    whole = jax.tree.broadcast(layouts, values, is_leaf=_is_none)
    return jax.tree.leaves(whole, is_leaf=_is_none)


def _is_none(value: object) -> bool:
    return value is None
