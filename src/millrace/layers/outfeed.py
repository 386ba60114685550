"""Layers that hand on what they are given, and carry it out of the program.

    x = keras.layers.Dense(128, name="hidden")(x)
    x = millrace.layers.Outfeed(queue, name="hidden_acts")(x)       queue: {"hidden_acts": [E, ...]}

Where no program of a strategy is being traced they only hand on: in a model without a strategy, in
an eager call, while a model is built.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import keras

from millrace.errors import OptionError
from millrace.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.taps.outfeed import OutfeedQueue
from millrace.taps.taps import is_open, is_tapped
from millrace.threads.scoped_value import ScopedValue

Queues = OutfeedQueue | Mapping[str, OutfeedQueue]


_queues = ScopedValue[Queues | None](None)  # for layers made of their configs


@contextmanager
def outfeed_queues(queues: Queues) -> Iterator[None]:
    """Gives queues to the outfeed layers that are made of their configs inside.

    A file has no queues, so whoever loads or clones a model with such layers passes them again:

        with millrace.layers.outfeed_queues({"hidden_acts": queue}):
            model = keras.models.load_model("model.keras")

    Args:
        queues: by the names of the layers, or one for all of them.
    """
    with _queues.bound_to(queues):
        yield


class _Identity(keras.Layer):
    """Hands on what it is given, and has a queue that its config does not know."""

    queue_kind: type[OutfeedQueue] = OutfeedQueue

    def __init__(self, queue: OutfeedQueue, **kwargs: Any):
        # Values pass as they are: without this, a model of mixed precision would cast them.
        super().__init__(**{"autocast": False, **kwargs})
        if not isinstance(queue, self.queue_kind):
            kind = f"millrace.{self.queue_kind.__name__}"
            raise OptionError(
                f"{type(self).__name__} {self.name!r} enqueues into a {kind}. Received: "
                f"{queue!r}. Make the queue first: queue = {kind}()."
            )
        self._queue: Any = queue
        self.supports_masking = True
        self.built = True

    def rematerialized_call(self, layer_call: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer as it is: there is nothing to recompute in it.

        `keras.RematScope` would run it in a trace of its own, which values cannot leave.
        """
        del args, kwargs
        return layer_call

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape it is given."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns all but the queue."""
        return super().get_config()  # which would refuse a layer that does not define it

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the layer with a queue of the surrounding `outfeed_queues`.

        Raises:
            OptionError: if there is none for it.
        """
        queues, name = _queues.get(), config["name"]
        queue = queues.get(name) if isinstance(queues, Mapping) else queues
        if queue is None:
            raise OptionError(
                f"{cls.__name__} {name!r} needs its queue again: a config or a file has none. Load "
                "the model inside of\n"
                f"    queue = millrace.{cls.queue_kind.__name__}()\n"
                f"    with millrace.layers.outfeed_queues({{{name!r}: queue}}):"
            )
        return cls(queue, **config)


@keras.saving.register_keras_serializable(package="millrace")
class Outfeed(_Identity):
    """Enqueues what it is given, as `{name of the layer: inputs}`.

    The inputs of every step come out, `[steps, rows, ...]`, in training and elsewhere. Gradients
    pass through. A queue takes one value in each program, so each layer has one of its own; where
    the program has enqueued into it already, the layer only hands on.

    Args:
        outfeed_queue: where inputs go.
        **kwargs: of a `keras.Layer`, such as `name`.

    Raises:
        OptionError: if `outfeed_queue` is none.
    """

    def __init__(self, outfeed_queue: OutfeedQueue, **kwargs: Any):
        super().__init__(outfeed_queue, **kwargs)

    def call(self, inputs: Any) -> Any:
        """Enqueues `inputs` and returns them."""
        if is_open() and not is_tapped(self._queue):
            self._queue.enqueue({self.name: inputs})
        return inputs


@keras.saving.register_keras_serializable(package="millrace")
class MaybeOutfeed(_Identity):
    """Offers what it is given to a queue that several layers share.

    A value is kept if a filter of the queue takes the layer's name, and the final layer enqueues
    all that were kept, as one dict. What runs after the final layer is not in it.

    Args:
        maybe_outfeed_queue: takes or leaves the inputs.
        final_outfeed: whether to enqueue. Set False in all layers of a queue but the last; if all
            have False nothing ever arrives.
        **kwargs: of a `keras.Layer`. Filters go by `name`.

    Raises:
        OptionError: if `maybe_outfeed_queue` is none.
    """

    queue_kind = MaybeOutfeedQueue

    def __init__(
        self, maybe_outfeed_queue: MaybeOutfeedQueue, final_outfeed: bool = True, **kwargs: Any
    ):
        super().__init__(maybe_outfeed_queue, **kwargs)
        self.final_outfeed = final_outfeed

    def call(self, inputs: Any) -> Any:
        """Offers `inputs`, enqueues if it is the final layer, and returns them."""
        if is_open():
            self._queue.maybe_outfeed(self.name, inputs)
            if self.final_outfeed:
                self._queue.maybe_enqueue()
        return inputs

    def get_config(self) -> dict[str, Any]:
        """Returns all but the queue."""
        return {**super().get_config(), "final_outfeed": self.final_outfeed}
