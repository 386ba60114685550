"""A Keras model whose stages are the functions of a pipeline.

call            each function within its PipelineStage
compute_loss    the optimizer function, on the last stage
elements        `[1, ...]`: one row each, with the index of the element's replica
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import jax
import jax.numpy as jnp
import keras

from millrace._compat.keras_optimizers import let_optimizers_be_made
from millrace.api.function_pipelines.chain import (
    FunctionChain,
    as_list,
    call_checked,
    next_arguments,
    run_chain,
)
from millrace.api.own_loops.replication import in_replica
from millrace.base.pytrees import Array, ArrayTree
from millrace.errors import LoopError, OptionError
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.run.fit.controller import controller_of
from millrace.run.pipelines.assignment.marks import PipelineStage

OptimizerFunction = Callable[..., object]


class ResultOutfeed:
    """Selects results of a pipeline, and enqueues them."""

    def __init__(
        self, queue: OutfeedQueue | None, loss: bool = False, mask: Sequence[bool] | None = None
    ):
        """Sets the selection.

        Args:
            queue: for the results; None enqueues nothing.
            loss: whether to enqueue the loss in place of the outputs.
            mask: True for each output to leave out.
        """
        self.queue, self.loss, self.mask = queue, loss, None if mask is None else tuple(mask)

    def take(self, outputs: ArrayTree, loss: jax.Array | None, trains: bool) -> None:
        """Enqueues the selected results, in the trace of the last stage."""
        if self.queue is None:
            return
        if self.loss:
            self.queue.enqueue(loss)
            return
        values = as_list(outputs)
        if self.mask is not None:
            if len(self.mask) != len(values):
                raise OptionError(
                    f"outfeed_mask={list(self.mask)} has {len(self.mask)} entries, and the last "
                    f"stage has {len(values)} outputs. Set one entry for each; True hides an "
                    "output."
                )
            values = [value for value, hides in zip(values, self.mask, strict=True) if not hides]
        if trains or isinstance(outputs, tuple | list):
            if values:
                self.queue.enqueue(values)
        elif outputs is not None:
            self.queue.enqueue(outputs)


@dataclass(frozen=True, slots=True)
class PipelineFunctions:
    """The user's functions in a pipeline, and the outfeed of their results."""

    chain: FunctionChain
    optimizer_function: OptimizerFunction | None  # takes the last outputs; None does not train
    outfeed: ResultOutfeed


@dataclass(frozen=True, slots=True)
class PipelineVariables:
    """The variables that the functions of a pipeline use, and the optimizer."""

    variables: list[keras.Variable]  # without the optimizer's
    trainable: list[keras.Variable]
    optimizer: keras.optimizers.Optimizer | None


class ElementRow(TypedDict):
    """One element of the infeed as a row of data for the model."""

    element: ArrayTree  # [1, ...]; None without an infeed
    replica: Array  # its index, [1]


class StagesModel(keras.Model):
    """Runs functions as the stages of a pipeline."""

    attaches_itself = True  # to a strategy, also if it is created in the scope of one

    def __init__(
        self,
        functions: PipelineFunctions,
        variables: PipelineVariables,
        inputs: Sequence[keras.Variable],
        name: str,
    ):
        """Makes a model without layers.

        Args:
            functions: of the pipeline.
            variables: that the functions use.
            inputs: variables that hold the inputs of a run.
            name: of the model.
        """
        # The functions decide on dtypes: elements are not cast to that of the model.
        super().__init__(name=name, autocast=False)
        self._convert_input_args = False
        trained = {id(variable) for variable in variables.trainable}
        others = [v for v in variables.variables if id(v) not in trained]
        # Not by assignment, after which Keras would track the variables as the model's own.
        attributes: dict[str, object] = {
            "_functions": functions,
            "inputs_of_run": list(inputs),
            "_trained": list(variables.trainable),
            "_others": [*others, *inputs],
        }
        for key, value in attributes.items():
            object.__setattr__(self, key, value)
        self.built = True

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that are trained."""
        return list(self._trained)

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """The other variables of the functions, and the inputs of the run."""
        return list(self._others)

    @property
    def variables(self) -> list[keras.Variable]:
        """Trainable and other variables, in this order."""
        return [*self._trained, *self._others]

    def build(self, input_shape: object = None) -> None:
        """Does nothing: the variables of the functions exist already."""

    def call(self, data: ElementRow) -> Any:
        """Runs the stages, and returns the outputs of the last one."""
        element = jax.tree.map(lambda leaf: leaf[0], data["element"])
        with self._in_replica(data):
            inputs = [variable.value for variable in self.inputs_of_run]
            chain = self._functions.chain
            outputs = run_chain(chain, inputs, element, PipelineStage)
            result = outputs[0] if len(outputs) == 1 else next_arguments(outputs)[0]
            if self._functions.optimizer_function is None:
                with PipelineStage(len(chain.stages) - 1):
                    self._functions.outfeed.take(result, None, trains=False)
                    # Results go through the queue, but Keras's predict needs a result, too.
                    return jnp.zeros((1,))
        return result

    def _in_replica(self, data: ElementRow) -> AbstractContextManager[Any]:
        controller: Any = controller_of(self)
        return in_replica(data["replica"][0], controller.setup.replicas)

    def compute_loss(
        self,
        x: ElementRow,  # type: ignore[override] - Keras passes it always
        y: object = None,
        y_pred: object = None,
        sample_weight: object = None,
        training: bool = True,
    ) -> jax.Array:
        """Calls the optimizer function, and returns the loss."""
        del y, sample_weight, training
        args, kwargs = next_arguments([y_pred])
        with self._in_replica(x):
            function = cast(OptimizerFunction, self._functions.optimizer_function)
            _, loss, *_ = call_optimizer_function(function, args, kwargs)
        self._functions.outfeed.take(y_pred, loss, trains=True)
        return jnp.sum(loss)  # a vector's sum is differentiated


def call_optimizer_function(
    function: OptimizerFunction, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Any, ...]:
    """Calls an optimizer function, and checks its result.

    Raises:
        LoopError: if the result is not `(optimizer, loss)` or `(optimizer, loss, variables)`.
    """
    let_optimizers_be_made()
    result = call_checked(
        function, args, dict(kwargs), "The optimizer function of a pipeline", "the last stage"
    )
    if (
        not isinstance(result, tuple)
        or len(result) not in (2, 3)
        or not isinstance(result[0], keras.optimizers.Optimizer)
    ):
        raise LoopError(
            "The optimizer function of a pipeline returns (optimizer, loss), or (optimizer, loss, "
            f"variables) to train these only. Received: {result!r}."
        )
    return result
