"""Building of a pipeline: functions -> a model, compiled and attached to a strategy.

a first trace of the functions -> their variables -> StagesModel, its stages and options
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import jax
import keras
import numpy as np

from millrace.api.function_pipelines.chain import next_arguments, run_chain
from millrace.api.function_pipelines.model import (
    ElementRow,
    PipelineFunctions,
    PipelineVariables,
    ResultOutfeed,
    StagesModel,
    call_optimizer_function,
)
from millrace.api.own_loops.replication import in_replica
from millrace.api.own_loops.scope import Touched, look_at
from millrace.api.strategy.strategy import Strategy
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.errors import ModelError, OptionError
from millrace.programs.feeds.block import BlockSlice
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.run.fit.controller import controller_of
from millrace.run.pipelines.assignment.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline with its programs, which can be run many times, by one thread at a time."""

    model: StagesModel
    trains: bool
    replicas: int
    # A model trains in one thread at a time. Other pipelines have models of their own.
    _lock: Lock = field(default_factory=Lock)

    def run(
        self, values: list[np.ndarray], infeed: InfeedQueue | None, micro_batches: int, updates: int
    ) -> None:
        """Runs a number of updates.

        Args:
            values: of the inputs.
            infeed: of the elements; None without one.
            micro_batches: in an update, for each replica.
            updates: number of updates.
        """
        of_update = micro_batches * self.replicas
        steps = of_update * updates
        if not steps:
            return
        elements = _RunElements(infeed, steps, self.replicas)
        with self._lock:
            for variable, value in zip(self.model.inputs_of_run, values, strict=True):
                variable.assign(value)
            if not self.trains:
                self.model.predict(iter(elements), steps=steps, verbose=0)
                return
            begin = int(self.model.optimizer.iterations)
            try:
                self.model.fit(
                    iter(elements),
                    steps_per_epoch=steps,
                    epochs=1,
                    verbose=0,
                    shuffle=False,
                    callbacks=[elements],
                )
            except KeyboardInterrupt:  # what was drawn ahead stays in the queue
                elements.give_back((int(self.model.optimizer.iterations) - begin) * of_update)
                raise


def make_pipeline(
    functions: PipelineFunctions,
    strategy: Strategy,
    name: str,
    options: dict[str, Any],
    values: list[np.ndarray],
    element: SpecTree,
) -> Pipeline:
    """Makes a pipeline; compiles nothing yet.

    Args:
        functions: of the pipeline.
        strategy: whose devices to use.
        name: of the pipeline.
        options: of `set_pipelining_options`.
        values: of the inputs of a run.
        element: specs of an element of the infeed; None without one.

    Raises:
        OptionError: if options or functions do not fit together.
        ModelError: if there is nothing to train.
    """
    variables = _variables_of(functions, values, element)
    inputs = [
        keras.Variable(value, trainable=False, name=f"input_{k}") for k, value in enumerate(values)
    ]
    model = StagesModel(functions, variables, inputs, name)
    Strategy.attach(strategy, model)  # without the additions of subclasses
    controller: Any = controller_of(model)
    chain = functions.chain
    # Each trace of the functions marks their stages.
    controller.setup.stages.put(Assignment((), None, len(chain.stages)))
    model.set_pipelining_options(device_mapping=list(chain.devices), **options)
    if chain.is_concurrent:
        pipelining = replace(controller.setup.options.pipelining, schedule_stages=chain.stages)
        controller.put_options(replace(controller.setup.options, pipelining=pipelining))
    replicas = controller.setup.replicas
    optimizer = variables.optimizer
    if optimizer is None:
        model.compile(steps_per_execution=replicas)
    else:
        model.compile(
            optimizer=optimizer,
            steps_per_execution=controller.setup.accumulation.steps * replicas,
        )
    return Pipeline(model, optimizer is not None, replicas)


def _variables_of(
    functions: PipelineFunctions, values: list[np.ndarray], element: SpecTree
) -> PipelineVariables:
    """Traces the functions, to find the variables that they touch."""
    returned: list[Any] = []  # by the optimizer function

    def whole(values: Sequence[ArrayTree], element: ArrayTree) -> object:
        args, kwargs = next_arguments(run_chain(functions.chain, values, element))
        if functions.optimizer_function is None:
            return args, kwargs
        returned[:] = call_optimizer_function(functions.optimizer_function, args, kwargs)
        return args, kwargs, returned[1]

    with in_replica(np.int32(0), 1):
        specs = [
            jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for v in values
        ]
        touched, again = (look_at(whole, specs, element) for _ in range(2))
    _check_same(touched, again)
    _check_outputs(touched, functions.outfeed)
    variables = [*touched.changed, *touched.fixed]
    if not returned:
        return PipelineVariables(variables, [], None)
    optimizer, _, *chosen = returned
    own = {id(variable) for variable in optimizer.variables}
    variables = [variable for variable in variables if id(variable) not in own]
    trainable = list(chosen[0]) if chosen else [v for v in variables if v.trainable]
    if not trainable:
        raise ModelError(
            "The stages of the pipeline use no trainable variable, so its optimizer has nothing "
            "to train. Use layers or keras.Variables in the functions, or leave out "
            "optimizer_function."
        )
    return PipelineVariables(variables, trainable, optimizer)


def _check_outputs(touched: Touched, outfeed: ResultOutfeed) -> None:
    if touched.tapped.keys:
        raise OptionError(
            f"{touched.tapped.keys[0]!r} is enqueued by a stage of a pipeline. Return the values "
            "from the last stage, and set outfeed to the queue."
        )
    outputs, kwargs, *_ = touched.result
    if outfeed.queue is None and (outputs or kwargs):
        leaves = jax.tree.leaves((outputs, kwargs))
        texts = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
        raise OptionError(
            f"The last stage of a pipeline returns {texts}, but there is no queue for it: "
            "outfeed=None. Set outfeed to a queue, or return nothing."
        )


class _RunElements(keras.callbacks.Callback):
    """The elements of a run, one row each, with the index of the replica."""

    def __init__(self, infeed: InfeedQueue | None, steps: int, replicas: int):
        super().__init__()
        self._infeed, self._steps, self._replicas = infeed, steps, replicas
        self._slices: deque[BlockSlice] = deque()  # some of whose elements may not be trained yet
        self._taken = self._forgotten = 0  # elements; those of slices that are done with

    def __iter__(self) -> Iterator[tuple[ElementRow]]:
        done = 0
        while done < self._steps:
            if self._infeed is None:
                elements: list[Any] = [None]
            else:
                taken = self._infeed.take(self._steps - done)
                self._slices.append(taken)
                self._taken += taken.count
                batches = jax.tree.map(np.asarray, taken.block.batches)
                elements = [
                    jax.tree.map(lambda leaf, k=k: leaf[k][None], batches)
                    for k in range(taken.start, taken.start + taken.count)
                ]
            for element in elements:
                index = np.array([done % self._replicas], np.int32)
                yield ({"element": element, "replica": index},)
                done += 1

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Forgets blocks whose elements are trained."""
        while self._slices and self._forgotten + self._slices[0].count <= batch:
            self._forgotten += self._slices.popleft().count

    def give_back(self, trained: int) -> None:
        """Puts the elements that were taken after the first `trained` ones back into the queue."""
        if self._infeed is not None:
            self._infeed.give_back(self._taken - trained, [*self._slices])


def _check_same(touched: Touched, again: Touched) -> None:
    first = {id(variable) for variable in (*touched.changed, *touched.fixed)}
    new = [v.path for v in (*again.changed, *again.fixed) if id(v) not in first]
    if new:
        raise ModelError(
            f"The stages of a pipeline create the variables {new} whenever they are called. "
            "Create layers and optimizers outside of the functions."
        )
