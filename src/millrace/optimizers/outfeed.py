"""An optimizer that shows what another one is given: gradients, carried out of the program.

    after compute    gradients of each micro-batch          [steps, ...]
    before apply     what an update is about to apply       [updates, ...]

Everything else is the wrapped optimizer's own: its variables, its learning rate, its update.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from millrace.arguments import checked
from millrace.errors import OptionError, TapError
from millrace.optimizers.wrapping import WrappingOptimizer
from millrace.options import Moment, member
from millrace.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.taps.outfeed import OutfeedQueue
from millrace.taps.taps import belongs_here, is_open

OutfeedOptimizerMode = Moment  # the name that the rest of this API would make one expect


@keras.saving.register_keras_serializable(package="millrace")
class OutfeedOptimizer(WrappingOptimizer):
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

    @checked
    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        outfeed_queue: OutfeedQueue,
        outfeed_optimizer_mode: Moment | str = Moment.BEFORE_APPLY,
        name: str = "OutfeedOptimizer",
        model: keras.Model | None = None,
    ):
        mode = member(Moment, "when", outfeed_optimizer_mode)
        prefix = _checked(outfeed_queue, model)
        super().__init__(wrapped_optimizer, name)
        self.mode = mode
        self._queue = outfeed_queue
        # Not the model: one that is an attribute of its optimizer would be saved within it.
        self._prefix = prefix
        self._keys: tuple[str, ...] = ()  # of the variables that it was built with

    def build(self, variables: Any) -> None:
        """Builds the wrapped optimizer, unless it has trained before."""
        super().build(variables)
        self._keys = tuple(map(self._key, variables))

    def tap_micro_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Takes the gradients of one micro-batch; the strategy's programs call it."""
        if self.mode is Moment.AFTER_COMPUTE:
            self._enqueue(gradients, map(self._key, variables))

    def see(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Enqueues the gradients that are about to be applied."""
        if self.mode is Moment.BEFORE_APPLY:
            self._enqueue(gradients, self._keys if variables is None else map(self._key, variables))
        return list(gradients)

    def get_config(self) -> dict[str, Any]:
        """Returns the wrapped optimizer's config, and what a file can hold of this one."""
        return {**super().get_config(), "outfeed_optimizer_mode": self.mode.value}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns the wrapped optimizer alone.

        A file has no queue, and nothing but the taps depends on it: a loaded model trains on as
        it was. `compile` it with a new `OutfeedOptimizer(model.optimizer, ...)` to see gradients.
        """
        return keras.saving.deserialize_keras_object(
            config["wrapped_optimizer"], custom_objects=custom_objects
        )

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


def _checked(queue: Any, model: Any) -> str:
    """Returns what the paths of the model's variables begin with."""
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
