"""The keys of the programs of one function of a model.

describe(plan)     before its step is traced, since a trace may change attributes of the model
of(plan, name)     the key of one of its programs
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields as fields_of
from typing import NamedTuple

import jax
import keras

from millrace.base.devices import DeviceGroup
from millrace.base.options import CompilerOptions, TapRequest, key_fields
from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.explain.fingerprint import describe_model, describe_state
from millrace.compilation.explain.key import (
    ObjectNumbers,
    Pairs,
    environment_fields,
    fields_from,
    once,
)
from millrace.compilation.explain.value_text import digest
from millrace.compilation.explain.walk import Description
from millrace.programs.plan import BatchSpec, Plan

_BATCH = ("x", "y", "sample_weight")


class ModelDescription(NamedTuple):
    """A model and its state, as a plan found them."""

    model: Description
    state: tuple[KeyField, ...]


class ModelKeys:
    """Makes keys. To describe the model takes most of the time, and is done once for each plan."""

    def __init__(self, model: keras.Model, identity: ObjectNumbers = ()):
        """Describes nothing yet.

        Args:
            model: built, and compiled where its mode needs that.
            identity: numbers of objects: `"model object"`, `"strategy"`, `"compile() calls"`.
        """
        self._model, self._identity = model, identity
        self._descriptions: dict[tuple[Hashable, ...], ModelDescription] = {}

    def describe(self, plan: Plan, *moment: Hashable) -> ModelDescription:
        """Returns the description of the model from when this plan was new.

        Args:
            plan: of a program.
            moment: what else a trace depends on.
        """
        key = (plan, *moment)
        if key not in self._descriptions:
            self._descriptions[key] = ModelDescription(
                describe_model(self._model, plan.mode, plan.accumulation.dtype),
                describe_state(self._model, plan.mode),
            )
        return self._descriptions[key]

    def of(
        self,
        plan: Plan,
        name: str,
        *moment: Hashable,
        unroll: int | None = None,
        group: DeviceGroup | None = None,
        compiler_options: CompilerOptions | None = None,
        options: Pairs = (),
    ) -> ProgramKey:
        """Returns the key of a program.

        Args:
            plan: of the program.
            name: of the program, without its mode.
            moment: as for `describe`.
            unroll: copies of a step in the program; None is a loop.
            group: of the program; None for that of the plan.
            compiler_options: of XLA, for this program alone.
            options: options of millrace by their public names that are not part of a plan.
        """
        description, variables = self.describe(plan, *moment)
        order = digest("\n".join(f"{field.name}\n{field.value}" for field in variables).encode())
        devices = (group or plan.group).devices
        fields = [
            *_batch_fields(plan.batch),
            *fields_from(Aspect.OPTION, _plan_options(plan, unroll)),
            *fields_from(Aspect.OPTION, options),
            *description.fields,
            *variables,
            KeyField(Aspect.OPTION, "order of variables", order),  # a digest sorts its fields
            # The plan decides where its programs run, not the default.
            *(
                field
                for field in environment_fields(devices, compiler_options)
                if field.name != "jax_default_device"
            ),
            *fields_from(Aspect.IDENTITY, self._identity),
        ]
        return ProgramKey(
            self._model.name, f"{plan.mode.value}_{name}", once(fields), description.is_complete
        )


def _batch_fields(batch: BatchSpec) -> Iterator[KeyField]:
    """Yields structure, shapes and dtypes of a batch; nothing for a program that takes none."""
    if batch.treedef is None:
        return
    tree = jax.tree.unflatten(batch.treedef, range(len(batch.shapes)))
    is_tuple = isinstance(tree, tuple | list) and 1 <= len(tree) <= len(_BATCH)
    # Of a data adapter of Keras; any other tree is an x.
    arguments = dict(zip(_BATCH, tree if is_tuple else (tree,), strict=False))
    for name, argument in arguments.items():
        if argument is not None:
            yield KeyField(Aspect.ARGUMENT, f"argument {name}: structure", _structure(argument))
        for path, number in jax.tree_util.tree_flatten_with_path(argument)[0]:
            leaf = f"argument {name}{jax.tree_util.keystr(path)}"
            shape, dtype = batch.shapes[number], batch.dtypes[number]
            yield KeyField(Aspect.ARGUMENT, f"{leaf}: shape", str(tuple(shape)))
            yield KeyField(Aspect.ARGUMENT, f"{leaf}: dtype", dtype.name)


def _structure(tree: object) -> str:
    """Returns the structure of a value: `{'image': *, 'age': *}`, where `*` is an array."""
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{k!r}: {_structure(v)}' for k, v in tree.items())}}}"
    if isinstance(tree, list | tuple):
        text = ", ".join(map(_structure, tree))
        return f"({text})" if isinstance(tree, tuple) else f"[{text}]"
    return "None" if tree is None else "*"


def _plan_options(plan: Plan, unroll: int | None) -> Iterator[tuple[str, object]]:
    """Yields the options of a model, and the sizes that follow from them."""
    recompute = plan.recompute
    yield "mode", plan.mode.value
    yield from key_fields(plan.accumulation)
    yield from key_fields(plan.replication)
    yield "recomputation", "off" if recompute is None else "on"
    yield "recomputation budget", None if recompute is None else recompute.budget
    yield "recomputation choice", None if recompute is None else recompute.choice
    yield "compiled for its memory only", plan.is_trial
    yield "recomputation of whole stages", recompute is not None and recompute.whole_stages
    yield from key_fields(plan.offload)
    for field in fields_of(TapRequest):
        yield f"tensor statistics: {field.name}", getattr(plan.taps, field.name)
    yield "values are tapped", plan.tapped
    yield "asynchronous_callbacks", plan.step_logs
    yield "steps in a block", plan.capacity
    yield "steps whose results a call returns", plan.records
    yield "steps in unrolled code", "a loop" if unroll is None else unroll
