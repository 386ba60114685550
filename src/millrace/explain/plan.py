"""The fields of a key that come from a plan: the batch, and the options by their public names."""

from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from typing import Any

import jax

from millrace.options import TapRequest
from millrace.plan import BatchSpec, Plan
from millrace.records.compilation import Aspect, KeyField

_BATCH = ("x", "y", "sample_weight")


def batch_fields(batch: BatchSpec) -> Iterator[KeyField]:
    """Returns structure, shapes and dtypes of a batch; nothing for a program that takes none."""
    if batch.treedef is None:
        return
    tree = jax.tree.unflatten(batch.treedef, range(len(batch.shapes)))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    for name, part in _parts(tree):
        yield KeyField(Aspect.ARGUMENT, f"argument {name}: structure", structure_text(part))
    for path, shape, dtype in zip(paths, batch.shapes, batch.dtypes, strict=True):
        name = f"argument {_place(tree, path)}"
        yield KeyField(Aspect.ARGUMENT, f"{name}: shape", str(tuple(shape)))
        yield KeyField(Aspect.ARGUMENT, f"{name}: dtype", dtype.name)


def _is_batch(tree: Any) -> bool:
    return isinstance(tree, tuple | list) and 1 <= len(tree) <= len(_BATCH)


def _parts(tree: Any) -> list[tuple[str, Any]]:
    parts = zip(_BATCH, tree, strict=False) if _is_batch(tree) else [("x", tree)]
    return [(name, part) for name, part in parts if part is not None]


def _place(tree: Any, path: Any) -> str:
    """Returns where a leaf is in what Keras's data adapter yields: `x['image']`."""
    if not _is_batch(tree):
        return f"x{jax.tree_util.keystr(path)}"  # as Keras takes it
    first, *rest = path
    return _BATCH[first.idx] + jax.tree_util.keystr(tuple(rest))


def structure_text(tree: Any) -> str:
    """Returns how a value is built: `{'image': *, 'age': *}`, where `*` is an array."""
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{k!r}: {structure_text(v)}' for k, v in tree.items())}}}"
    if isinstance(tree, list | tuple):
        text = ", ".join(map(structure_text, tree))
        return f"({text})" if isinstance(tree, tuple) else f"[{text}]"
    return "None" if tree is None else "*"


def plan_options(plan: Plan, unroll: int | None) -> Iterator[tuple[str, object]]:
    """Returns what was set on a model, and what follows from it for the program."""
    accumulation, replication, recompute = plan.accumulation, plan.replication, plan.recompute
    offload, at_a_time = plan.offload, plan.accumulation.at_a_time
    yield "mode", plan.mode.value
    yield "gradient_accumulation_steps_per_replica", accumulation.steps // at_a_time
    yield "gradient_accumulation_reduction_method", accumulation.reduction.value
    yield "batch_serialization_iterations", at_a_time
    yield "replicated_metric_reduction_method", replication.metrics.value
    yield "replicated_optimizer_state_sharding", replication.shard_optimizer_state
    yield "replicated_weight_sharding", replication.shard_weights
    yield "recomputation", "off" if recompute is None else "on"
    yield "recomputation budget", None if recompute is None else recompute.budget
    yield "recomputation choice", None if recompute is None else recompute.choice
    yield "recomputation of whole stages", recompute is not None and recompute.whole_stages
    yield "offload_weight_update_variables", offload.optimizer_state
    yield "offload_activations", offload.activations
    yield "offload_gradient_accumulation_buffers", offload.accumulators
    yield "offload_weights", offload.weights
    for field in fields_of(TapRequest):
        yield f"tensor statistics: {field.name}", getattr(plan.taps, field.name)
    yield "values are tapped", plan.tapped
    yield "asynchronous_callbacks", plan.step_logs
    yield "steps in a block", plan.capacity
    yield "steps whose results a call returns", plan.records
    yield "steps in unrolled code", "a loop" if unroll is None else unroll
