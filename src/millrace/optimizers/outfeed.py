"""An optimizer that shows what another one is given: gradients, carried out of the program.

    after compute    gradients of each micro-batch          [steps, ...]
    before apply     what an update is about to apply       [updates, ...]

Everything else is the wrapped optimizer's own: its variables, its learning rate, its update.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from millrace.errors import OptionError, TapError
from millrace.feeds.maybe_outfeed import MaybeOutfeedQueue
from millrace.feeds.outfeed import OutfeedQueue
from millrace.options import Moment, moment
from millrace.programs.taps import belongs_here, is_open

OutfeedOptimizerMode = Moment  # the name that the rest of this API would make one expect


class _OfWrapped:
    """An attribute that is the wrapped optimizer's."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        return self if optimizer is None else getattr(optimizer.wrapped_optimizer, self._name)

    def __set__(self, optimizer: Any, value: Any) -> None:
        # Keras's own constructor sets what nobody has chosen, before there is a wrapped one.
        if "wrapped_optimizer" in vars(optimizer):
            setattr(optimizer.wrapped_optimizer, self._name, value)


@keras.saving.register_keras_serializable(package="millrace")
class OutfeedOptimizer(keras.optimizers.Optimizer):
    """Trains as the wrapped optimizer does, and enqueues the gradients that it is given.

    They are offered from the last variable to the first, under keys such as
    `Dense_128/bias:0_grad`: layer and variable without the model, and an ending.

    Args:
        wrapped_optimizer: a Keras optimizer.
        outfeed_queue: an `OutfeedQueue`, or a `MaybeOutfeedQueue` whose filters choose by key.
        outfeed_optimizer_mode: BEFORE_APPLY for what is applied, once per update: the accumulated
            gradients; AFTER_COMPUTE for those of each micro-batch.
        name: of the optimizer.
        model: the model that it is going to train, whose name is left out of the keys.

    Raises:
        OptionError: if one of these is something else, or `model` is missing.
    """

    weight_decay: Any = _OfWrapped()
    clipnorm: Any = _OfWrapped()
    clipvalue: Any = _OfWrapped()
    global_clipnorm: Any = _OfWrapped()
    use_ema: Any = _OfWrapped()
    ema_momentum: Any = _OfWrapped()
    ema_overwrite_frequency: Any = _OfWrapped()
    loss_scale_factor: Any = _OfWrapped()
    gradient_accumulation_steps: Any = _OfWrapped()
    iterations: Any = _OfWrapped()
    learning_rate: Any = _OfWrapped()
    variables: Any = _OfWrapped()

    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        outfeed_queue: OutfeedQueue,
        outfeed_optimizer_mode: Moment | str = Moment.BEFORE_APPLY,
        name: str = "OutfeedOptimizer",
        model: keras.Model | None = None,
    ):
        mode = moment(outfeed_optimizer_mode)
        prefix = _checked(wrapped_optimizer, outfeed_queue, model)
        super().__init__(learning_rate=0.0, name=name)
        self.wrapped_optimizer = wrapped_optimizer
        self.mode = mode
        self._queue = outfeed_queue
        # Not the model: one that is an attribute of its optimizer would be saved within it.
        self._prefix = prefix
        self._keys: tuple[str, ...] = ()  # of the variables that it was built with

    def __getattr__(self, name: str) -> Any:
        # What only some optimizers have, such as `momentum`.
        if name.startswith("__") or "wrapped_optimizer" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wrapped_optimizer, name)

    @property
    def inner_optimizer(self) -> keras.optimizers.Optimizer:
        """The wrapped optimizer, under the name by which Keras's callbacks look for one."""
        return self.wrapped_optimizer

    def build(self, variables: Any) -> None:
        """Builds the wrapped optimizer, unless it has trained before."""
        if not self.wrapped_optimizer.built:
            self.wrapped_optimizer.build(variables)
        self._keys = tuple(map(self._key, variables))
        self.built = True

    def tap_micro_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of one micro-batch; the strategy's programs call it."""
        if self.mode is Moment.AFTER_COMPUTE:
            self._enqueue(gradients, map(self._key, variables))

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Applies gradients as the wrapped optimizer does, and enqueues them first."""
        if trainable_variables is not None:
            grads, trainable_variables = list(grads), list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
        self._see(grads, trainable_variables)
        self.wrapped_optimizer.apply(grads, trainable_variables)

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """Applies `(gradient, variable)` pairs, and returns the number of updates."""
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(grads, variables)
        return self.iterations

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[Any, Any]:
        """Returns new weights and new values of the wrapped optimizer, and enqueues gradients."""
        self._see(grads, None)
        return self.wrapped_optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Changes one variable as the wrapped optimizer does."""
        self.wrapped_optimizer.update_step(gradient, variable, learning_rate)

    def scale_loss(self, loss: Any) -> Any:
        """Scales the loss as the wrapped optimizer does."""
        return self.wrapped_optimizer.scale_loss(loss)

    def set_weights(self, weights: Any) -> None:
        """Sets the values of the wrapped optimizer."""
        self.wrapped_optimizer.set_weights(weights)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from the wrapped optimizer's weight decay."""
        self.wrapped_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Sets the final values of the weights as the wrapped optimizer does."""
        self.wrapped_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the wrapped optimizer's config, and what a file can hold of this one."""
        return {
            "name": self.name,
            "wrapped_optimizer": keras.saving.serialize_keras_object(self.wrapped_optimizer),
            "outfeed_optimizer_mode": self.mode.value,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns the wrapped optimizer alone.

        A file has no queue, and nothing but the taps depends on it: a loaded model trains on as
        it was. `compile` it with a new `OutfeedOptimizer(model.optimizer, ...)` to see gradients.
        """
        return keras.saving.deserialize_keras_object(
            config["wrapped_optimizer"], custom_objects=custom_objects
        )

    def _see(self, gradients: Any, variables: Any) -> None:
        if self.mode is Moment.BEFORE_APPLY:
            self._enqueue(gradients, self._keys if variables is None else map(self._key, variables))

    def _enqueue(self, gradients: Any, keys: Iterable[str]) -> None:
        if not is_open():  # a model that no strategy runs
            return
        if not belongs_here():
            raise TapError(
                "OutfeedOptimizer was to enqueue gradients inside of a conditional or a loop of "
                "another optimizer, which values cannot leave. Wrap it around that one: for loss "
                "scaling, OutfeedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer), ...) "
                "and compile(auto_scale_loss=False)."
            )
        pairs = {
            key: gradient
            for key, gradient in reversed(list(zip(keys, gradients, strict=True)))
            if gradient is not None
        }
        if isinstance(self._queue, MaybeOutfeedQueue):
            for key, gradient in pairs.items():
                self._queue.maybe_outfeed(key, gradient)
            self._queue.maybe_enqueue()
        elif pairs:
            self._queue.enqueue(pairs)

    def _key(self, variable: Any) -> str:
        return f"{str(variable.path).removeprefix(self._prefix)}:0_grad"


def _checked(wrapped: Any, queue: Any, model: Any) -> str:
    """Returns what the paths of the model's variables begin with."""
    if not isinstance(wrapped, keras.optimizers.Optimizer):
        raise OptionError(
            "OutfeedOptimizer wraps a keras.optimizers.Optimizer. Received: wrapped_optimizer="
            f"{wrapped!r}. Set an instance, such as keras.optimizers.SGD()."
        )
    if not isinstance(queue, OutfeedQueue):
        raise OptionError(
            "OutfeedOptimizer enqueues into a millrace.OutfeedQueue or a "
            f"millrace.MaybeOutfeedQueue. Received: outfeed_queue={queue!r}."
        )
    if not isinstance(model, keras.Model):
        raise OptionError(
            "OutfeedOptimizer needs the model that it trains, whose name it leaves out of the "
            f"keys. Received: model={model!r}. Set OutfeedOptimizer(..., model=model)."
        )
    return f"{model.name}/"
