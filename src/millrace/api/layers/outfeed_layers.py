"""Layers that return their inputs unchanged, and carry them out of the program.

    x = keras.layers.Dense(128, name="hidden")(x)
    x = millrace.layers.Outfeed(queue, name="hidden_acts")(x)       queue: {"hidden_acts": [E, ...]}

Outside of a strategy's program they only return their inputs: in a model without a strategy, in an
eager call, while a model is built.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import keras

from millrace.base.threads.scoped_value import ScopedValue
from millrace.errors import OptionError
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import is_open, is_tapped

Queues = OutfeedQueue | Mapping[str, OutfeedQueue]
LayerResult = TypeVar("LayerResult")
Tensors = TypeVar("Tensors")  # one tensor, or a structure of several

_queues = ScopedValue[Queues | None](None)  # for layers made from configs


@contextmanager
def outfeed_queues(queues: Queues) -> Iterator[None]:
    """Supplies queues for outfeed layers that are made from their configs inside the block.

    A file has no queues, so they are passed again when a model with such layers is loaded or
    cloned:

        with millrace.layers.outfeed_queues({"hidden_acts": queue}):
            model = keras.models.load_model("model.keras")

    Args:
        queues: by the names of the layers, or one for all of them.
    """
    with _queues.bound_to(queues):
        yield


class _OutfeedLayer(keras.Layer):
    """Returns its inputs, and has a queue that is not part of its config."""

    queue_kind: type[OutfeedQueue] = OutfeedQueue

    def __init__(self, queue: OutfeedQueue, **kwargs: object):
        # In a model of mixed precision the layer would otherwise cast its inputs.
        super().__init__(**{"autocast": False, **kwargs})  # type: ignore[arg-type]
        if not isinstance(queue, self.queue_kind):
            kind = f"millrace.{self.queue_kind.__name__}"
            raise OptionError(
                f"{type(self).__name__} {self.name!r} enqueues into a {kind}. Received: "
                f"{queue!r}. Create the queue first: queue = {kind}()."
            )
        self._queue: Any = queue
        self.supports_masking = True
        self.built = True

    def rematerialized_call(
        self, layer_call: Callable[..., LayerResult], *args: object, **kwargs: object
    ) -> Callable[..., LayerResult]:
        """Returns the call unchanged, since there is nothing to recompute in it.

        `keras.RematScope` would run it in a separate trace, which values cannot leave.
        """
        del args, kwargs
        return layer_call

    def compute_output_shape(self, input_shape: Tensors) -> Tensors:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the layer, without the queue."""
        return super().get_config()  # Keras raises for a layer that does not define this method

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the layer with a queue of the surrounding `outfeed_queues`.

        Raises:
            OptionError: if there is no queue for it.
        """
        queues, name = _queues.get(), config["name"]
        queue = queues.get(name) if isinstance(queues, Mapping) else queues
        if queue is None:
            raise OptionError(
                f"{cls.__name__} {name!r} needs a queue, which a config or a file does not have. "
                "Load the model inside of\n"
                f"    queue = millrace.{cls.queue_kind.__name__}()\n"
                f"    with millrace.layers.outfeed_queues({{{name!r}: queue}}):"
            )
        return cls(queue, **config)


@keras.saving.register_keras_serializable(package="millrace")
class Outfeed(_OutfeedLayer):
    """Enqueues its inputs, as `{name of the layer: inputs}`, and returns them.

    The queue gets the inputs of every step, `[steps, rows, ...]`, in training and elsewhere.
    Gradients pass through. A queue takes one value in each program, so each layer needs a separate
    queue; if the program has enqueued into it already, the layer only returns its inputs.

    Args:
        outfeed_queue: queue for the inputs.
        **kwargs: of a `keras.Layer`, such as `name`.

    Raises:
        OptionError: if `outfeed_queue` is not an `OutfeedQueue`.
    """

    def __init__(self, outfeed_queue: OutfeedQueue, **kwargs: object):
        super().__init__(outfeed_queue, **kwargs)

    def call(self, inputs: Tensors) -> Tensors:
        """Enqueues `inputs` and returns them."""
        if is_open() and not is_tapped(self._queue):
            self._queue.enqueue({self.name: inputs})
        return inputs


@keras.saving.register_keras_serializable(package="millrace")
class MaybeOutfeed(_OutfeedLayer):
    """Offers its inputs to a queue that several layers share, and returns them.

    Inputs are kept if a filter of the queue matches the layer's name. The final layer enqueues all
    kept values as one dict, so inputs of layers that run after it are not included.

    Args:
        maybe_outfeed_queue: queue whose filters accept or ignore the inputs.
        final_outfeed: whether to enqueue. Set False in all layers of a queue but the last; if all
            have False nothing ever arrives.
        **kwargs: of a `keras.Layer`. Filters match its `name`.

    Raises:
        OptionError: if `maybe_outfeed_queue` is not a `MaybeOutfeedQueue`.
    """

    queue_kind = MaybeOutfeedQueue

    def __init__(
        self, maybe_outfeed_queue: MaybeOutfeedQueue, final_outfeed: bool = True, **kwargs: object
    ):
        super().__init__(maybe_outfeed_queue, **kwargs)
        self.final_outfeed = final_outfeed

    def call(self, inputs: Tensors) -> Tensors:
        """Offers `inputs`, enqueues if it is the final layer, and returns them."""
        if is_open():
            self._queue.maybe_outfeed(self.name, inputs)
            if self.final_outfeed:
                self._queue.maybe_enqueue()
        return inputs

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the layer, without the queue."""
        return {**super().get_config(), "final_outfeed": self.final_outfeed}
