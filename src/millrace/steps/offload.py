"""What rests in host memory between its uses, and the moves there and back.

    optimizer state          on the device while an update runs
    accumulated gradients    on the device while those of a micro-batch are added
    weights, shared out      on the device while micro-batches use them: a task of a pipeline, an
                             update of a model in one piece
    waits for its backward   pipelines/runtime/activation_offload.py

    loop over updates   | gradients        update | gradients        update |
    device memory       |             +--> state -+---+          +--> state-+--
    host memory         | state ------+           |   +-> state -+          |

A loop carries what rests in host memory as a value of that memory. XLA makes copies of the moves
that run beside the computation: what belongs to one weight arrives while another is updated, and
goes back while the next micro-batch runs. Nothing is fetched before there are gradients. Without
that XLA begins all copies so early that nothing is saved: for four layers of 2048 units and 8192
rows, accumulating four micro-batches, its compiler for TPUs needs 748 MiB of device memory without
offload, 733 with, and 653 if the state waits for the gradients; the state is 96.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Sharding

from millrace._compat.jax_memory import is_on_host, on_device, on_host
from millrace.plan import ROLES, Plan
from millrace.steps.accumulate import Accumulator, Gradients
from millrace.steps.state import State, Values

# Bytes on one device below which a value stays there: a copy costs more than it saves. A step
# reads some of the optimizer's scalars, too, the factor of loss scaling for one.
SMALLEST = 128

_OPTIONS = {"optimizer": "optimizer_state", "trainable": "weights", "gradient": "accumulators"}


def host_layout(plan: Plan, role: str, value: Any, layout: Sharding) -> Sharding | None:
    """Returns how a value rests in host memory between its uses; None if it stays on the device.

    Args:
        plan: whose `offload` says what rests.
        role: of a value of the state, or "gradient" for an accumulated one.
        value: with a shape and a dtype.
        layout: how it lies on the devices.
    """
    option = _OPTIONS.get(role)
    if option is None or not getattr(plan.offload, option):
        return None
    if role == "trainable" and layout.is_fully_replicated:
        return None  # only what replicas share out
    size = math.prod(layout.shard_shape(tuple(value.shape)))
    if size * np.dtype(value.dtype).itemsize < SMALLEST:
        return None
    return on_host(layout, plan.group.mesh)


def host_layouts(plan: Plan, role: str, values: Any, layout: Sharding) -> list[Sharding | None]:
    """Returns `host_layout` each value."""
    return [host_layout(plan, role, value, layout) for value in values]


def host_layouts_of_state(plan: Plan, state: State) -> State:
    """Returns how each value of a state rests in host memory; None for those that do not."""
    whole = plan.group.whole
    return tuple(
        Values(host_layout(plan, role, value, whole) for value in values)
        for role, values in zip(ROLES[plan.mode], state, strict=True)
    )


def with_host_layouts(specs: Any, layouts: Any) -> Any:
    """Returns specs with the shardings of those that rest in host memory; None leaves one out."""

    def lay(spec: Any, layout: Any) -> Any:
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=layout)

    return _each(specs, layouts, lay)


def fetched(values: Any, layouts: Any) -> Any:
    """Moves what rests in host memory to the device. Runs within a program.

    Args:
        values: a tree.
        layouts: of its leaves or subtrees, those on the device or None included.
    """
    return _each(values, layouts, lambda value, layout: jax.device_put(value, on_device(layout)))


def fetched_after(values: Any, layouts: Any, others: Any) -> Any:
    """Moves what rests in host memory to the device, once other values have been computed.

    Only the moves wait. What is computed of the others is fused as without offload, where a
    barrier between would have it rounded in other places.
    """
    leaves, tree = jax.tree.flatten(values)
    spread = _spread(layouts, values)
    places = [k for k, layout in enumerate(spread) if is_on_host(layout)]
    if places:
        waiting, _ = lax.optimization_barrier(([leaves[k] for k in places], others))
        for k, value in zip(places, waiting, strict=True):
            leaves[k] = value
    return fetched(jax.tree.unflatten(tree, leaves), layouts)


def offloaded(values: Any, layouts: Any) -> Any:
    """Moves values to where they rest in host memory; the counterpart of `fetched`."""
    return _each(values, layouts, jax.device_put)


def offloaded_accumulator(accumulator: Accumulator, layouts: Sequence[Any]) -> Accumulator:
    """Returns an accumulator whose values rest in host memory between its functions."""
    if not any(map(is_on_host, layouts)):
        return accumulator
    layouts = list(layouts)

    def zeros() -> Gradients:
        return offloaded(accumulator.zeros(), layouts)

    def add(accumulated: Gradients, gradients: Any, coefficient: Any) -> Gradients:
        accumulated = fetched_after(accumulated, layouts, list(gradients))
        return offloaded(accumulator.add(accumulated, gradients, coefficient), layouts)

    def finish(accumulated: Gradients, scale: Any) -> Gradients:
        return accumulator.finish(fetched(accumulated, layouts), scale)

    return Accumulator(zeros, add, finish)


def with_moves(program: Any) -> Any:
    """Lets a `Program` take and give what rests in host memory, as its specs and results say.

    It is on the device from the program's begin to its end.
    """
    layouts = [spec.sharding for spec in jax.tree.leaves(program.arguments)]
    if not any(map(is_on_host, [*layouts, *jax.tree.leaves(program.results)])):
        return program
    function: Callable[..., Any] = program.function

    def run(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        made = function(*jax.tree.unflatten(tree, fetched(leaves, layouts)))
        return offloaded(made, program.results)

    return replace(program, function=run)


def _each(values: Any, layouts: Any, move: Callable[[Any, Any], Any]) -> Any:
    """Applies `move` to the values that rest in host memory, and their layouts."""
    leaves, tree = jax.tree.flatten(values)
    moved = [
        move(leaf, layout) if is_on_host(layout) else leaf
        for leaf, layout in zip(leaves, _spread(layouts, values), strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


def _spread(layouts: Any, values: Any) -> list[Any]:
    """Returns the layout of each leaf of a tree."""
    whole = jax.tree.broadcast(layouts, values, is_leaf=_is_none)
    return jax.tree.leaves(whole, is_leaf=_is_none)


def _is_none(value: Any) -> bool:
    return value is None
