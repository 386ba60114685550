"""The functions of a pipeline as a Keras model, so that they run as the stages of one.

call            each function within its PipelineStage
compute_loss    the optimizer function, on the last stage
elements        `[1, ...]`: a row for each; and the replica that an element is for
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace.errors import LoopError, OptionError
from millrace.function_pipelines.chain import (
    FunctionChain,
    as_list,
    call_checked,
    next_arguments,
    run_chain,
)
from millrace.pipelines.assignment.marks import PipelineStage
from millrace.taps.outfeed import OutfeedQueue

OptimizerFunction = Callable[..., Any]
InReplica = Callable[[Any, int], AbstractContextManager[Any]]


class Outlet:
    """What of a pipeline's results goes into its queue."""

    def __init__(
        self, queue: OutfeedQueue | None, loss: bool = False, mask: Sequence[bool] | None = None
    ):
        """Chooses.

        Args:
            queue: None takes nothing.
            loss: whether the loss is taken, and not the outputs.
            mask: True for each output that is left out.
        """
        self.queue, self.loss, self.mask = queue, loss, None if mask is None else tuple(mask)

    def take(self, outputs: Any, loss: Any, trains: bool) -> None:
        """Enqueues what is chosen, in the trace of the last stage."""
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
                    f"stage has {len(values)} outputs. Give one for each; True hides an output."
                )
            values = [value for value, hides in zip(values, self.mask, strict=True) if not hides]
        if trains or isinstance(outputs, tuple | list):
            if values:
                self.queue.enqueue(values)
        elif outputs is not None:
            self.queue.enqueue(outputs)


class StagesModel(keras.Model):
    """Runs functions as the stages of a pipeline."""

    attaches_itself = True  # also where it is made in the scope of a strategy

    def __init__(
        self,
        chain: FunctionChain,
        optimizer_function: OptimizerFunction | None,
        outlet: Outlet,
        variables: Sequence[keras.Variable],
        trainable: Sequence[keras.Variable],
        inputs: Sequence[keras.Variable],
        in_replica: Callable[[Any], AbstractContextManager[Any]],
        name: str,
    ):
        """Makes a model that owns no layer.

        Args:
            chain: the functions.
            optimizer_function: of the last outputs; None where nothing is trained.
            outlet: where results go.
            variables: that the functions use.
            trainable: those of them that are trained.
            inputs: hold the values of the run.
            in_replica: lets functions know the replica, by a number that may be traced.
            name: of the model.
        """
        # Elements are what the functions make of them: no cast to the dtype of a model.
        super().__init__(name=name, autocast=False)
        self._convert_input_args = False
        chosen = {id(variable) for variable in trainable}
        # Past Keras, which would take the variables for the model's own.
        parts = {
            "_chain": chain,
            "_optimizer_function": optimizer_function,
            "_outlet": outlet,
            "_inputs_of_run": list(inputs),
            "_trained": list(trainable),
            "_others": [*(v for v in variables if id(v) not in chosen), *inputs],
            "_in_replica": in_replica,
        }
        for key, value in parts.items():
            object.__setattr__(self, key, value)
        self.built = True

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables that are trained."""
        return list(self._trained)

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Other variables of the functions, and the inputs of the run."""
        return list(self._others)

    @property
    def variables(self) -> list[Any]:
        """All of both."""
        return [*self._trained, *self._others]

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: the functions are looked at before."""

    def call(self, data: Any) -> Any:
        """Runs the stages, and returns the outputs of the last one."""
        element = jax.tree.map(lambda leaf: leaf[0], data["element"])
        with self._in_replica(data["replica"][0]):
            inputs = [variable.value for variable in self._inputs_of_run]
            outputs = run_chain(self._chain, inputs, element, PipelineStage)
            result = outputs[0] if len(outputs) == 1 else next_arguments(outputs)[0]
            if self._optimizer_function is None:
                with PipelineStage(len(self._chain.stages) - 1):
                    self._outlet.take(result, None, trains=False)
                    # Results go through the queue; a loop of Keras wants some of its own.
                    return jnp.zeros((1,))
        return result

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Calls the optimizer function, and returns the loss."""
        del y, sample_weight, training
        args, kwargs = next_arguments([y_pred])
        with self._in_replica(x["replica"][0]):
            _, loss, *_ = call_optimizer_function(self._optimizer_function, args, kwargs)
        self._outlet.take(y_pred, loss, trains=True)
        return jnp.sum(loss)  # of a vector, TensorFlow differentiates the sum, too


def call_optimizer_function(function: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, ...]:
    """Calls an optimizer function, and checks what it returns.

    Raises:
        LoopError: if it is not an optimizer and a loss.
    """
    result = call_checked(
        function, args, kwargs, "The optimizer function of a pipeline", "the last stage"
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
