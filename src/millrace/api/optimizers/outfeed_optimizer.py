"""An optimizer that carries the gradients of a wrapped optimizer out of the program.

    after compute    gradients of each micro-batch          [steps, ...]
    before apply     accumulated gradients of an update     [updates, ...]

Variables, learning rate and update are those of the wrapped optimizer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from millrace.api.optimizers.wrapping import Gradient, WrappingOptimizer
from millrace.base.options import Moment, member
from millrace.errors import OptionError, TapError
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import belongs_here, is_open

OutfeedOptimizerMode = Moment  # the public name, after the argument that takes it


@keras.saving.register_keras_serializable(package="millrace")
class OutfeedOptimizer(WrappingOptimizer):
    """Trains like the wrapped optimizer, and enqueues its gradients.

    They are enqueued from the last variable to the first, under keys such as
    `Dense_128/bias:0_grad`: the path of the variable without the model's name, and a suffix.

    A file has no queue, and training does not depend on it: a model that is loaded has the wrapped
    optimizer alone. To get gradients, `compile` it with `OutfeedOptimizer(model.optimizer, ...)`.

    Args:
        wrapped_optimizer: a Keras optimizer.
        outfeed_queue: an `OutfeedQueue`, or a `MaybeOutfeedQueue` with filters for the keys.
        outfeed_optimizer_mode: BEFORE_APPLY for the accumulated gradients, once per update;
            AFTER_COMPUTE for the gradients of each micro-batch.
        name: of this optimizer.
        model: the model that it trains, whose name the keys leave out.

    Raises:
        OptionError: if an argument is invalid, or `model` is missing.
    """

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
        # Not the model itself, which would be saved as an attribute of its own optimizer.
        self._prefix = prefix
        self._keys: tuple[str, ...] = ()  # of the variables that it was built with

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Builds the wrapped optimizer, unless it has been built."""
        super().build(variables)
        self._keys = tuple(map(self._key, variables))

    def tap_micro_gradients(
        self, gradients: Sequence[Gradient], variables: Sequence[keras.Variable]
    ) -> None:
        """Enqueues the gradients of one micro-batch; called by the strategy's programs."""
        if self.mode is Moment.AFTER_COMPUTE:
            self._enqueue(gradients, map(self._key, variables))

    def gradients_to_apply(
        self, gradients: Sequence[Gradient], variables: Sequence[keras.Variable] | None
    ) -> list[Gradient]:
        """Enqueues the gradients, and returns them."""
        if self.mode is Moment.BEFORE_APPLY:
            self._enqueue(gradients, self._keys if variables is None else map(self._key, variables))
        return list(gradients)

    def get_config(self) -> dict[str, Any]:
        """Returns the wrapped optimizer's config and the mode, without queue and model."""
        return {**super().get_config(), "outfeed_optimizer_mode": self.mode.value}

    def _enqueue(self, gradients: Sequence[Gradient], keys: Iterable[str]) -> None:
        if not is_open():  # a model that no strategy runs
            return
        if not belongs_here():
            raise TapError(
                "OutfeedOptimizer cannot enqueue gradients inside of a conditional or a loop of "
                "another optimizer, because values cannot leave it. Wrap it around that optimizer: "
                "for loss scaling, "
                "OutfeedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer), ...) and "
                "compile(auto_scale_loss=False)."
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

    def _key(self, variable: keras.Variable) -> str:
        return f"{str(variable.path).removeprefix(self._prefix)}:0_grad"


def _checked(queue: object, model: object) -> str:
    """Checks the arguments, and returns the prefix of the paths of the model's variables."""
    if not isinstance(queue, OutfeedQueue):
        raise OptionError(
            "OutfeedOptimizer enqueues into a millrace.OutfeedQueue or a "
            f"millrace.MaybeOutfeedQueue. Received: outfeed_queue={queue!r}."
        )
    if not isinstance(model, keras.Model):
        raise OptionError(
            "OutfeedOptimizer needs the model that it trains, to leave its name out of the keys. "
            f"Received: model={model!r}. Set OutfeedOptimizer(..., model=model)."
        )
    return f"{model.name}/"
