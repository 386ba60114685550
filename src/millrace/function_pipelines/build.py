"""Functions -> a model that is a pipeline, compiled and attached.

look at the functions once -> the variables that they touch -> StagesModel, its stages and options
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import ModelError, OptionError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.fit.controller import controller_of
from millrace.function_pipelines.chain import FunctionChain, next_arguments, run_chain
from millrace.function_pipelines.model import (
    OptimizerFunction,
    Outlet,
    StagesModel,
    call_optimizer_function,
)
from millrace.loops.replication import in_replica
from millrace.loops.scope import Touched, look_at
from millrace.optimizers.as_accumulated import AsAccumulated
from millrace.pipelines.assignment.assignment import Assignment
from millrace.strategy.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline with its programs, to be run again and again, by one thread at a time."""

    model: StagesModel
    inputs: list[keras.Variable]
    trains: bool
    replicas: int
    _lock: Lock = field(default_factory=Lock)  # of the model, which is one

    def run(self, values: list[Any], infeed: InfeedQueue | None, window: int, updates: int) -> None:
        """Runs so many updates, each of a window of micro-batches."""
        steps = window * updates * self.replicas
        if not steps:
            return
        data = _elements(infeed, steps, self.replicas)
        with self._lock:
            for variable, value in zip(self.inputs, values, strict=True):
                variable.assign(value)
            if self.trains:
                self.model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)
            else:
                self.model.predict(data, steps=steps, verbose=0)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look at the functions finds."""

    variables: list[keras.Variable]  # without the optimizer's
    trainable: list[keras.Variable]
    optimizer: keras.optimizers.Optimizer | None


def make_pipeline(
    chain: FunctionChain,
    optimizer_function: OptimizerFunction | None,
    casts_gradients: bool,
    outlet: Outlet,
    values: list[Any],
    element: Any,
    strategy: Strategy,
    name: str,
    options: dict[str, Any],
) -> Pipeline:
    """Makes a pipeline; compiles nothing yet.

    Args:
        chain: its functions.
        optimizer_function: of the last outputs; None where nothing is trained.
        casts_gradients: whether the optimizer is given gradients in the variables' dtypes.
        outlet: where results go.
        values: of the inputs of a run.
        element: specs of an element of the infeed; None without one.
        strategy: whose devices to use.
        name: of the pipeline.
        options: of `set_pipelining_options`.

    Raises:
        OptionError: if options or functions do not fit together.
        ModelError: if there is nothing to train.
    """
    found = _look(chain, optimizer_function, outlet, values, element)
    inputs = [
        keras.Variable(value, trainable=False, name=f"input_{k}") for k, value in enumerate(values)
    ]
    model = StagesModel(
        chain, optimizer_function, outlet, found.variables, found.trainable, inputs, _alone,
        name=name,
    )  # fmt: skip
    Strategy.attach(strategy, model)  # not what a subclass adds for models of users
    controller: Any = controller_of(model)
    # The functions say their stages themselves, in each trace.
    controller.setup.stages.put(Assignment((), None, len(chain.stages)))
    model.set_pipelining_options(device_mapping=list(chain.devices), **options)
    if chain.is_concurrent:
        pipelining = replace(controller.setup.options.pipelining, schedule_stages=chain.stages)
        controller.put_options(replace(controller.setup.options, pipelining=pipelining))
    replicas = controller.setup.replicas
    if replicas > 1:
        object.__setattr__(model, "_in_replica", lambda index: in_replica(index, replicas))
    optimizer = found.optimizer
    if optimizer is None:
        model.compile(steps_per_execution=replicas)
    else:
        model.compile(
            optimizer=optimizer if casts_gradients else AsAccumulated(optimizer),
            steps_per_execution=controller.setup.accumulation.steps * replicas,
        )
    return Pipeline(model, inputs, optimizer is not None, replicas)


def _look(
    chain: FunctionChain,
    optimizer_function: OptimizerFunction | None,
    outlet: Outlet,
    values: list[Any],
    element: Any,
) -> _Found:
    returned: list[Any] = []

    def whole(values: list[Any], element: Any) -> Any:
        args, kwargs = next_arguments(run_chain(chain, values, element))
        if optimizer_function is None:
            return args, kwargs
        returned[:] = call_optimizer_function(optimizer_function, args, kwargs)
        return args, kwargs, returned[1]

    with _alone(np.int32(0)):
        specs = [
            jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for v in values
        ]
        touched, again = (look_at(whole, specs, element) for _ in range(2))
    _check_same(touched, again)
    _check_outputs(touched, outlet)
    variables = [*touched.changed, *touched.fixed]
    if not returned:
        return _Found(variables, [], None)
    optimizer, _, *chosen = returned
    own = {id(variable) for variable in optimizer.variables}
    variables = [variable for variable in variables if id(variable) not in own]
    trainable = list(chosen[0]) if chosen else [v for v in variables if v.trainable]
    if not trainable:
        raise ModelError(
            "The stages of the pipeline use no trainable variable, and its optimizer has nothing "
            "to train. Use layers or keras.Variables in the functions, or leave out "
            "optimizer_function."
        )
    return _Found(variables, trainable, optimizer)


def _check_outputs(touched: Touched, outlet: Outlet) -> None:
    if touched.tapped.keys:
        raise OptionError(
            f"{touched.tapped.keys[0]!r} is enqueued by a stage of a pipeline. Return the values "
            "from the last stage, and set outfeed to the queue."
        )
    outputs, kwargs, *_ = touched.result
    if outlet.queue is None and (outputs or kwargs):
        leaves = jax.tree.leaves((outputs, kwargs))
        texts = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
        raise OptionError(
            f"The last stage of a pipeline returns {texts}, and outfeed=None takes nothing. Set "
            "outfeed to a queue, or return nothing."
        )


def _alone(index: Any) -> AbstractContextManager[Any]:
    return in_replica(index, 1)


def _elements(infeed: InfeedQueue | None, steps: int, replicas: int) -> Iterator[Any]:
    """Yields the elements of a run, a row each, with the replica that each is for."""
    done = 0
    while done < steps:
        if infeed is None:
            elements: list[Any] = [None]
        else:
            segment = infeed.take(steps - done)
            batches = jax.tree.map(np.asarray, segment.block.batches)
            elements = [
                jax.tree.map(lambda leaf, k=k: leaf[k][None], batches)
                for k in range(segment.start, segment.start + segment.count)
            ]
        for element in elements:
            yield ({"element": element, "replica": np.array([done % replicas], np.int32)},)
            done += 1


def _check_same(touched: Any, again: Any) -> None:
    first = {id(variable) for variable in (*touched.changed, *touched.fixed)}
    new = [v.path for v in (*again.changed, *again.fixed) if id(v) not in first]
    if new:
        raise ModelError(
            f"The stages of a pipeline make the variables {new} anew whenever they are called. "
            "Make layers and optimizers outside of the functions."
        )
