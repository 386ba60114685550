"""Recurrent layers under the names of their fused cells on the IPU.

PopnnLSTM   -> keras.layers.LSTM
PopnnGRU    -> keras.layers.GRU(reset_after=False)

dropout_seed                              -> seed
time_major=True                           inputs and sequences are [time, rows, features]
partials_dtype, options, options_bwd      no effect, said once: the compiler plans the cell
"""

from typing import Any

import keras

from millrace.ipu.keras.layers.stock import one_number
from millrace.ipu.no_effect import warn_no_effect

_PLANS = (
    "partials_dtype",
    "options",
    "options_bwd",
    "available_memory_proportion_fwd",
    "available_memory_proportion_bwd",
)


def _stock_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the Keras layer, and says which others do nothing."""
    for name in _PLANS:
        if kwargs.pop(name, None) is not None:
            warn_no_effect(name, "XLA plans the cell; choose its precision by the layer's dtype.")
    seed = kwargs.pop("dropout_seed", None)
    if seed is not None:
        kwargs["seed"] = one_number(seed)
    # The cell as a loop of operations: what recomputation and pipelines can look into.
    return {"use_cudnn": False, **kwargs}


class _TimeMajor(keras.layers.RNN):
    """A recurrent layer whose first axis may be time."""

    def __init__(self, units: int, *args: Any, time_major: bool = False, **kwargs: Any):
        super().__init__(units, *args, **_stock_options(kwargs))
        self.time_major = time_major

    def build(self, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        """Makes the weights, which do not depend on the order of the axes."""
        super().build(self._turned(sequences_shape), initial_state_shape)

    def compute_output_shape(self, sequences_shape: Any, initial_state_shape: Any = None) -> Any:
        """Returns the shape of what comes out, and those of the states."""
        return super().compute_output_shape(self._turned(sequences_shape), initial_state_shape)

    def call(
        self, sequences: Any, initial_state: Any = None, mask: Any = None, training: bool = False
    ) -> Any:
        """Runs the cell over time."""
        if self.time_major:
            sequences = keras.ops.swapaxes(sequences, 0, 1)
        found: Any = super().call(sequences, initial_state, mask, training)
        if not (self.time_major and self.return_sequences):
            return found
        if not self.return_state:
            return keras.ops.swapaxes(found, 0, 1)
        return [keras.ops.swapaxes(found[0], 0, 1), *found[1:]]

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the Keras layer, and which axis is time."""
        return {**super().get_config(), "time_major": self.time_major}

    def _turned(self, shape: Any) -> Any:
        return (shape[1], shape[0], *shape[2:]) if self.time_major else shape


@keras.saving.register_keras_serializable(package="millrace.ipu")
class PopnnLSTM(_TimeMajor, keras.layers.LSTM):
    """`keras.layers.LSTM`."""

    # Python 3.11.2 shows the signature of `__new__`, unless the class itself has this one.
    def __init__(self, units: int, *args: Any, time_major: bool = False, **kwargs: Any):
        super().__init__(units, *args, time_major=time_major, **kwargs)


@keras.saving.register_keras_serializable(package="millrace.ipu")
class PopnnGRU(_TimeMajor, keras.layers.GRU):
    """`keras.layers.GRU`, whose reset gate acts before the product of the state."""

    def __init__(self, units: int, *args: Any, reset_after: bool = False, **kwargs: Any):
        super().__init__(units, *args, reset_after=reset_after, **kwargs)
